use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

struct Folder {
    dir: tempfile::TempDir,
    warnings: Arc<AtomicUsize>,
}

impl Folder {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), warnings: Arc::default() }
    }

    fn open(&self, limit: u64, root: u8) -> KvStore {
        let warnings = Arc::clone(&self.warnings);
        let warn: Warn = Arc::new(move |_| _ = warnings.fetch_add(1, Ordering::Relaxed));
        KvStore::open(self.dir.path(), limit, [root; 32], warn).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }

    fn warnings(&self) -> usize {
        self.warnings.load(Ordering::Relaxed)
    }
}

const PLENTY: u64 = 1 << 30;

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * 7 % 50).collect()
}

#[test]
fn a_reopened_store_is_warm_and_finds_the_longest_chain() {
    let folder = Folder::new();
    let all = tokens(100);
    let store = folder.open(PLENTY, 1);
    let chain = store.chain(&None, &all[..75]);
    assert_eq!((chain.len(), chain.filled(0), chain.filled(2)), (3, 32, 11));
    (0..3).for_each(|b| store.write(&chain, b, 0, vec![b as u8; 1000]));
    drop(store);
    let store = folder.open(PLENTY, 1);
    let length = |tokens: &[u32]| {
        let chain = store.longest_chain(&None, tokens, 0);
        (0..chain.len()).map(|b| chain.filled(b)).sum::<usize>()
    };
    assert_eq!([length(&all), length(&all[..75]), length(&all[..74]), length(&all[..31])], [75, 75, 64, 0]);
    let mut other = all.clone();
    other[40] += 1;
    assert_eq!(length(&other), 32);
    let found = store.longest_chain(&None, &all, 0);
    assert_eq!(store.read(&found, 2, 0).unwrap(), vec![2; 1000]);
    // Other groups, users and models see nothing of it.
    assert!(store.longest_chain(&None, &all, 1).is_empty());
    assert!(store.longest_chain(&Some("someone".into()), &all, 0).is_empty());
    assert!(store.longest_chain(&Some("".into()), &all, 0).is_empty());
    assert!(folder.open(PLENTY, 2).longest_chain(&None, &all, 0).is_empty());
    assert_eq!(folder.warnings(), 0);
}

#[test]
fn damaged_files_are_reported_removed_and_never_believed() {
    let whole = {
        let folder = Folder::new();
        let store = folder.open(PLENTY, 1);
        store.write(&store.chain(&None, &tokens(32)), 0, 0, (0..=255).collect());
        store.flush();
        fs::read(&folder.files()[0]).unwrap()
    };
    let mut damages: Vec<Vec<u8>> = Vec::new();
    // Every byte flipped once, and every length.
    damages.extend((0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    }));
    damages.extend((0..whole.len()).map(|len| whole[..len].to_vec()));
    damages.push([whole.clone(), vec![0]].concat());
    damages.push(b"GGUF and then some".repeat(30));
    for (i, bytes) in damages.into_iter().enumerate() {
        let folder = Folder::new();
        let first = folder.open(PLENTY, 1);
        let chain = first.chain(&None, &tokens(32));
        let path = folder.dir.path().join(file_name(&chain.hashes[0], 0));
        fs::write(&path, bytes).unwrap();
        let store = folder.open(PLENTY, 1);
        assert!(store.contains(&chain, 0, 0));
        assert_eq!(store.read(&chain, 0, 0), None, "damage {i}");
        assert_eq!(folder.warnings(), 1, "damage {i}");
        assert!(!path.exists() && !store.contains(&chain, 0, 0), "damage {i}");
        assert_eq!(store.bytes(), 0);
    }
}

#[test]
fn a_block_under_another_name_is_not_believed() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, 1);
    let (a, b) = (store.chain(&None, &tokens(32)), store.chain(&None, &tokens(31)));
    store.write(&a, 0, 0, vec![1; 64]);
    store.flush();
    fs::rename(&folder.files()[0], folder.dir.path().join(file_name(&b.hashes[0], 0))).unwrap();
    let store = folder.open(PLENTY, 1);
    assert_eq!(store.read(&b, 0, 0), None);
    assert_eq!(folder.warnings(), 1);
}

#[test]
fn the_limit_holds_and_what_was_used_last_stays() {
    let folder = Folder::new();
    let chains: Vec<Vec<u32>> = (0..6).map(|i| vec![i; 32]).collect();
    let size = file::size(1000);
    {
        let store = folder.open(4 * size, 1);
        for (i, tokens) in chains.iter().enumerate() {
            let chain = store.chain(&None, tokens);
            store.write(&chain, 0, 0, vec![i as u8; 1000]);
            store.flush();
            // The first block is used all the time.
            assert!(store.read(&store.chain(&None, &chains[0]), 0, 0).is_some(), "{i}");
        }
        assert!(store.bytes() <= 4 * size);
        let kept: Vec<bool> = chains.iter().map(|t| store.contains(&store.chain(&None, t), 0, 0)).collect();
        assert_eq!(kept, [true, false, false, true, true, true]);
    }
    // A smaller limit holds as soon as the store is opened; larger blocks than the limit are not written.
    let store = folder.open(2 * size, 1);
    assert_eq!(folder.files().len(), 2);
    store.write(&store.chain(&None, &[9; 32]), 0, 0, vec![0; 5000]);
    store.flush();
    assert_eq!(folder.files().len(), 2);
    assert_eq!(folder.warnings(), 1, "a limit below a block is worth a word");
}

#[test]
fn foreign_files_are_left_alone_and_abandoned_ones_removed() {
    let folder = Folder::new();
    let (note, part) = (folder.dir.path().join("notes.txt"), folder.dir.path().join(".1-0.part"));
    fs::write(&note, "mine").unwrap();
    fs::write(&part, "half a block").unwrap();
    folder.open(PLENTY, 1);
    assert!(note.exists() && part.exists(), "another process may be writing it");
    let old = SystemTime::now() - ABANDONED - Duration::from_secs(60);
    fs::File::options().write(true).open(&part).unwrap().set_modified(old).unwrap();
    folder.open(0, 1);
    assert!(note.exists() && !part.exists());
}

#[test]
fn a_file_that_another_process_removed_is_a_miss() {
    let folder = Folder::new();
    let store = folder.open(PLENTY, 1);
    let chain = store.chain(&None, &tokens(32));
    store.write(&chain, 0, 0, vec![3; 10]);
    store.flush();
    fs::remove_file(&folder.files()[0]).unwrap();
    assert_eq!(store.read(&chain, 0, 0), None);
    assert_eq!(folder.warnings(), 0);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let folder = Folder::new();
    let file = folder.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let warn: Warn = Arc::new(|_| ());
    assert!(KvStore::open(&file, PLENTY, [0; 32], Arc::clone(&warn)).is_err());
    assert!(KvStore::open(&file.join("below"), PLENTY, [0; 32], warn).is_err());
}
