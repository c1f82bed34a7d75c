//! IQ4_NL and IQ4_XS: 4-bit indices into a fixed table of 16 values.

use bytemuck::{Pod, Zeroable};

use super::{Half, widen};

/// The values that the 4-bit codes stand for.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 elements, `x = d * IQ4_VALUES[q]`, nibbles as in Q4_0. Bytes: `d` f16, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockIq4Nl {
    pub d: Half,
    pub qs: [u8; 16],
}

impl BlockIq4Nl {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        nibbles(widen(self.d), &self.qs, out);
    }
}

/// 256 elements in 8 groups of 32, each with a 6-bit scale: `x = d * (scale - 32) * IQ4_VALUES[q]`.
///
/// Bytes: `d` f16; `scales_h` u16, two high bits a group; `scales_l` 4, four low bits a group; `qs` 128, each
/// group's 16 bytes as in Q4_0.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockIq4Xs {
    pub d: Half,
    pub scales_h: [u8; 2],
    pub scales_l: [u8; 4],
    pub qs: [[u8; 16]; 8],
}

impl BlockIq4Xs {
    /// The signed scale of each group, -32 to 31.
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|g| {
            let low = (self.scales_l[g / 2] >> (4 * (g % 2))) & 15;
            (low | ((((high >> (2 * g)) & 3) as u8) << 4)) as i8 - 32
        })
    }

    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 256]) {
        let d = widen(self.d);
        for ((scale, qs), out) in self.scales().into_iter().zip(&self.qs).zip(out.as_chunks_mut::<32>().0) {
            nibbles(d * f32::from(scale), qs, out);
        }
    }
}

fn nibbles(scale: f32, qs: &[u8; 16], out: &mut [f32; 32]) {
    for (j, &q) in qs.iter().enumerate() {
        out[j] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        out[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}
