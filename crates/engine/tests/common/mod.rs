//! Small random models of every family, built in memory as GGUF files.

use lapidary_gguf::{GgmlType, Gguf, SharedBytes};

/// Values of a small generator (SplitMix64): the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[-1, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

/// A metadata value to be written.
pub enum Meta {
    Str(&'static str),
    U32(u32),
    F32(f32),
    Bools(Vec<bool>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Strs(Vec<String>),
}

/// A GGUF file in the making.
pub struct Builder {
    random: Random,
    metadata: Vec<(String, Meta)>,
    tensors: Vec<(String, Vec<usize>, GgmlType, Vec<u8>)>,
}

impl Builder {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), metadata: Vec::new(), tensors: Vec::new() }
    }

    pub fn meta(&mut self, key: impl Into<String>, value: Meta) {
        self.metadata.push((key.into(), value));
    }

    /// A vector of F32 values around `center`.
    pub fn vector(&mut self, name: impl Into<String>, len: usize, center: f32) {
        let values = (0..len).flat_map(|_| (center + 0.2 * self.random.unit()).to_le_bytes()).collect();
        self.tensors.push((name.into(), vec![len], GgmlType::F32, values));
    }

    pub fn floats(&mut self, name: impl Into<String>, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.push((name.into(), vec![values.len()], GgmlType::F32, bytes));
    }

    /// A random matrix whose products keep the scale of their input. `shape` is fastest first.
    pub fn matrix(&mut self, name: impl Into<String>, shape: &[usize], ty: GgmlType) {
        let elements: usize = shape.iter().product();
        let scale = 1.7 / (shape[0] as f32).sqrt();
        let mut bytes = Vec::new();
        for _ in 0..elements / ty.block_len() {
            self.block(ty, scale, &mut bytes);
        }
        self.tensors.push((name.into(), shape.to_vec(), ty, bytes));
    }

    /// A block whose elements are uniform in about `[-scale, scale]`.
    fn block(&mut self, ty: GgmlType, scale: f32, out: &mut Vec<u8>) {
        let half = |x: f32| half_bits(x).to_le_bytes();
        let codes = |random: &mut Random, n: usize, out: &mut Vec<u8>| {
            out.extend((0..n).map(|_| random.bits() as u8));
        };
        match ty {
            GgmlType::F32 => out.extend((scale * self.random.unit()).to_le_bytes()),
            GgmlType::F16 => out.extend(half(scale * self.random.unit())),
            GgmlType::BF16 => {
                out.extend(((scale * self.random.unit()).to_bits() >> 16).to_le_bytes()[..2].to_vec())
            }
            GgmlType::Q8_0 => {
                out.extend(half(scale / 127.0));
                codes(&mut self.random, 32, out);
            }
            GgmlType::Q5_0 => {
                out.extend(half(scale / 16.0));
                codes(&mut self.random, 20, out);
            }
            GgmlType::Q4_K => {
                // Scales of 0 to 63 and minimums of as much, about 32 on average.
                out.extend(half(scale / 8.0 / 32.0));
                out.extend(half(scale / 32.0));
                codes(&mut self.random, 12 + 128, out);
            }
            GgmlType::Q6_K => {
                codes(&mut self.random, 128 + 64 + 16, out);
                out.extend(half(scale / 32.0 / 64.0));
            }
            other => panic!("the builder does not make {other}"),
        }
    }

    /// A vocabulary of byte tokens and a few letters, in the manner of Gemma 3.
    fn tokenizer(&mut self) {
        let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"].map(String::from).to_vec();
        let mut types = vec![3, 3, 3, 2];
        tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
        types.resize(tokens.len(), 6);
        let letters = ('a'..='z').map(String::from).chain(["\u{2581}".to_owned(), "th".into(), "the".into()]);
        tokens.extend(letters);
        tokens.extend((tokens.len()..VOCAB).map(|i| format!("<unused{i}>")));
        types.resize(VOCAB, 1);
        let scores = (0..VOCAB).map(|i| -(i as f32)).collect();
        self.meta("tokenizer.ggml.model", Meta::Str("llama"));
        self.meta("tokenizer.ggml.tokens", Meta::Strs(tokens));
        self.meta("tokenizer.ggml.scores", Meta::F32s(scores));
        self.meta("tokenizer.ggml.token_type", Meta::I32s(types));
        self.meta("tokenizer.ggml.bos_token_id", Meta::U32(2));
        self.meta("tokenizer.ggml.eos_token_id", Meta::U32(1));
        self.meta("tokenizer.ggml.unknown_token_id", Meta::U32(3));
        self.meta("tokenizer.ggml.padding_token_id", Meta::U32(0));
    }

    /// The finished file.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        let string = |text: &str, bytes: &mut Vec<u8>| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        let array = |ty: u32, len: usize, bytes: &mut Vec<u8>| {
            bytes.extend([9u32.to_le_bytes(), ty.to_le_bytes()].concat());
            bytes.extend((len as u64).to_le_bytes());
        };
        for (key, value) in &self.metadata {
            string(key, &mut bytes);
            match value {
                Meta::Str(text) => {
                    bytes.extend(8u32.to_le_bytes());
                    string(text, &mut bytes);
                }
                Meta::U32(n) => {
                    bytes.extend(4u32.to_le_bytes());
                    bytes.extend(n.to_le_bytes());
                }
                Meta::F32(x) => {
                    bytes.extend(6u32.to_le_bytes());
                    bytes.extend(x.to_le_bytes());
                }
                Meta::Bools(flags) => {
                    array(7, flags.len(), &mut bytes);
                    bytes.extend(flags.iter().map(|&f| u8::from(f)));
                }
                Meta::U32s(values) => {
                    array(4, values.len(), &mut bytes);
                    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                }
                Meta::I32s(values) => {
                    array(5, values.len(), &mut bytes);
                    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                }
                Meta::F32s(values) => {
                    array(6, values.len(), &mut bytes);
                    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                }
                Meta::Strs(values) => {
                    array(8, values.len(), &mut bytes);
                    values.iter().for_each(|text| string(text, &mut bytes));
                }
            }
        }
        let mut offset = 0u64;
        for (name, shape, ty, data) in &self.tensors {
            string(name, &mut bytes);
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|&n| bytes.extend((n as u64).to_le_bytes()));
            bytes.extend((*ty as u32).to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += data.len().next_multiple_of(32) as u64;
        }
        for (_, _, _, data) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(data);
        }
        bytes
    }
}

/// Half-precision bits of a normal number.
fn half_bits(x: f32) -> u16 {
    if x == 0.0 {
        return 0;
    }
    let bits = x.to_bits();
    let exponent = ((bits >> 23) & 255) as i32 - 127 + 15;
    assert!((1..31).contains(&exponent) || x.abs() < 1e-4, "{x} is no normal half");
    if exponent < 1 {
        return 0;
    }
    ((bits >> 16) & 0x8000) as u16 | (exponent as u16) << 10 | ((bits >> 13) & 1023) as u16
}

/// The families whose layers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Gemma 3 with mixed types, linear rope scaling.
    Gemma3,
    /// Gemma 4, mixture of experts beside the dense branch, K = V full layers; gate and up merged or apart.
    Experts { merged: bool },
    /// Gemma 4 dense with fused query, key and value matrices.
    DenseFused,
    /// Gemma 4 with per-layer embeddings, layers that share keys and values, wider feed-forward there.
    PerLayer,
}

pub const FAMILIES: [Family; 5] = [
    Family::Gemma3,
    Family::Experts { merged: true },
    Family::Experts { merged: false },
    Family::DenseFused,
    Family::PerLayer,
];

pub const VOCAB: usize = 320;
const HIDDEN: usize = 256;
const LAYERS: usize = 6;
const WINDOW: u32 = 12;
const EXPERTS: usize = 6;
const PER_LAYER_DIM: usize = 32;

/// A random model of the family.
pub fn model(family: Family, seed: u64) -> Gguf {
    let bytes = SharedBytes::from(model_bytes(family, seed));
    Gguf::from_bytes(bytes, "a test model").expect("a valid model")
}

/// The file of a random model of the family.
pub fn model_bytes(family: Family, seed: u64) -> Vec<u8> {
    model_bytes_with(family, seed, WINDOW)
}

/// The same with a sliding window of `window` positions.
pub fn model_bytes_with(family: Family, seed: u64, window: u32) -> Vec<u8> {
    let mut b = Builder::new(seed);
    let prefix = if family == Family::Gemma3 { "gemma3" } else { "gemma4" };
    let shared = if family == Family::PerLayer { 2 } else { 0 };
    let sliding = |i: usize| i % 3 != 2;
    let full_dim = if family == Family::Gemma3 { 64 } else { 128 };
    let ff = |i: usize| if i >= LAYERS - shared { 512 } else { 256 };
    let kv_heads = |i: usize| if sliding(i) { 2 } else { 1 };
    b.meta("general.architecture", Meta::Str(prefix));
    {
        let mut key = |name: &str, value: Meta| b.meta(format!("{prefix}.{name}"), value);
        key("block_count", Meta::U32(LAYERS as u32));
        key("context_length", Meta::U32(1024));
        key("embedding_length", Meta::U32(HIDDEN as u32));
        key("feed_forward_length", Meta::U32s((0..LAYERS).map(|i| ff(i) as u32).collect()));
        key("attention.head_count", Meta::U32(4));
        key("attention.head_count_kv", Meta::U32s((0..LAYERS).map(|i| kv_heads(i) as u32).collect()));
        key("attention.key_length", Meta::U32(full_dim as u32));
        key("attention.value_length", Meta::U32(full_dim as u32));
        key("attention.key_length_swa", Meta::U32(64));
        key("attention.value_length_swa", Meta::U32(64));
        key("attention.sliding_window", Meta::U32(window));
        key("attention.sliding_window_pattern", Meta::Bools((0..LAYERS).map(sliding).collect()));
        key("attention.shared_kv_layers", Meta::U32(shared as u32));
        key("attention.layer_norm_rms_epsilon", Meta::F32(1e-6));
        key("rope.freq_base", Meta::F32(1e6));
        key("rope.freq_base_swa", Meta::F32(1e4));
        match family {
            Family::Gemma3 => key("rope.scaling.factor", Meta::F32(8.0)),
            Family::Experts { .. } => {
                key("expert_count", Meta::U32(EXPERTS as u32));
                key("expert_used_count", Meta::U32(2));
                key("expert_feed_forward_length", Meta::U32(96));
            }
            Family::DenseFused => {}
            Family::PerLayer => key("embedding_length_per_layer_input", Meta::U32(PER_LAYER_DIM as u32)),
        }
    }
    // One family with a float head, which can be re-quantised.
    let embedding = if family == Family::Gemma3 { GgmlType::F16 } else { GgmlType::Q8_0 };
    b.matrix("token_embd.weight", &[HIDDEN, VOCAB], embedding);
    b.vector("output_norm.weight", HIDDEN, 1.0);
    if family != Family::Gemma3 {
        let divisors: Vec<f32> =
            (0..full_dim / 2).map(|i| if i < full_dim / 8 { 1.0 } else { 1e30 }).collect();
        b.floats("rope_freqs.weight", &divisors);
    }
    if family == Family::PerLayer {
        b.matrix("per_layer_token_embd.weight", &[PER_LAYER_DIM * LAYERS, VOCAB], GgmlType::Q5_0);
        b.matrix("per_layer_model_proj.weight", &[HIDDEN, PER_LAYER_DIM * LAYERS], GgmlType::BF16);
        b.vector("per_layer_proj_norm.weight", PER_LAYER_DIM, 1.0);
    }
    for i in 0..LAYERS {
        let dim = if sliding(i) { 64 } else { full_dim };
        let (q, kv) = (4 * dim, kv_heads(i) * dim);
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        for role in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            b.vector(name(role), HIDDEN, 1.0);
        }
        // Small query and key norms keep attention from being one-hot.
        b.vector(name("attn_q_norm"), dim, 0.5);
        b.vector(name("attn_k_norm"), dim, 0.5);
        if family == Family::DenseFused {
            b.matrix(name("attn_qkv"), &[HIDDEN, q + 2 * kv], GgmlType::Q4_K);
        } else {
            b.matrix(name("attn_q"), &[HIDDEN, q], GgmlType::Q4_K);
            b.matrix(name("attn_k"), &[HIDDEN, kv], GgmlType::Q5_0);
            // K = V in the full layers of the mixture-of-experts family.
            if !matches!(family, Family::Experts { .. }) || sliding(i) {
                b.matrix(name("attn_v"), &[HIDDEN, kv], GgmlType::Q6_K);
            }
        }
        b.matrix(name("attn_output"), &[q, HIDDEN], GgmlType::Q6_K);
        b.matrix(name("ffn_gate"), &[HIDDEN, ff(i)], GgmlType::Q4_K);
        b.matrix(name("ffn_up"), &[HIDDEN, ff(i)], GgmlType::F16);
        b.matrix(name("ffn_down"), &[ff(i), HIDDEN], GgmlType::Q8_0);
        if let Family::Experts { merged } = family {
            experts(&mut b, i, merged);
        }
        if family == Family::PerLayer {
            b.matrix(name("inp_gate"), &[HIDDEN, PER_LAYER_DIM], GgmlType::Q4_K);
            b.matrix(name("proj"), &[PER_LAYER_DIM, HIDDEN], GgmlType::F32);
            b.vector(name("post_norm"), HIDDEN, 1.0);
        }
        if family != Family::Gemma3 {
            // One value in most layers, a vector in one.
            b.vector(name("layer_output_scale"), if i == 1 { HIDDEN } else { 1 }, 0.9);
        }
    }
    b.tokenizer();
    b.bytes()
}

fn experts(b: &mut Builder, i: usize, merged: bool) {
    let name = |role: &str| format!("blk.{i}.{role}");
    b.matrix(name("ffn_gate_inp.weight"), &[HIDDEN, EXPERTS], GgmlType::F32);
    b.vector(name("ffn_gate_inp.scale"), HIDDEN, 1.0);
    for role in ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"] {
        b.vector(name(&format!("{role}.weight")), HIDDEN, 1.0);
    }
    if merged {
        b.matrix(name("ffn_gate_up_exps.weight"), &[HIDDEN, 2 * 96, EXPERTS], GgmlType::Q4_K);
    } else {
        b.matrix(name("ffn_gate_exps.weight"), &[HIDDEN, 96, EXPERTS], GgmlType::Q4_K);
        b.matrix(name("ffn_up_exps.weight"), &[HIDDEN, 96, EXPERTS], GgmlType::Q6_K);
    }
    b.matrix(name("ffn_down_exps.weight"), &[96, HIDDEN, EXPERTS], GgmlType::Q5_0);
    b.vector(name("ffn_down_exps.scale"), EXPERTS, 1.0);
}
