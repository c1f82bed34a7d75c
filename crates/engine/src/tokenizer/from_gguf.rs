//! Reading a vocabulary from the metadata of a GGUF file.

use lapidary_gguf::{Array, Gguf, Metadata, ValueType};

use super::error::TokenizerError;
use super::vocab::{SpecialIds, TokenType, Vocab, VocabModel};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const SUPPRESS: &str = "tokenizer.ggml.suppress_tokens";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

impl Vocab {
    /// Reads the `tokenizer.ggml.*` metadata. The texts stay in the file's memory.
    ///
    /// # Errors
    /// When a key is missing or of the wrong type, or the tokenizer is of a kind that Gemma 3 and 4 do not use.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let metadata = gguf.metadata();
        let model = read_model(metadata)?;
        let (scores, merges) = match model {
            VocabModel::SentencePiece => (read_scores(metadata)?, [""; 0].into_iter().collect()),
            VocabModel::Gemma4 => (Vec::new(), metadata.strings(MERGES)?.clone().into()),
        };
        if metadata.opt_bool(ADD_SPACE_PREFIX)? == Some(true) {
            return Err(TokenizerError::SpacePrefix);
        }
        let stated_add_bos = metadata.opt_bool(ADD_BOS)?.unwrap_or(true);
        Ok(Self {
            model,
            tokens: metadata.strings(TOKENS)?.clone().into(),
            types: read_types(metadata.array(TYPES)?)?,
            scores,
            merges,
            special: read_special_ids(metadata)?,
            // Files converted early state `false` for Gemma 4, whose prompts need the token all the same.
            add_bos: stated_add_bos || model == VocabModel::Gemma4,
            suppressed: read_suppressed(metadata)?,
        })
    }
}

fn read_model(metadata: &Metadata) -> Result<VocabModel, TokenizerError> {
    match metadata.str(MODEL)? {
        "llama" => Ok(VocabModel::SentencePiece),
        "gemma4" => Ok(VocabModel::Gemma4),
        other => Err(TokenizerError::UnsupportedModel { found: other.chars().take(40).collect() }),
    }
}

fn read_scores(metadata: &Metadata) -> Result<Vec<f32>, TokenizerError> {
    let expected = "an array of 32-bit floats";
    metadata.array(SCORES)?.to_f32s().ok_or(TokenizerError::WrongType { key: SCORES, expected })
}

fn read_types(array: &Array) -> Result<Vec<TokenType>, TokenizerError> {
    let wrong_type = || TokenizerError::WrongType { key: TYPES, expected: "an array of integers" };
    let parse = |(id, number): (usize, i64)| {
        TokenType::from_number(number).ok_or(TokenizerError::BadType { id, found: number })
    };
    if let Array::Fixed(ValueType::I32, bytes) = array {
        let numbers = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        return numbers.map(i64::from).enumerate().map(parse).collect();
    }
    array.to_i64s().ok_or_else(wrong_type)?.into_iter().enumerate().map(parse).collect()
}

/// Ids that no token can have are left out: nothing samples them.
fn read_suppressed(metadata: &Metadata) -> Result<Vec<u32>, TokenizerError> {
    let Some(array) = metadata.opt_array(SUPPRESS)? else { return Ok(Vec::new()) };
    let expected = "an array of integers";
    let ids = array.to_i64s().ok_or(TokenizerError::WrongType { key: SUPPRESS, expected })?;
    Ok(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect())
}

fn read_special_ids(metadata: &Metadata) -> Result<SpecialIds, TokenizerError> {
    Ok(SpecialIds {
        bos: metadata.opt_u32(SpecialIds::BOS_KEY)?,
        eos: metadata.opt_u32(SpecialIds::EOS_KEY)?,
        eot: metadata.opt_u32(SpecialIds::EOT_KEY)?,
        unknown: metadata.opt_u32(SpecialIds::UNKNOWN_KEY)?,
        padding: metadata.opt_u32(SpecialIds::PADDING_KEY)?,
    })
}
