//! Random weights.
//!
//! Matrices have normally distributed elements of variance 1 over the number of columns, so that products keep the size
//! of their inputs; with the norms of the architecture at 1, states neither vanish nor explode over the layers.
//! Quantising billions of random numbers would take an hour. Instead some thousand blocks of each type and scale are
//! quantised once, and a matrix is a random sequence of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lapidary_gguf::{GgmlType, block};

use crate::error::{ConvertError, Result};
use crate::hf::config::{Family, TextConfig};
use crate::plan::{Blocks, PlannedTensor, Source};

/// Elements that are drawn and quantised for each type and scale.
const POOL: usize = 1 << 19;

/// Makes the weights of one model.
pub struct Weights {
    seed: u64,
    pools: Mutex<HashMap<(GgmlType, u32), Arc<Pool>>>,
}

impl Weights {
    pub fn new(seed: u64) -> Self {
        Self { seed, pools: Mutex::default() }
    }

    /// The data of a tensor whose name, shape and type are chosen.
    pub fn source(&self, tensor: &PlannedTensor, config: &TextConfig) -> Result<Source<'static>> {
        let constant = |value: f32| Source::Elements(Box::new(vec![value; tensor.elements() as usize]));
        if tensor.name == "rope_freqs.weight" {
            let divisors = crate::hf::tensors::rope_divisors(config).unwrap_or_default();
            return Ok(Source::Elements(Box::new(divisors)));
        }
        if tensor.name.ends_with("attn_q_norm.weight") && config.family == Family::Gemma4 {
            // The norm carries the attention scale.
            return Ok(constant((tensor.row_len() as f32).sqrt().recip()));
        }
        if tensor.shape.len() < 2 {
            return Ok(constant(1.0));
        }
        let scale = (tensor.row_len() as f32).sqrt().recip();
        let pool = self.pool(tensor.ty, scale, &tensor.name)?;
        let state = tensor.name.bytes().fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)));
        let row_blocks = tensor.row_bytes()? as usize / pool.block_bytes;
        Ok(Source::Blocks(Box::new(Drawn { pool, row_blocks, state })))
    }

    fn pool(&self, ty: GgmlType, scale: f32, name: &str) -> Result<Arc<Pool>> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&(ty, scale.to_bits())) {
            return Ok(Arc::clone(pool));
        }
        let mut random = self.seed;
        let values: Vec<f32> = (0..POOL).map(|_| scale * normal(&mut random)).collect();
        let mut bytes = Vec::new();
        // Floats are drawn in runs too: one at a time would take as long as drawing numbers.
        let len = ty.block_len().max(32);
        block::quantize(ty, &values, len, None, &mut bytes)
            .map_err(|e| ConvertError::Tensor { name: name.to_owned(), problem: e.to_string() })?;
        let block_bytes = bytes.len() / (POOL / len);
        let pool = Arc::new(Pool { bytes, block_bytes });
        pools.insert((ty, scale.to_bits()), Arc::clone(&pool));
        Ok(pool)
    }
}

/// Quantised blocks to draw from.
struct Pool {
    bytes: Vec<u8>,
    block_bytes: usize,
}

/// A matrix of blocks drawn from a pool.
struct Drawn {
    pool: Arc<Pool>,
    row_blocks: usize,
    state: u64,
}

impl Blocks for Drawn {
    fn rows(&self, first: u64, n: u64, out: &mut Vec<u8>) {
        let size = self.pool.block_bytes;
        let count = (self.pool.bytes.len() / size) as u64;
        for row in first..first + n {
            let mut state = mix(self.state ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for _ in 0..self.row_blocks {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (((state >> 32) * count) >> 32) as usize * size;
                out.extend_from_slice(&self.pool.bytes[at..at + size]);
            }
        }
    }
}

/// SplitMix64's output function.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A standard normal number (Box and Muller, 1958).
fn normal(state: &mut u64) -> f32 {
    let mut uniform = || {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((mix(*state) >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    let radius = (-2.0 * uniform().ln()).sqrt();
    radius * (std::f32::consts::TAU * uniform()).cos()
}
