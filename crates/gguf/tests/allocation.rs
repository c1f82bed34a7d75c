//! Opening a file, however hostile, takes no more memory than the file's size and a constant.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary_gguf::{Gguf, SharedBytes};

/// What the limits on the numbers of entries come to.
const CONSTANT: usize = 16 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(live, Ordering::SeqCst);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated at most while the file is opened, beyond the file itself, and whether it could be.
fn peak_of_opening(bytes: Vec<u8>) -> (usize, bool) {
    let bytes = SharedBytes::from(bytes);
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let opened = Gguf::from_bytes(bytes, "hostile").is_ok();
    (PEAK.load(Ordering::SeqCst) - before, opened)
}

fn header(n_tensors: u64, n_pairs: u64) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(n_tensors.to_le_bytes());
    out.extend(n_pairs.to_le_bytes());
    out
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// As many tensors as are allowed, with the smallest infos or with long names.
fn many_tensors(n: u64, name_len: usize) -> Vec<u8> {
    let mut out = header(n, 0);
    for i in 0..n {
        put_string(&mut out, format!("{i:0name_len$x}").as_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((32 * i).to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + 32 * n as usize, 0);
    out
}

fn many_pairs(n: u64, key_len: usize) -> Vec<u8> {
    let mut out = header(0, n);
    for i in 0..n {
        put_string(&mut out, format!("{i:0key_len$x}").as_bytes());
        out.extend([0, 0, 0, 0, 7]);
    }
    out
}

fn one_array(element_type: u32, count: u64, element: &[u8]) -> Vec<u8> {
    let mut out = header(0, 1);
    put_string(&mut out, b"k");
    out.extend(9u32.to_le_bytes());
    out.extend(element_type.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(element.repeat(count.min(1 << 20) as usize));
    out
}

/// One test, because the counters are shared by the whole process.
#[test]
fn memory_stays_within_the_file_and_a_constant() {
    let inner_array = [0u8; 12];
    let files = [
        ("many tensors", many_tensors(65_536, 1), true),
        ("long tensor names", many_tensors(1_000, 65_535), true),
        ("too many tensors", many_tensors(65_537, 1), false),
        ("many pairs", many_pairs(16_384, 1), true),
        ("long keys", many_pairs(1_000, 65_535), true),
        ("too many pairs", many_pairs(16_385, 1), false),
        ("empty strings", one_array(8, 1 << 20, &[0; 8]), true),
        ("inner arrays", one_array(9, 65_536, &inner_array), true),
        ("too many inner arrays", one_array(9, 1 << 20, &inner_array), false),
        ("claimed strings", one_array(8, u64::MAX, &[0; 8]), false),
        ("claimed numbers", one_array(10, u64::MAX / 8, &[0; 8]), false),
        ("claimed tensors", header(u64::MAX, 0), false),
        ("claimed pairs", header(0, u64::MAX), false),
    ];
    for (name, bytes, readable) in files {
        let len = bytes.len();
        let (peak, opened) = peak_of_opening(bytes);
        println!("{name}: {len} bytes, {peak} allocated");
        assert_eq!(opened, readable, "{name}");
        assert!(peak <= len + CONSTANT, "{name}: {peak} bytes for a file of {len}");
    }
}
