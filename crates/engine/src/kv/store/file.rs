//! The file of one block.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `LPDRYKV` and the version, 1 |
//! | 32 | hash of the model and the form of its blocks |
//! | 32 | chained hash of the tokens up to the block's end |
//! | 4 | layer group, little-endian as all numbers |
//! | 4 | positions that the block holds |
//! | 8 | bytes of the block |
//! | n | the block, in the layout of the device |
//! | 32 | BLAKE3 of everything before |

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

const MAGIC: [u8; 8] = *b"LPDRYKV\x01";
const HEADER: usize = 88;
const CHECKSUM: usize = 32;

/// What a file says of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Model and form.
    pub root: [u8; 32],
    /// Tokens up to the block's end.
    pub hash: [u8; 32],
    /// Layer group.
    pub group: u32,
    /// Positions that the block holds.
    pub positions: u32,
}

/// Why a file is not believed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is too short, too long, or says so itself.
    #[error("it has {found} bytes where its header promises {expected}")]
    Size {
        /// Bytes of the file.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// It is no file of this kind and version.
    #[error("it is no block of keys and values of this version")]
    Foreign,
    /// It holds another block than its name says.
    #[error("it holds another block than its name says")]
    Misnamed,
    /// Some of its bytes changed.
    #[error("its checksum does not match")]
    Damaged,
}

impl Header {
    fn bytes(&self, len: u64) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&self.root);
        put(&self.hash);
        put(&self.group.to_le_bytes());
        put(&self.positions.to_le_bytes());
        put(&len.to_le_bytes());
        bytes
    }
}

/// Reads a block that must be the one `expected` names.
///
/// # Errors
/// When anything about the file is not as it was written.
pub fn read(path: &Path, expected: &Header) -> Result<Vec<u8>, FileError> {
    let mut file = File::open(path)?;
    let found = file.metadata()?.len();
    let mut header = [0; HEADER];
    if found < (HEADER + CHECKSUM) as u64 {
        return Err(FileError::Size { found, expected: (HEADER + CHECKSUM) as u64 });
    }
    file.read_exact(&mut header)?;
    if header[..8] != MAGIC {
        return Err(FileError::Foreign);
    }
    let mut len = [0; 8];
    len.copy_from_slice(&header[HEADER - 8..]);
    let len = u64::from_le_bytes(len);
    let whole = len.saturating_add((HEADER + CHECKSUM) as u64);
    if whole != found {
        return Err(FileError::Size { found, expected: whole });
    }
    if header != expected.bytes(len) {
        return Err(FileError::Misnamed);
    }
    // As long as the file, so no header can ask for more memory than there is disk.
    let mut bytes = Vec::with_capacity(len as usize + CHECKSUM);
    file.take(len + CHECKSUM as u64).read_to_end(&mut bytes)?;
    if bytes.len() != len as usize + CHECKSUM {
        return Err(FileError::Size { found: bytes.len() as u64, expected: len + CHECKSUM as u64 });
    }
    let checksum = bytes.split_off(len as usize);
    if checksum != checksum_of(&header, &bytes) {
        return Err(FileError::Damaged);
    }
    Ok(bytes)
}

/// Writes a block to an open file and has the disk take it.
///
/// # Errors
/// When the disk does not.
pub fn write(file: &mut File, header: &Header, bytes: &[u8]) -> io::Result<()> {
    let header = header.bytes(bytes.len() as u64);
    file.write_all(&header)?;
    file.write_all(bytes)?;
    file.write_all(&checksum_of(&header, bytes))?;
    file.sync_all()
}

/// Bytes of the file of a block.
pub fn size(block: usize) -> u64 {
    (HEADER + block + CHECKSUM) as u64
}

fn checksum_of(header: &[u8], bytes: &[u8]) -> [u8; CHECKSUM] {
    *blake3::Hasher::new().update(header).update(bytes).finalize().as_bytes()
}
