//! A file that appears under its name only when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file being written beside its final place. Dropped before [`persist`](Self::persist), it is removed.
#[derive(Debug)]
pub struct TempFile {
    target: PathBuf,
    temporary: Option<PathBuf>,
    writer: Option<BufWriter<File>>,
}

impl TempFile {
    /// Creates the temporary file in `target`'s folder.
    ///
    /// # Errors
    /// When the folder takes no files, or `target` exists and is no regular file (renaming over a device or a pipe
    /// would replace it).
    pub fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if target.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other("it exists and is no regular file"));
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = target.with_file_name(hidden);
        let file = File::create(&temporary)?;
        let writer = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { target: target.to_owned(), temporary: Some(temporary), writer })
    }

    /// Writes what is buffered to the disk and gives the file its name.
    ///
    /// # Errors
    /// When the disk does not take it; the temporary file is removed then.
    pub fn persist(mut self) -> io::Result<()> {
        let writer = self.writer.take().expect("open until persisted");
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        drop(file);
        let temporary = self.temporary.as_ref().expect("there until persisted");
        std::fs::rename(temporary, &self.target)?;
        self.temporary = None;
        Ok(())
    }

    fn writer(&mut self) -> &mut BufWriter<File> {
        self.writer.as_mut().expect("open until persisted")
    }
}

impl Write for TempFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // What is still buffered is not wanted.
            let _ = writer.into_parts();
        }
        if let Some(temporary) = self.temporary.take() {
            // There is nobody to tell; a file that cannot be removed carries a name that says what it is.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("a folder");
        entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_and_spares_the_old_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let target = dir.path().join("model.gguf");
        std::fs::write(&target, "old").expect("written");
        let mut file = TempFile::create(&target).expect("created");
        file.write_all(b"new").expect("written");
        drop(file);
        assert_eq!(files(dir.path()), ["model.gguf"]);
        assert_eq!(std::fs::read(&target).expect("read"), b"old");
    }

    #[test]
    fn a_persisted_file_has_its_name_and_all_bytes() {
        let dir = tempfile::tempdir().expect("a folder");
        let target = dir.path().join("model.gguf");
        let mut file = TempFile::create(&target).expect("created");
        file.write_all(&[7; 3 << 20]).expect("written");
        assert!(!target.exists());
        file.persist().expect("renamed");
        assert_eq!(files(dir.path()), ["model.gguf"]);
        assert_eq!(std::fs::read(&target).expect("read"), vec![7; 3 << 20]);
    }
}
