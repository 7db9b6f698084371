//! Mixed precision: rules that give some modules another width than the rest.

use std::collections::BTreeSet;

use crate::glob::matches;
use crate::quantization::{AFFINE_BITS, AFFINE_GROUPS};

/// What a rule does with the modules it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Quantise with these bits, in groups of this size (`None` = that of the other modules).
    Quantise {
        /// Bits of a code.
        bits: u8,
        /// Values that share a scale.
        group: Option<u16>,
    },
    /// Leave as floats.
    Keep,
}

/// One entry of a list of rules; of those that match a module the last one decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mixed {
    /// Modules whose whole path the pattern matches; `*` stands for any text.
    Pattern(String, Choice),
    /// The preset: more bits where few hurt most (see [`Mixed::applies`]).
    Sensitive,
}

/// Name of the preset.
pub const SENSITIVE: &str = "sensitive";

impl Mixed {
    /// Reads `PATTERN=BITS`, `PATTERN=BITS:GROUP`, `PATTERN=none`, or the name of the preset.
    ///
    /// # Errors
    /// A sentence that says what was expected and found.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == SENSITIVE {
            return Ok(Self::Sensitive);
        }
        let expected = || {
            format!(
                "{text:?}: expected PATTERN=BITS, PATTERN=BITS:GROUP, PATTERN=none or {SENSITIVE}, as in '*v_proj=6'"
            )
        };
        // The last sign, since a path may hold any other character.
        let (pattern, value) = text.rsplit_once('=').ok_or_else(expected)?;
        if pattern.is_empty() {
            return Err(expected());
        }
        if ["none", "bf16"].contains(&value) {
            return Ok(Self::Pattern(pattern.into(), Choice::Keep));
        }
        let (bits, group) = value.split_once(':').map_or((value, None), |(bits, group)| (bits, Some(group)));
        let one_of = |what: &str, found: &str, known: String| {
            format!("{text:?}: {what} expected to be one of {known}, found {found:?}")
        };
        let known = AFFINE_BITS.map(|bits| bits.to_string()).join(", ");
        let bits = bits
            .parse()
            .ok()
            .filter(|bits| AFFINE_BITS.contains(bits))
            .ok_or_else(|| one_of("BITS", bits, format!("{known}, none")))?;
        let known = AFFINE_GROUPS.map(|group| group.to_string()).join(", ");
        let group = group
            .map(|group| {
                let parsed = group.parse().ok().filter(|parsed| AFFINE_GROUPS.contains(parsed));
                parsed.ok_or_else(|| one_of("GROUP", group, known))
            })
            .transpose()?;
        Ok(Self::Pattern(pattern.into(), Choice::Quantise { bits, group }))
    }

    /// What this rule says of a module, if it says anything; `bits` is the width of the other modules.
    ///
    /// The preset follows mlx-lm's mixed recipes: the output matrix, and `v_proj` and `down_proj` of the first eighth,
    /// the last eighth and every third layer between, get more bits; and so does the embedding, which small tied models
    /// use as output matrix. "More" is 6 for up to 4 bits and else 8.
    pub fn applies(&self, module: &str, layers: usize, bits: u8) -> Option<Choice> {
        match self {
            Self::Pattern(pattern, choice) => matches(pattern, module).then_some(*choice),
            Self::Sensitive => {
                let last = module.rsplit('.').next().unwrap_or(module);
                let sensitive = match last {
                    "lm_head" | "embed_tokens" => true,
                    "v_proj" | "down_proj" => {
                        let layer = module.split('.').find_map(|part| part.parse::<usize>().ok());
                        layer.is_some_and(|layer| is_sensitive(layer, layers))
                    }
                    _ => false,
                };
                let more = if bits <= 4 { 6 } else { 8 };
                sensitive.then_some(Choice::Quantise { bits: more, group: None })
            }
        }
    }
}

fn is_sensitive(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The module paths most like a pattern, layer numbers as stars: for a message about a pattern that matches nothing.
pub(crate) fn near<'a>(pattern: &str, modules: impl Iterator<Item = &'a str>) -> Vec<String> {
    const NAMED: usize = 4;
    let general = |path: &str| {
        let parts: Vec<&str> =
            path.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part }).collect();
        parts.join(".")
    };
    let paths: BTreeSet<String> = modules.map(general).collect();
    let wanted = pattern.trim_matches('*').rsplit('.').find(|part| !part.contains('*')).unwrap_or(pattern);
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_string();
    let mut ranked: Vec<(usize, String)> =
        paths.into_iter().map(|path| (distance(wanted, &last(&path)), path)).collect();
    ranked.sort();
    ranked.into_iter().take(NAMED).map(|(_, path)| path).collect()
}

/// Levenshtein distance, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*b", "aab", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("*.down_proj", "model.layers.0.mlp.down_proj", true),
            ("*.layers.1.*", "model.layers.11.mlp", false),
            ("", "", true),
            ("", "a", false),
            ("**x", "x", true),
            ("*ab", "aab", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn rules_parse_or_say_what_they_are() {
        let quantise = |bits, group| Choice::Quantise { bits, group };
        assert_eq!(Mixed::parse("*v_proj=6"), Ok(Mixed::Pattern("*v_proj".into(), quantise(6, None))));
        assert_eq!(Mixed::parse("a=8:32"), Ok(Mixed::Pattern("a".into(), quantise(8, Some(32)))));
        assert_eq!(Mixed::parse("a=none"), Ok(Mixed::Pattern("a".into(), Choice::Keep)));
        assert_eq!(Mixed::parse("a=bf16"), Ok(Mixed::Pattern("a".into(), Choice::Keep)));
        assert_eq!(Mixed::parse("sensitive"), Ok(Mixed::Sensitive));
        for (bad, word) in [
            ("", "PATTERN"),
            ("x", "PATTERN"),
            ("=4", "PATTERN"),
            ("x=7", "BITS"),
            ("x=4:33", "GROUP"),
            ("x=4:", "GROUP"),
        ] {
            let message = Mixed::parse(bad).expect_err(bad);
            assert!(message.contains(word), "{bad}: {message}");
        }
    }

    #[test]
    fn the_preset_raises_the_ends_and_every_third() {
        let raised: Vec<usize> = (0..32)
            .filter(|layer| Mixed::Sensitive.applies(&format!("model.layers.{layer}.mlp.down_proj"), 32, 4).is_some())
            .collect();
        assert_eq!(raised, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        let applied = |module: &str, bits| Mixed::Sensitive.applies(module, 32, bits);
        assert_eq!(applied("lm_head", 3), Some(Choice::Quantise { bits: 6, group: None }));
        assert_eq!(applied("language_model.model.embed_tokens", 5), Some(Choice::Quantise { bits: 8, group: None }));
        assert_eq!(applied("model.layers.0.mlp.up_proj", 4), None);
        assert_eq!(applied("model.embed_tokens_per_layer", 4), None);
    }

    #[test]
    fn near_names_come_first() {
        let modules =
            ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"];
        assert_eq!(near("*.down_prj", modules.into_iter())[0], "model.layers.*.mlp.down_proj");
        assert_eq!(near("layers.3.*", modules.into_iter()).len(), 2);
        assert_eq!((distance("", "abc"), distance("kitten", "sitting")), (3, 3));
    }
}
