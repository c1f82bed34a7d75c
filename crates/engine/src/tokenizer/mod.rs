//! Text to tokens and back, for the vocabularies of Gemma 3 and Gemma 4.
//!
//! [`Tokenizer::from_gguf`] reads the vocabulary of a model file and indexes it; [`Vocab`] is the same as plain data
//! for vocabularies made by other means. [`Tokenizer::encode`] splits text into token ids, [`Tokenizer::decode`] puts
//! them together again. Text that is generated token by token goes through a [`StreamDecoder`], which never hands out
//! half a character, and then a [`StopMatcher`], which ends it at a stop string.

mod chars;
mod decode;
mod encode;
mod error;
mod fingerprint;
mod from_gguf;
mod index;
mod merge;
mod segments;
mod special;
mod stop;
#[cfg(test)]
mod testing;
mod vocab;

use std::panic::resume_unwind;
use std::thread;

use lapidary_gguf::Gguf;

pub use decode::{DecodeOptions, StreamDecoder};
pub use encode::EncodeOptions;
pub use error::TokenizerError;
pub use segments::Origin;
pub use stop::{StopMatcher, StopOutput};
pub use vocab::{Pieces, SpecialIds, TokenType, Vocab, VocabModel};

use fingerprint::Fingerprinter;
use index::{MergeIndex, TokenIndex};
use special::SpecialMatcher;
use vocab::parse_byte_token;

/// The names of tokens after which a model has nothing more to say. `</s>` is not among them: in these vocabularies
/// it is an HTML tag.
const END_OF_GENERATION: [&str; 4] = ["<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>"];

/// A vocabulary made ready for encoding and decoding.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    hasher: Fingerprinter,
    index: TokenIndex,
    merges: MergeIndex,
    /// Matched in text as whole tokens wherever special tokens are asked for.
    special: SpecialMatcher,
    /// Those of them that are matched in any text.
    always_special: SpecialMatcher,
    /// The tokens that structure a conversation.
    markers: SpecialMatcher,
    /// Tokens that are matched in any text and structure nothing.
    harmless: SpecialMatcher,
    /// The token of each byte, or the unknown token where a byte has none.
    byte_tokens: Box<[u32; 256]>,
    end_of_generation: Vec<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model file (`tokenizer.ggml.model` = `llama` or `gemma4`).
    ///
    /// # Errors
    /// When the file has no tokenizer, one of another kind, or one that contradicts itself.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::new(Vocab::from_gguf(gguf)?)
    }

    /// Indexes a vocabulary.
    ///
    /// # Errors
    /// When its lists contradict each other, or it lacks tokens that some text would need.
    pub fn new(mut vocab: Vocab) -> Result<Self, TokenizerError> {
        vocab.check()?;
        vocab.suppressed.retain(|&id| (id as usize) < vocab.tokens.len());
        vocab.suppressed.sort_unstable();
        vocab.suppressed.dedup();
        let hasher = Fingerprinter::new();
        let (index, merges) = build_indexes(hasher, &vocab)?;
        let mut special_types = vec![TokenType::Control, TokenType::Unknown, TokenType::UserDefined];
        let special = SpecialMatcher::new(&vocab, &special_types)?;
        let marks = |id: usize| segments::is_marker(&vocab, id);
        let markers = SpecialMatcher::of(&vocab, &special_types, marks)?;
        let harmless = SpecialMatcher::of(&vocab, &[TokenType::UserDefined], |id| !marks(id))?;
        special_types.retain(|&ty| index::is_plain(vocab.model, ty));
        let always_special = SpecialMatcher::new(&vocab, &special_types)?;
        let byte_tokens = find_byte_tokens(&vocab)?;
        let end_of_generation = Vec::new();
        let mut tokenizer = Self {
            vocab,
            hasher,
            index,
            merges,
            special,
            always_special,
            markers,
            harmless,
            byte_tokens,
            end_of_generation,
        };
        tokenizer.end_of_generation = tokenizer.find_end_of_generation();
        Ok(tokenizer)
    }

    /// Number of tokens; ids are below it.
    pub fn n_tokens(&self) -> usize {
        self.vocab.tokens.len()
    }

    /// The vocabulary as it was read.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// The ids that the metadata names: begin and end of sequence and the like.
    pub fn special_ids(&self) -> SpecialIds {
        self.vocab.special
    }

    /// Whether a prompt for this model begins with the begin-of-sequence token.
    pub fn adds_bos(&self) -> bool {
        self.vocab.add_bos && self.vocab.special.bos.is_some()
    }

    /// The type of token `id`.
    ///
    /// # Errors
    /// When there is no such token.
    pub fn token_type(&self, id: u32) -> Result<TokenType, TokenizerError> {
        let ty = self.vocab.types.get(id as usize).copied();
        ty.ok_or(TokenizerError::UnknownId { id, n_tokens: self.n_tokens() })
    }

    /// The token written exactly `text` in the vocabulary, with U+2581 for spaces; control tokens such as `<|turn>`
    /// included, byte tokens not.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let (tokens, text) = (&self.vocab.tokens, text.as_bytes());
        self.special.find(tokens, text).or_else(|| self.index.find(tokens, text))
    }

    /// The tokens that end the generation of a text, in ascending order.
    ///
    /// These are the end-of-sequence and end-of-turn tokens of the metadata, and those known by name: `<eos>`,
    /// `<end_of_turn>`, `<turn|>`, `<|tool_response>`.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Whether token `id` ends the generation of a text.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens that must never be sampled, in ascending order; those outside the vocabulary are left out.
    /// From `tokenizer.ggml.suppress_tokens`, which few files have.
    pub fn suppressed(&self) -> &[u32] {
        &self.vocab.suppressed
    }

    fn find_end_of_generation(&self) -> Vec<u32> {
        let SpecialIds { eos, eot, .. } = self.vocab.special;
        let named = END_OF_GENERATION.iter().filter_map(|name| self.token_id(name));
        let mut ids: Vec<u32> = eos.into_iter().chain(eot).chain(named).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Builds both indexes at the same time, as they take most of the time of loading.
fn build_indexes(hasher: Fingerprinter, vocab: &Vocab) -> Result<(TokenIndex, MergeIndex), TokenizerError> {
    let build_merges = || MergeIndex::new(hasher, &vocab.merges);
    thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, build_merges);
        let index = TokenIndex::new(hasher, vocab);
        let merges = match worker {
            Ok(worker) => worker.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_no_thread_to_be_had) => build_merges(),
        };
        Ok((index, merges?))
    })
}

/// The token of each byte. Where there is none, the unknown token stands in.
fn find_byte_tokens(vocab: &Vocab) -> Result<Box<[u32; 256]>, TokenizerError> {
    let mut found = [None; 256];
    for (id, ty) in vocab.types.iter().enumerate() {
        if *ty == TokenType::Byte
            && let Some(byte) = parse_byte_token(vocab.tokens.get(id))
        {
            found[byte as usize].get_or_insert(id as u32);
        }
    }
    let unknown_type = || vocab.types.iter().position(|&ty| ty == TokenType::Unknown).map(|id| id as u32);
    let unknown = vocab.special.unknown.or_else(unknown_type);
    let mut tokens = Box::new([0; 256]);
    for (byte, token) in tokens.iter_mut().enumerate() {
        *token = found[byte].or(unknown).ok_or(TokenizerError::NoFallback { byte: byte as u8 })?;
    }
    Ok(tokens)
}
