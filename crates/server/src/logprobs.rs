//! Log-probabilities in OpenAI's two forms.

use mlxcel_engine::sample::TokenLogprobs;
use mlxcel_protocol::openai::{CompletionLogprobs, TokenLogprob, TopLogprob};
use mlxcel_text::Tokenizer;

/// A token's own text: with U+FFFD where it ends inside a character.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The form of chat completions.
pub fn token_logprob(own: &TokenLogprobs, token: u32, tokenizer: &Tokenizer) -> TokenLogprob {
    let bytes = tokenizer.token_bytes(token);
    let top = |(id, logprob): &(u32, f32)| {
        let bytes = tokenizer.token_bytes(*id);
        TopLogprob { token: text(&bytes), logprob: *logprob, bytes: Some(bytes) }
    };
    TokenLogprob {
        token: text(&bytes),
        logprob: own.logprob,
        bytes: Some(bytes),
        top_logprobs: own.top.iter().map(top).collect(),
    }
}

/// Adds a token in the older form; `offset` is where it begins, in characters.
pub fn push(list: &mut CompletionLogprobs, own: &TokenLogprobs, token: u32, offset: u64, tokenizer: &Tokenizer) {
    let word = |id: u32| text(&tokenizer.token_bytes(id));
    list.tokens.push(word(token));
    list.token_logprobs.push(Some(own.logprob));
    list.top_logprobs.push((!own.top.is_empty()).then(|| own.top.iter().map(|(id, p)| (word(*id), *p)).collect()));
    list.text_offset.push(offset);
}
