//! F32, F16 and BF16: plain little-endian numbers, one after the other.

use half::{bf16, f16};

use super::narrow;

pub fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = f32::from_le_bytes(*bytes);
    }
}

pub fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f16::from_le_bytes(*bytes).to_f32();
    }
}

/// The upper half of an F32.
pub fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

pub fn encode_f32(x: &[f32], out: &mut Vec<u8>) {
    out.extend(x.iter().flat_map(|v| v.to_le_bytes()));
}

pub fn encode_f16(x: &[f32], out: &mut Vec<u8>) {
    out.extend(x.iter().flat_map(|&v| narrow(v)));
}

/// Rounds to the nearest, ties to even.
pub fn encode_bf16(x: &[f32], out: &mut Vec<u8>) {
    out.extend(x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()));
}
