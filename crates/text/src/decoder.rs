//! From one token to its bytes.
//!
//! A checkpoint's `decoder` describes how a *list* of token strings becomes text. Streaming needs the same thing token
//! by token, so the description is compiled here into operations on a single token plus two facts about the start of
//! the text. What is left is a byte string; text is that byte string read as UTF-8, each broken sequence becoming one
//! U+FFFD. So the text of a prefix never depends on what follows it, except for at most three pending bytes.
//!
//! One deliberate difference from the `tokenizers` crate: its byte fallback turns *every* byte of a run into U+FFFD
//! when any of them is bad, so a cut-off emoji would take back the whole ones before it. Here whole characters stay.

use tokenizers::DecoderWrapper;
use tokenizers::decoders::metaspace::PrependScheme;
use tokenizers::tokenizer::Decoder as _;

/// What one step of a decoder does to a single token.
#[derive(Debug)]
enum TokenOp {
    /// Text to text, by the library (a `Replace`: string or pattern).
    Replace(Box<DecoderWrapper>),
    /// Cut up to `start` leading and `stop` trailing occurrences of a character.
    Strip { content: char, start: usize, stop: usize },
    /// `▁` becomes a space, or nothing in the first token.
    Metaspace { replacement: char, drop_first: bool },
    /// `<0xE2>` becomes that byte.
    ByteFallback,
    /// Every character stands for a byte.
    ByteLevel,
}

/// A compiled `decoder` entry of `tokenizer.json`.
#[derive(Debug, Default)]
pub(crate) struct TokenDecoder {
    ops: Vec<TokenOp>,
    /// Without any decoder, tokens are joined by spaces.
    join_with_space: bool,
    /// Cut this character from the start of the whole text, so many times at most.
    pub(crate) strip_start: Option<(char, usize)>,
}

impl TokenDecoder {
    /// Compiles a decoder; the error is the name of the part that has no streaming form.
    pub(crate) fn compile(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let mut this = Self::default();
        let Some(decoder) = decoder else {
            this.join_with_space = true;
            return Ok(this);
        };
        let mut steps = Vec::new();
        flatten(decoder, &mut steps);
        let mut fused = false;
        for step in steps {
            match step {
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(s) if fused => {
                    if s.stop != 0 || this.strip_start.is_some() {
                        return Err("Strip at the end of the text".to_owned());
                    }
                    this.strip_start = Some((s.content, s.start));
                }
                other if fused => return Err(format!("{} after Fuse", name(other))),
                DecoderWrapper::Strip(s) => {
                    this.ops.push(TokenOp::Strip { content: s.content, start: s.start, stop: s.stop })
                }
                DecoderWrapper::Replace(_) => {
                    this.ops.push(TokenOp::Replace(Box::new(step.clone())));
                }
                DecoderWrapper::Metaspace(m) => this.ops.push(TokenOp::Metaspace {
                    replacement: m.get_replacement(),
                    drop_first: m.get_prepend_scheme() != PrependScheme::Never,
                }),
                DecoderWrapper::ByteFallback(_) => this.ops.push(TokenOp::ByteFallback),
                DecoderWrapper::ByteLevel(_) => {
                    this.ops.push(TokenOp::ByteLevel);
                    fused = true;
                }
                other => return Err(name(other).to_owned()),
            }
        }
        Ok(this)
    }

    /// The bytes of a token; `first` says whether it is the first of its text.
    pub(crate) fn bytes(&self, token: &str, first: bool) -> Vec<u8> {
        if self.join_with_space {
            return if first { token.into() } else { format!(" {token}").into() };
        }
        let mut text = token.to_owned();
        for op in &self.ops {
            match op {
                TokenOp::Replace(replace) => {
                    // The only error is a pattern that gave up; then the token stays as it is.
                    if let Ok(parts) = replace.decode_chain(vec![text.clone()]) {
                        text = parts.concat();
                    }
                }
                TokenOp::Strip { content, start, stop } => text = strip(&text, *content, *start, *stop).to_owned(),
                TokenOp::Metaspace { replacement, drop_first } => {
                    let with = if first && *drop_first { "" } else { " " };
                    text = text.replace(*replacement, with);
                }
                TokenOp::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                TokenOp::ByteLevel => {
                    let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
                    // An added token with a character outside the alphabet stands for itself.
                    return bytes.unwrap_or_else(|| text.into_bytes());
                }
            }
        }
        text.into_bytes()
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, steps: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(s) => s.get_decoders().iter().for_each(|d| flatten(d, steps)),
        other => steps.push(other),
    }
}

fn name(decoder: &DecoderWrapper) -> &'static str {
    match decoder {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

fn strip(mut text: &str, content: char, start: usize, stop: usize) -> &str {
    for _ in 0..start {
        match text.strip_prefix(content) {
            Some(rest) => text = rest,
            None => break,
        }
    }
    for _ in 0..stop {
        match text.strip_suffix(content) {
            Some(rest) => text = rest,
            None => break,
        }
    }
    text
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The inverse of GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes sit at U+0100 upwards.
fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        v @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(v).ok(),
        v @ 0x100..=0x120 => u8::try_from(v - 0x100).ok(),
        v @ 0x121..=0x142 => u8::try_from(v - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tokenizers::decoders::byte_level::ByteLevel;

    #[test]
    fn byte_alphabet_is_a_bijection_and_the_librarys() {
        let alphabet = ByteLevel::alphabet();
        assert_eq!(alphabet.len(), 256);
        let bytes: HashSet<u8> = alphabet.iter().filter_map(|c| byte_of_char(*c)).collect();
        assert_eq!(bytes.len(), 256);
        for c in alphabet {
            let theirs = ByteLevel::default().decode_chain(vec![format!("a{c}")]).unwrap().concat();
            let ours = String::from_utf8_lossy(&[b'a', byte_of_char(c).unwrap()]).into_owned();
            assert_eq!(ours, theirs, "{c:?}");
        }
        assert_eq!(byte_of_char('▁'), None);
        assert_eq!(byte_of_char('\u{144}'), None);
    }

    #[test]
    fn fallback_tokens() {
        assert_eq!(fallback_byte("<0xE2>"), Some(0xE2));
        assert_eq!(fallback_byte("<0xe2>"), Some(0xE2));
        for other in ["<0xE2", "<0x>", "<0xE>", "<0xE22>", "<0xGG>", "<0x\u{e9}>", "x<0xE2>", ""] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }

    #[test]
    fn strip_never_cuts_more_than_there_is() {
        assert_eq!(strip("  a ", ' ', 1, 3), " a");
        assert_eq!(strip("  ", ' ', 3, 3), "");
        assert_eq!(strip("", ' ', 1, 1), "");
    }
}
