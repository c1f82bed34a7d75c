//! MXFP4: 32 elements of 4-bit floats (E2M1) with one power-of-two scale (E8M0), from the OCP Microscaling
//! specification.

use bytemuck::{Pod, Zeroable};

/// Twice the values of the E2M1 codes, so that they are integers.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `x = 2^(e - 128) * MXFP4_VALUES[q]`, nibbles as in Q4_0. Bytes: `e` 1, `qs` 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct BlockMxfp4 {
    pub e: u8,
    pub qs: [u8; 16],
}

/// `2^(e - 128)`: half the E8M0 scale, which makes up for the doubled [`MXFP4_VALUES`].
pub fn mxfp4_scale(e: u8) -> f32 {
    // The two smallest scales are subnormal.
    f32::from_bits(match e {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => (u32::from(e) - 1) << 23,
    })
}

impl BlockMxfp4 {
    /// Decodes the block.
    pub fn decode(&self, out: &mut [f32; 32]) {
        let d = mxfp4_scale(self.e);
        for (j, &q) in self.qs.iter().enumerate() {
            out[j] = d * f32::from(MXFP4_VALUES[usize::from(q & 15)]);
            out[j + 16] = d * f32::from(MXFP4_VALUES[usize::from(q >> 4)]);
        }
    }
}
