//! Compiled programs on disk.
//!
//! A file is named for its key: the SHA-256 of source, options and compiler version. It begins with the hash of what
//! follows, so that a cut or foreign file is recognised and replaced.

use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::programs::Program;

const HASH_BYTES: usize = 32;

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub struct ProgramCache {
    folder: PathBuf,
}

impl ProgramCache {
    /// A cache in `folder`, which is made when something is stored.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The code stored under `key`; `None` when there is none that is whole.
    pub fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.path(key)).ok()?;
        let code = bytes.split_off_checked(HASH_BYTES)?;
        (bytes == Sha256::digest(&code).as_slice()).then_some(code)
    }

    /// Stores code under `key`.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn store(&self, key: &Key, code: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        // Under its name a file is always whole, whoever else writes it.
        file.persist(self.path(key)).map_err(|e| e.error)?;
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(&key.0)
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Name of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key of `program` for `arch`, compiled by a compiler of this version.
    pub fn new(program: Program, arch: &str, compiler: (i32, i32)) -> Self {
        let mut hash = Sha256::new();
        hash.update(format!("nvrtc {}.{}\n", compiler.0, compiler.1));
        for option in program.options(arch) {
            hash.update(option);
            hash.update("\n");
        }
        hash.update(program.source());
        let digest: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        Self(format!("{}-{arch}-{digest}.cubin", program.name()))
    }
}

/// [`Vec::split_off`] that does not panic.
trait SplitOff {
    fn split_off_checked(&mut self, at: usize) -> Option<Vec<u8>>;
}

impl SplitOff for Vec<u8> {
    fn split_off_checked(&mut self, at: usize) -> Option<Vec<u8>> {
        (self.len() >= at).then(|| self.split_off(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapidary_gguf::GgmlType;

    #[test]
    fn damaged_files_count_as_absent_and_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::new(folder.path().join("new"));
        let key = Key::new(Program::Rows, "sm_90", (13, 0));
        assert_eq!(cache.load(&key), None);
        cache.store(&key, b"code").unwrap();
        assert_eq!(cache.load(&key).as_deref(), Some(&b"code"[..]));
        let whole = std::fs::read(cache.path(&key)).unwrap();
        for damaged in
            [&whole[..whole.len() - 1], &whole[..5], b"", b"something else of more than thirty-two bytes"]
        {
            std::fs::write(cache.path(&key), damaged).unwrap();
            assert_eq!(cache.load(&key), None);
        }
        cache.store(&key, b"again").unwrap();
        assert_eq!(cache.load(&key).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn keys_tell_programs_architectures_and_compilers_apart() {
        let keys = [
            Key::new(Program::Rows, "sm_90", (13, 0)),
            Key::new(Program::Rows, "sm_80", (13, 0)),
            Key::new(Program::Rows, "sm_90", (12, 9)),
            Key::new(Program::Matrix(GgmlType::Q4_K), "sm_90", (13, 0)),
            Key::new(Program::Matrix(GgmlType::Q5_K), "sm_90", (13, 0)),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b), "{a:?}");
        }
    }
}
