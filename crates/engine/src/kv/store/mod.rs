//! Keys and values on disk, so that a restarted process finds its cache warm.
//!
//! A file holds one block of one layer group. Its name is a chained hash: that of the model and the formats, then block
//! after block of the tokens up to the block's end, so a name can only be found by a prompt that begins with exactly these
//! tokens. The last block of a sequence may be partly filled; its name then covers the tokens that it holds.
//!
//! Files are written by a thread of their own, under a temporary name, synced and renamed. What is read is checked
//! ([`file`]) before it is believed; a file that fails is reported once and removed. Processes may share a folder: a file
//! that another one removed is a miss, and one that both write has the same contents.

mod file;
mod writer;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

pub use file::{FileError, Header};

use super::BLOCK_LEN;
use super::prefix::Salt;
use writer::{Job, Writer};

/// Ending of the files' names.
const ENDING: &str = "kv";
/// Age from which temporary files of processes that died are removed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A hash of everything that a block depends on.
pub type BlockHash = [u8; 32];

/// Told once about each thing that went wrong and was put right or left out.
pub type Warn = Arc<dyn Fn(String) + Send + Sync>;

/// A folder of blocks.
pub struct KvStore {
    shared: Arc<Shared>,
    writer: Writer,
    root: BlockHash,
}

/// What the writing thread needs too.
struct Shared {
    dir: PathBuf,
    limit: u64,
    warn: Warn,
    files: Mutex<Index>,
}

/// The files of the folder.
#[derive(Default)]
struct Index {
    files: HashMap<String, Known>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    used: SystemTime,
}

impl Index {
    fn insert(&mut self, name: String, known: Known) {
        self.bytes += known.bytes;
        if let Some(old) = self.files.insert(name, known) {
            self.bytes -= old.bytes;
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(old) = self.files.remove(name) {
            self.bytes -= old.bytes;
        }
    }
}

/// The hashes of a sequence's blocks: one for each whole block, and one for the rest if there is one.
pub struct Chain {
    hashes: Vec<BlockHash>,
    length: usize,
}

impl Chain {
    /// Blocks, the partly filled one included.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Positions that block `index` holds.
    pub fn filled(&self, index: usize) -> usize {
        (self.length - index * BLOCK_LEN).min(BLOCK_LEN)
    }
}

impl KvStore {
    /// Opens a folder, which is made if it is not there. `root` names the model and the form of its blocks; files of other
    /// models may lie in the same folder. At most `limit` bytes are kept.
    ///
    /// # Errors
    /// When the folder cannot be made, read or written.
    pub fn open(dir: &Path, limit: u64, root: BlockHash, warn: Warn) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut index = Index::default();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if is_temporary(&name) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    drop(fs::remove_file(entry.path()));
                }
            } else if is_block(&name) && metadata.is_file() {
                index.insert(name, Known { bytes: metadata.len(), used });
            }
        }
        // Says at once whether the folder takes files.
        let probe = dir.join(temporary_name());
        fs::write(&probe, b"")?;
        fs::remove_file(&probe)?;
        let shared = Arc::new(Shared { dir: dir.to_owned(), limit, warn, files: Mutex::new(index) });
        shared.make_room();
        Ok(Self { writer: Writer::start(Arc::clone(&shared))?, shared, root })
    }

    /// Bytes of the files.
    pub fn bytes(&self) -> u64 {
        self.shared.index().bytes
    }

    /// The hashes of the blocks of `tokens`.
    pub fn chain(&self, salt: &Salt, tokens: &[u32]) -> Chain {
        let mut hash = self.start(salt);
        let hashes = tokens.chunks(BLOCK_LEN).map(|block| {
            hash = link(&hash, block);
            hash
        });
        Chain { hashes: hashes.collect(), length: tokens.len() }
    }

    fn start(&self, salt: &Salt) -> BlockHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.root);
        // A missing salt is not an empty one.
        hasher.update(&[u8::from(salt.is_some())]);
        hasher.update(salt.as_deref().unwrap_or_default().as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// The longest stored chain that `tokens` begin with: whole blocks, then a partly filled one if there is a file for it.
    /// Only the files of group `group` are looked for.
    pub fn longest_chain(&self, salt: &Salt, tokens: &[u32], group: usize) -> Chain {
        let index = self.shared.index();
        let stored = |hash: &BlockHash| index.files.contains_key(&file_name(hash, group));
        let mut chain = Chain { hashes: Vec::new(), length: 0 };
        let mut hash = self.start(salt);
        for block in tokens.chunks(BLOCK_LEN) {
            let whole = link(&hash, block);
            if block.len() == BLOCK_LEN && stored(&whole) {
                chain.hashes.push(whole);
                chain.length += BLOCK_LEN;
                hash = whole;
                continue;
            }
            let partial = (1..=block.len().min(BLOCK_LEN - 1)).rev();
            if let Some((n, part)) = partial.map(|n| (n, link(&hash, &block[..n]))).find(|(_, h)| stored(h)) {
                chain.hashes.push(part);
                chain.length += n;
            }
            break;
        }
        chain
    }

    /// Whether a block is stored.
    pub fn contains(&self, chain: &Chain, block: usize, group: usize) -> bool {
        self.shared.index().files.contains_key(&file_name(&chain.hashes[block], group))
    }

    /// Reads a block's bytes. A file that cannot be believed is reported, removed, and counts as absent.
    pub fn read(&self, chain: &Chain, block: usize, group: usize) -> Option<Vec<u8>> {
        let name = file_name(&chain.hashes[block], group);
        let path = self.shared.dir.join(&name);
        let expected = Header {
            root: self.root,
            hash: chain.hashes[block],
            group: group as u32,
            positions: chain.filled(block) as u32,
        };
        match file::read(&path, &expected) {
            Ok(bytes) => {
                self.shared.touch(&name, &path);
                Some(bytes)
            }
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.shared.index().remove(&name);
                None
            }
            Err(error) => {
                (self.shared.warn)(format!("{} is not used and removed: {error}", path.display()));
                drop(fs::remove_file(&path));
                self.shared.index().remove(&name);
                None
            }
        }
    }

    /// Has a block written, soon, by the writing thread; when that is far behind, the block is left out.
    pub fn write(&self, chain: &Chain, block: usize, group: usize, bytes: Vec<u8>) {
        let header = Header {
            root: self.root,
            hash: chain.hashes[block],
            group: group as u32,
            positions: chain.filled(block) as u32,
        };
        self.writer.push(Job { name: file_name(&header.hash, group), header, bytes });
    }

    /// Waits until everything handed to [`write`](Self::write) is on disk or was given up.
    pub fn flush(&self) {
        self.writer.flush();
    }
}

impl Shared {
    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        // Entries are inserted and removed whole; a panic elsewhere leaves the index usable.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a file as used, for this process and the next.
    fn touch(&self, name: &str, path: &Path) {
        let now = SystemTime::now();
        if let Some(known) = self.index().files.get_mut(name) {
            known.used = now;
        }
        if let Ok(file) = fs::File::open(path) {
            drop(file.set_modified(now));
        }
    }

    /// Removes the files that were not used for longest until the limit holds.
    fn make_room(&self) {
        let mut index = self.index();
        if index.bytes <= self.limit {
            return;
        }
        let mut oldest: Vec<(SystemTime, String)> =
            index.files.iter().map(|(name, known)| (known.used, name.clone())).collect();
        oldest.sort_unstable();
        for (_, name) in oldest {
            if index.bytes <= self.limit {
                break;
            }
            drop(fs::remove_file(self.dir.join(&name)));
            index.remove(&name);
        }
    }
}

/// The hash of a chain that goes on with `tokens`.
fn link(before: &BlockHash, tokens: &[u32]) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    tokens.iter().for_each(|t| _ = hasher.update(&t.to_le_bytes()));
    *hasher.finalize().as_bytes()
}

fn file_name(hash: &BlockHash, group: usize) -> String {
    format!("{}-{group}.{ENDING}", blake3::Hash::from_bytes(*hash).to_hex())
}

fn is_block(name: &str) -> bool {
    name.strip_suffix(ENDING).is_some_and(|stem| {
        let (hash, rest) = stem.split_at_checked(64).unwrap_or((stem, ""));
        hash.bytes().all(|b| b.is_ascii_hexdigit()) && rest.starts_with('-')
    })
}

fn temporary_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".part")
}

#[cfg(test)]
mod tests;
