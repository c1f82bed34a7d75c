//! Repeatable random numbers, weights and shapes.

use lapidary_gguf::{GgmlType, SharedBytes};

use crate::{Backend, MatrixData};

/// A small generator (splitmix64): the same numbers on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in `-1..1`.
    pub(super) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About normal with deviation 1.
    pub(super) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.uniform()).sum::<f32>() * std::f32::consts::FRAC_1_SQRT_2
    }

    pub(super) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Activations as models have them: normal, with an outlier here and there.
    pub(super) fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal() * if self.below(50) == 0 { 20.0 } else { 1.0 }).collect()
    }

    /// The numbers below `n` in random order.
    pub(super) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }

    /// A matrix, or a stack of them, of random codes with finite scales.
    pub(super) fn matrix(&mut self, ty: GgmlType, stack: usize, rows: usize, cols: usize) -> MatrixData {
        let blocks = stack * rows * cols / ty.block_len();
        let mut bytes = Vec::with_capacity(blocks * ty.block_bytes());
        for _ in 0..blocks {
            self.block(ty, &mut bytes);
        }
        MatrixData { name: format!("random {ty}"), ty, rows, cols, stack, bytes: SharedBytes::from(bytes) }
    }

    fn block(&mut self, ty: GgmlType, out: &mut Vec<u8>) {
        let begin = out.len();
        let value = self.normal() / 8.0;
        match ty {
            GgmlType::F32 => out.extend(value.to_le_bytes()),
            GgmlType::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
            GgmlType::BF16 => out.extend(half::bf16::from_f32(value).to_le_bytes()),
            _ => out.extend((0..ty.block_bytes()).map(|_| self.bits() as u8)),
        }
        for &offset in scale_offsets(ty) {
            let scale = half::f16::from_f32(self.normal() / 64.0).to_le_bytes();
            out[begin + offset..begin + offset + 2].copy_from_slice(&scale);
        }
        if ty == GgmlType::MXFP4 {
            // The block's exponent: 2^(e - 128), here 2^-8 to 2^-1.
            out[begin] = 120 + self.below(8) as u8;
        }
    }
}

/// Where the half-precision scales and minimums of a block lie.
fn scale_offsets(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::MXFP4 => &[],
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::IQ4_NL | GgmlType::IQ4_XS => &[0],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
    }
}

/// A buffer of the backend that holds `data`.
pub(super) fn upload<B: Backend>(backend: &B, data: &[f32]) -> B::Buffer {
    let mut buffer = backend.buffer(data.len()).unwrap();
    backend.upload(data, &mut buffer, 0).unwrap();
    buffer
}

/// The first `n` elements of a buffer.
pub(super) fn read<B: Backend>(backend: &B, buffer: &B::Buffer, n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    backend.download(buffer, 0..n, &mut out).unwrap();
    out
}
