//! Models in several files.

use std::path::{Path, PathBuf};

use lapidary_gguf::{GgmlType, Gguf, GgufWriter};

struct Part {
    number: u32,
    of: u32,
    total: u64,
    tensor: &'static str,
}

impl Part {
    fn write(&self, dir: &Path, file_number: u32) -> PathBuf {
        let path = dir.join(format!("m-{:05}-of-{:05}.gguf", file_number, self.of));
        let mut writer = GgufWriter::new();
        if self.number == 1 {
            writer.set("general.architecture", "gemma4").unwrap();
        }
        writer.set("split.no", (self.number - 1) as u16).unwrap();
        writer.set("split.count", self.of as u16).unwrap();
        writer.set("split.tensors.count", self.total as i32).unwrap();
        writer.add_tensor(self.tensor, &[2], GgmlType::F32).unwrap();
        let mut data = writer.begin(std::fs::File::create(&path).unwrap()).unwrap();
        data.write_tensor(self.tensor, &[self.number as u8; 8]).unwrap();
        data.finish().unwrap();
        path
    }
}

fn three_parts(dir: &Path) -> PathBuf {
    let part = |number, tensor| Part { number, of: 3, total: 3, tensor };
    part(3, "c").write(dir, 3);
    part(2, "b").write(dir, 2);
    part(1, "a").write(dir, 1)
}

#[test]
fn all_parts_are_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(three_parts(dir.path())).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), "gemma4");
    assert_eq!(gguf.paths().count(), 3);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(*gguf.data(gguf.tensor(name).unwrap()).unwrap(), [value; 8]);
    }
    let on_disk: u64 = gguf.paths().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(gguf.file_bytes(), on_disk);
}

#[track_caller]
fn assert_refused(path: &Path, parts: &[&str]) {
    let message = Gguf::open(path).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = three_parts(dir.path());
    std::fs::remove_file(dir.path().join("m-00002-of-00003.gguf")).unwrap();
    assert_refused(&first, &["cannot read", "m-00002-of-00003.gguf"]);
}

#[test]
fn another_part_points_to_the_first() {
    let dir = tempfile::tempdir().unwrap();
    three_parts(dir.path());
    assert_refused(&dir.path().join("m-00002-of-00003.gguf"), &["part 2 of 3", "open part 1"]);
}

#[test]
fn parts_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let first = three_parts(dir.path());
    // Part 3 under the name of part 2.
    Part { number: 3, of: 3, total: 3, tensor: "b" }.write(dir.path(), 2);
    assert_refused(&first, &["m-00002-of-00003.gguf", "part 3 of 3", "part 2 of 3"]);
    // The same tensor in two parts.
    Part { number: 2, of: 3, total: 3, tensor: "a" }.write(dir.path(), 2);
    assert_refused(&first, &["tensor a", "twice"]);

    three_parts(dir.path());
    Part { number: 1, of: 3, total: 4, tensor: "a" }.write(dir.path(), 1);
    assert_refused(&first, &["hold 3 tensors", "split.tensors.count says 4"]);
    Part { number: 1, of: 3, total: u64::MAX, tensor: "a" }.write(dir.path(), 1);
    assert_refused(&first, &["'split.tensors.count'", "i32 -1"]);
}

#[test]
fn a_first_part_must_keep_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = three_parts(dir.path());
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(first, &renamed).unwrap();
    assert_refused(&renamed, &["part 1 of 3 must be named", "-00001-of-00003.gguf"]);
}
