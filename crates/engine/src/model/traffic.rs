//! Bytes that a token makes the machine read: the yardstick of decoding speed.

use lapidary_backend::KvFormat;
use lapidary_gguf::Gguf;

use super::config::{CacheGroup, Config};

/// What a forward pass reads, in bytes.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Matrices that every row uses, the output matrix not among them.
    body: f64,
    /// The output matrix, read once for all rows that want logits.
    head: f64,
    /// Expert matrices: bytes, experts, experts a row.
    experts: Vec<(f64, usize, usize)>,
    groups: Vec<CacheGroup>,
    k_format: KvFormat,
    v_format: KvFormat,
}

impl Traffic {
    /// The traffic of a model with these cache formats.
    pub fn new(gguf: &Gguf, config: &Config, k_format: KvFormat, v_format: KvFormat) -> Self {
        let mut traffic = Self {
            body: 0.0,
            head: 0.0,
            experts: Vec::new(),
            groups: config.cache_groups.clone(),
            k_format,
            v_format,
        };
        let tied = gguf.tensor("output.weight").is_none();
        for tensor in gguf.tensors() {
            let bytes = tensor.bytes().unwrap_or(0) as f64;
            match tensor.name() {
                "token_embd.weight" if tied => traffic.head = bytes,
                "output.weight" => traffic.head = bytes,
                // Of these a row reads one row only.
                "token_embd.weight" | "per_layer_token_embd.weight" => {}
                name if name.ends_with("_exps.weight") => {
                    let spec = layer_of(name).and_then(|i| config.layers.get(i)?.experts);
                    traffic.experts.extend(spec.map(|s| (bytes, s.count, s.top_k)));
                }
                _ => traffic.body += bytes,
            }
        }
        traffic
    }

    /// The same, with an output matrix of `bytes`, or a coarse copy in its place.
    pub fn with_head(mut self, bytes: u64) -> Self {
        self.head = bytes as f64;
        self
    }

    /// Bytes read a token when `batch` sequences at `depth` decode together and choose experts independently.
    pub fn decode_bytes_per_token(&self, batch: usize, depth: usize) -> u64 {
        let weights = self.body + self.head + self.expert_bytes(batch);
        (weights / batch as f64) as u64 + self.cache_bytes(depth)
    }

    /// Bytes of weights read a token when `rows` prompt tokens go through together.
    pub fn prompt_bytes_per_token(&self, rows: usize) -> u64 {
        ((self.body + self.head + self.expert_bytes(rows)) / rows as f64) as u64
    }

    /// Bytes of keys and values that a row at `depth` reads.
    pub fn cache_bytes(&self, depth: usize) -> u64 {
        let vector =
            |g: &CacheGroup| self.k_format.vector_bytes(g.head_dim) + self.v_format.vector_bytes(g.head_dim);
        // In floating point: the sizes come from a file that may claim anything.
        let bytes = |g: &CacheGroup| {
            let positions = g.window.map_or(depth, |w| w.min(depth)) as f64;
            positions * g.layers as f64 * g.kv_heads as f64 * vector(g) as f64
        };
        self.groups.iter().map(bytes).sum::<f64>() as u64
    }

    /// Expected bytes of the experts that at least one of `rows` rows chose.
    fn expert_bytes(&self, rows: usize) -> f64 {
        let touched =
            |count: usize, top_k: usize| 1.0 - (1.0 - top_k as f64 / count as f64).powi(rows as i32);
        self.experts.iter().map(|&(bytes, count, top_k)| bytes * touched(count, top_k)).sum()
    }
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
