//! Which type each tensor of a quantised file gets.
//!
//! Some tensors matter more than others: the output matrix, the values of attention and the down projections get more
//! bits. The rules are llama.cpp's (`llama_tensor_get_type`, revision 0c1e570), so that files of the same name have
//! the same contents; only the rules that Gemma models and the types of [`FileType`] can meet are here.

use std::cmp::Ordering;

use lapidary_gguf::GgmlType;
use regex::Regex;

use crate::error::{ConvertError, Result};
use crate::file_type::FileType;

/// `pattern=type` rules of the user; the first whose pattern is found in a tensor's name decides.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<(Regex, GgmlType)>);

impl Overrides {
    /// Parses rules such as `ffn_down_exps=q6_k`.
    ///
    /// # Errors
    /// When a rule has no `=`, its pattern is no regular expression, or its type is unknown.
    pub fn parse<S: AsRef<str>>(rules: &[S]) -> Result<Self> {
        rules.iter().map(|rule| Self::rule(rule.as_ref())).collect::<Result<_>>().map(Self)
    }

    fn rule(rule: &str) -> Result<(Regex, GgmlType)> {
        let wrong = |problem: String| ConvertError::Option(format!("tensor rule '{rule}': {problem}"));
        let (pattern, name) = rule
            .rsplit_once('=')
            .ok_or_else(|| wrong("expected PATTERN=TYPE, for example ffn_down_exps=q6_k".into()))?;
        let pattern = Regex::new(pattern).map_err(|e| wrong(e.to_string()))?;
        let ty = GgmlType::from_name(name).filter(|&t| t != GgmlType::MXFP4).ok_or_else(|| {
            let known = GgmlType::ALL.into_iter().filter(|&t| t != GgmlType::MXFP4).map(GgmlType::name);
            wrong(format!("unknown type '{name}'; known: {}", known.collect::<Vec<_>>().join(", ")))
        })?;
        Ok((pattern, ty))
    }

    fn find(&self, name: &str) -> Option<GgmlType> {
        self.0.iter().find(|(pattern, _)| pattern.is_match(name)).map(|&(_, ty)| ty)
    }
}

/// What the rules ask of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    pub layers: usize,
    /// 0 in dense models.
    pub experts: usize,
    /// Query heads that share a key/value head in the first layer.
    pub queries_per_kv: usize,
}

/// A tensor before its type is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    /// Dimensions, fastest first.
    pub shape: &'a [u64],
    /// Type it is stored in now.
    pub stored: GgmlType,
}

/// A tensor's type, and what it would have been if its rows were divisible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub ty: GgmlType,
    pub fallback_from: Option<GgmlType>,
}

/// Chooses the type of every tensor.
pub fn choose(
    file_type: FileType,
    tensors: &[Candidate],
    facts: ModelFacts,
    overrides: &Overrides,
    has_importance: bool,
) -> Vec<Choice> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| by_layer_and_name(tensors[a].name, tensors[b].name));
    let tied = !tensors.iter().any(|t| t.name == "output.weight");
    let value_tensors = tensors.iter().filter(|t| Role::of(t.name).is_value()).count();
    let mut mixer =
        Mixer { file_type, facts, has_importance, tied, value_tensors, values_seen: 0, downs_seen: 0 };
    let mut choices = vec![Choice { ty: GgmlType::F32, fallback_from: None }; tensors.len()];
    for index in order {
        choices[index] = mixer.choose(&tensors[index], overrides);
    }
    choices
}

/// The order in which llama.cpp meets tensors: what belongs to no layer first, then layer by layer.
fn by_layer_and_name(a: &str, b: &str) -> Ordering {
    layer_of(a).cmp(&layer_of(b)).then_with(|| a.cmp(b))
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// What a tensor does in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Output,
    TokenEmbedding,
    Qkv,
    Value,
    Key,
    AttentionOutput,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Self {
        match name {
            "output.weight" => Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Self::TokenEmbedding,
            _ if name.contains("attn_qkv.weight") => Self::Qkv,
            _ if name.contains("attn_v.weight") => Self::Value,
            _ if name.contains("attn_k.weight") => Self::Key,
            _ if name.contains("attn_output.weight") => Self::AttentionOutput,
            _ if name.contains("ffn_down") => Self::Down,
            _ => Self::Other,
        }
    }

    fn is_value(self) -> bool {
        matches!(self, Self::Value | Self::Qkv)
    }
}

/// Whether a tensor may be stored in another type than it has.
fn may_change(tensor: &Candidate) -> bool {
    let dimensions = tensor.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
    dimensions >= 2
        && tensor.name.ends_with("weight")
        && !tensor.name.contains("_norm.weight")
        && !tensor.name.contains("ffn_gate_inp.weight")
        && !tensor.name.contains("per_layer_model_proj")
}

struct Mixer {
    file_type: FileType,
    facts: ModelFacts,
    has_importance: bool,
    /// The token embeddings are the output matrix too.
    tied: bool,
    value_tensors: usize,
    values_seen: usize,
    downs_seen: usize,
}

impl Mixer {
    fn choose(&mut self, tensor: &Candidate, overrides: &Overrides) -> Choice {
        let keep = |ty| Choice { ty, fallback_from: None };
        if !may_change(tensor) {
            return keep(tensor.stored);
        }
        let base = self.file_type.base();
        if base.is_float() {
            return keep(overrides.find(tensor.name).unwrap_or(base));
        }
        let wanted = match overrides.find(tensor.name) {
            Some(ty) => ty,
            None => self.by_role(tensor, base),
        };
        let ty = divisible(wanted, tensor.shape[0]);
        Choice { ty, fallback_from: (ty != wanted).then_some(wanted) }
    }

    fn by_role(&mut self, tensor: &Candidate, base: GgmlType) -> GgmlType {
        match Role::of(tensor.name) {
            Role::Output => output_type(base, tensor.shape[0]),
            Role::TokenEmbedding if self.tied => output_type(base, tensor.shape[0]),
            Role::Value | Role::Qkv => self.value_type(base),
            Role::Key if self.facts.experts == 8 => GgmlType::Q8_0,
            Role::Down => self.down_type(tensor.name, base),
            Role::AttentionOutput => self.attention_output_type(base),
            _ => base,
        }
    }

    fn value_type(&mut self, base: GgmlType) -> GgmlType {
        let index = self.values_seen;
        self.values_seen += 1;
        // Eight small value matrices cost next to nothing beside eight experts.
        if self.facts.experts == 8 {
            return GgmlType::Q8_0;
        }
        let shared_by_many = self.facts.queries_per_kv >= 4;
        match self.file_type {
            FileType::Q2_K if shared_by_many => GgmlType::Q4_K,
            FileType::Q2_K => GgmlType::Q3_K,
            FileType::Q3_K_M if index < 2 => GgmlType::Q5_K,
            FileType::Q3_K_M => GgmlType::Q4_K,
            FileType::Q3_K_L => GgmlType::Q5_K,
            FileType::IQ4_NL | FileType::IQ4_XS if shared_by_many => GgmlType::Q5_K,
            FileType::Q4_K_M | FileType::Q5_K_M if more_bits(index, self.value_tensors) => GgmlType::Q6_K,
            FileType::Q4_K_S if index < 4 => GgmlType::Q5_K,
            _ => base,
        }
    }

    fn down_type(&mut self, name: &str, base: GgmlType) -> GgmlType {
        let layers = self.facts.layers;
        // With experts a layer has several such matrices, so they cannot simply be counted.
        let layer = if self.facts.experts > 1 { layer_of(name).unwrap_or(0) } else { self.downs_seen };
        self.downs_seen += 1;
        let early = layer < layers / 8;
        match self.file_type {
            FileType::Q2_K => GgmlType::Q3_K,
            FileType::Q3_K_M if layer < layers / 16 => GgmlType::Q5_K,
            FileType::Q3_K_M => GgmlType::Q4_K,
            FileType::Q3_K_L => GgmlType::Q5_K,
            FileType::Q4_K_M | FileType::Q5_K_M if more_bits(layer, layers) => GgmlType::Q6_K,
            FileType::IQ4_NL | FileType::IQ4_XS if early && !self.has_importance => GgmlType::Q5_K,
            FileType::Q4_K_S if early => GgmlType::Q5_K,
            FileType::Q4_0 if early && self.has_importance => GgmlType::Q4_1,
            FileType::Q5_0 if early && self.has_importance => GgmlType::Q5_1,
            _ => base,
        }
    }

    fn attention_output_type(&self, base: GgmlType) -> GgmlType {
        use FileType::{IQ4_NL, IQ4_XS, Q2_K, Q3_K_L, Q3_K_M, Q3_K_S, Q4_K_M, Q4_K_S};
        match self.file_type {
            Q2_K | Q3_K_S | Q3_K_M | IQ4_NL | Q4_K_S | Q4_K_M | IQ4_XS if self.facts.experts == 8 => {
                GgmlType::Q5_K
            }
            _ if self.facts.experts == 8 => base,
            Q2_K => GgmlType::Q3_K,
            Q3_K_M => GgmlType::Q4_K,
            Q3_K_L => GgmlType::Q5_K,
            _ => base,
        }
    }
}

/// The output matrix decides over every token, so it never goes below six bits.
fn output_type(base: GgmlType, row: u64) -> GgmlType {
    if base == GgmlType::Q8_0 || !row.is_multiple_of(base.block_len() as u64) {
        GgmlType::Q8_0
    } else {
        GgmlType::Q6_K
    }
}

/// The first and the last eighth of the layers, and every third between.
fn more_bits(index: usize, count: usize) -> bool {
    let eighth = count / 8;
    index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2
}

/// The type of nearest size whose blocks divide a row.
fn divisible(wanted: GgmlType, row: u64) -> GgmlType {
    let fits = |ty: GgmlType| row.is_multiple_of(ty.block_len() as u64);
    let smaller = match wanted {
        GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q2_K | GgmlType::Q3_K => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        other => other,
    };
    [wanted, smaller].into_iter().find(|&ty| fits(ty)).unwrap_or(GgmlType::F16)
}

/// Says how many tensors could not have the type that the rules give.
pub fn fallback_note(choices: &[Choice]) -> Option<String> {
    let mut pairs = std::collections::BTreeMap::new();
    for choice in choices {
        if let Some(wanted) = choice.fallback_from {
            *pairs.entry((wanted.name(), choice.ty.name())).or_insert(0usize) += 1;
        }
    }
    let list = pairs.iter().map(|((wanted, ty), count)| format!("{count} of {wanted} as {ty}"));
    let list: Vec<String> = list.collect();
    (!list.is_empty()).then(|| format!("rows that blocks do not divide: {}", list.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices of Gemma 4 26B-A4B, 31B and Gemma 3 270M with the types that `llama-quantize --dry-run` of llama.cpp
    /// 0c1e570 printed for files of the true shapes.
    struct Model {
        facts: ModelFacts,
        hidden: u64,
        feed_forward: u64,
        experts: Option<u64>,
        attention_in: u64,
        /// Layers with a value matrix of their own.
        has_value: fn(usize) -> bool,
    }

    const MOE_26B: Model = Model {
        facts: ModelFacts { layers: 30, experts: 128, queries_per_kv: 2 },
        hidden: 2816,
        feed_forward: 2112,
        experts: Some(704),
        attention_in: 4096,
        has_value: |i| i % 6 != 5,
    };

    const SMALL: Model = Model {
        facts: ModelFacts { layers: 18, experts: 0, queries_per_kv: 4 },
        hidden: 640,
        feed_forward: 2048,
        experts: None,
        attention_in: 1024,
        has_value: |_| true,
    };

    impl Model {
        fn tensors(&self) -> Vec<(String, Vec<u64>)> {
            let mut all = vec![
                ("token_embd.weight".into(), vec![self.hidden, 1000]),
                ("output_norm.weight".into(), vec![self.hidden]),
            ];
            for i in 0..self.facts.layers {
                let mut push =
                    |role: &str, shape: &[u64]| all.push((format!("blk.{i}.{role}.weight"), shape.to_vec()));
                push("attn_q", &[self.hidden, 512]);
                push("attn_k", &[self.hidden, 256]);
                if (self.has_value)(i) {
                    push("attn_v", &[self.hidden, 256]);
                }
                push("attn_output", &[self.attention_in, self.hidden]);
                push("ffn_gate", &[self.hidden, self.feed_forward]);
                push("ffn_down", &[self.feed_forward, self.hidden]);
                if let Some(width) = self.experts {
                    push("ffn_gate_inp", &[self.hidden, 128]);
                    push("ffn_gate_up_exps", &[self.hidden, 2 * width, 128]);
                    push("ffn_down_exps", &[width, self.hidden, 128]);
                }
            }
            all
        }

        /// Types by tensor name.
        fn types(&self, file_type: FileType) -> std::collections::BTreeMap<String, GgmlType> {
            let tensors = self.tensors();
            let candidate = |(name, shape): &'_ (String, Vec<u64>)| (name.clone(), shape.clone());
            let owned: Vec<_> = tensors.iter().map(candidate).collect();
            let candidates: Vec<Candidate> = owned
                .iter()
                .map(|(name, shape)| Candidate {
                    name,
                    shape,
                    stored: if name.contains("norm") || name.contains("inp") {
                        GgmlType::F32
                    } else {
                        GgmlType::F16
                    },
                })
                .collect();
            let choices = choose(file_type, &candidates, self.facts, &Overrides::default(), false);
            owned.iter().map(|(name, _)| name.clone()).zip(choices.iter().map(|c| c.ty)).collect()
        }
    }

    /// Layers whose tensor of this role has this type.
    fn layers_with(
        types: &std::collections::BTreeMap<String, GgmlType>,
        role: &str,
        ty: GgmlType,
    ) -> Vec<usize> {
        let mut layers: Vec<usize> = types
            .iter()
            .filter(|(name, found)| name.ends_with(&format!(".{role}.weight")) && **found == ty)
            .filter_map(|(name, _)| layer_of(name))
            .collect();
        layers.sort_unstable();
        layers
    }

    #[test]
    fn the_mixture_of_experts_gets_llama_cpps_types() {
        use GgmlType::{F32, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
        let more = vec![0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29];
        let all: Vec<usize> = (0..30).collect();
        for (file_type, base, down) in [(FileType::Q4_K_M, Q4_K, Q5_0), (FileType::Q5_K_M, Q5_K, Q5_1)] {
            let types = MOE_26B.types(file_type);
            assert_eq!(types["token_embd.weight"], Q6_K);
            assert_eq!(types["output_norm.weight"], F32);
            assert_eq!(layers_with(&types, "ffn_gate_inp", F32), all);
            for role in ["attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_gate_up_exps"] {
                assert_eq!(layers_with(&types, role, base), all, "{role} of {file_type}");
            }
            assert_eq!(layers_with(&types, "attn_v", Q6_K), [0, 1, 2, 6, 9, 13, 16, 20, 24, 25, 26, 27, 28]);
            for role in ["ffn_down", "ffn_down_exps"] {
                assert_eq!(layers_with(&types, role, Q8_0), more, "{role} of {file_type}");
                assert_eq!(layers_with(&types, role, down).len(), 16, "{role} of {file_type}");
            }
        }
        let types = MOE_26B.types(FileType::Q6_K);
        assert_eq!(layers_with(&types, "ffn_down_exps", Q8_0), all);
        assert_eq!(layers_with(&types, "attn_q", Q6_K), all);
    }

    #[test]
    fn rows_of_640_fall_back_to_blocks_of_32() {
        use GgmlType::{Q4_K, Q5_0, Q6_K, Q8_0};
        let types = SMALL.types(FileType::Q4_K_M);
        let all: Vec<usize> = (0..18).collect();
        assert_eq!(types["token_embd.weight"], Q8_0);
        assert_eq!(layers_with(&types, "attn_q", Q5_0), all);
        assert_eq!(layers_with(&types, "ffn_gate", Q5_0), all);
        assert_eq!(layers_with(&types, "attn_output", Q4_K), all);
        let more: Vec<usize> = all.iter().copied().filter(|&i| more_bits(i, 18)).collect();
        assert_eq!(layers_with(&types, "ffn_down", Q6_K), more);
    }

    #[test]
    fn a_row_that_no_block_divides_becomes_f16() {
        assert_eq!(divisible(GgmlType::Q4_K, 48), GgmlType::F16);
        assert_eq!(divisible(GgmlType::Q8_0, 48), GgmlType::F16);
        assert_eq!(divisible(GgmlType::IQ4_XS, 96), GgmlType::IQ4_NL);
    }

    #[test]
    fn the_first_matching_rule_decides_and_still_falls_back() {
        let overrides = Overrides::parse(&["ffn_down=q6_k", "ffn=q8_0"]).expect("rules");
        let shape = [704, 8, 2];
        let candidates = [
            Candidate { name: "blk.0.ffn_down_exps.weight", shape: &shape, stored: GgmlType::F16 },
            Candidate { name: "blk.0.ffn_up.weight", shape: &shape, stored: GgmlType::F16 },
        ];
        let facts = ModelFacts { layers: 1, experts: 2, queries_per_kv: 1 };
        let choices = choose(FileType::Q4_0, &candidates, facts, &overrides, false);
        assert_eq!(choices[0], Choice { ty: GgmlType::Q8_0, fallback_from: Some(GgmlType::Q6_K) });
        assert_eq!(choices[1], Choice { ty: GgmlType::Q8_0, fallback_from: None });
        assert_eq!(
            fallback_note(&choices).as_deref(),
            Some("rows that blocks do not divide: 1 of Q6_K as Q8_0")
        );
    }

    #[test]
    fn rules_that_make_no_sense_say_why() {
        for (rule, reason) in
            [("ffn_down", "expected PATTERN=TYPE"), ("(=q8_0", "regex"), ("a=q9", "unknown type 'q9'")]
        {
            let error = Overrides::parse(&[rule]).expect_err(rule).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
