//! Which files of a repository are pulled.

use crate::glob;
use crate::store::ManifestFile;

/// Files of a checkpoint besides its weights, by name, in the root of the repository.
const SMALL: [&str; 20] = [
    "config.json",
    "generation_config.json",
    "*.safetensors.index.json",
    "tokenizer*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.jinja",
    "additional_chat_templates/*",
    "preprocessor_config.json",
    "*processor_config.json",
    "README.md",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
];

/// What is wanted of a repository.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Patterns of the files wanted besides the small ones; none: the safetensors files in the root.
    pub include: Vec<Pattern>,
    /// Patterns of files not wanted, whatever else says so.
    pub exclude: Vec<Pattern>,
}

impl Selection {
    /// True when the file is wanted. `others` are all files of the repository: where `model*.safetensors` exist, other weights
    /// in the root are second copies in another layout.
    pub fn wants(&self, path: &str, others: &[ManifestFile]) -> bool {
        if self.exclude.iter().any(|pattern| pattern.matches(path)) {
            return false;
        }
        if is_small(path) || self.include.iter().any(|pattern| pattern.matches(path)) {
            return true;
        }
        self.include.is_empty()
            && is_weights(path)
            && (!path.starts_with("consolidated")
                || !others.iter().any(|f| is_weights(&f.path) && f.path.starts_with("model")))
    }
}

fn is_small(path: &str) -> bool {
    // Weights in formats not read here also come as tokenizer.bin and the like.
    let foreign = [".bin", ".pt", ".pth", ".onnx", ".gguf"].iter().any(|ending| path.ends_with(ending));
    SMALL.iter().any(|pattern| {
        let depth = |text: &str| text.matches('/').count();
        depth(pattern) == depth(path) && glob::matches(pattern, path)
    }) && !foreign
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/')
}

/// A pattern of file names as shells and the hub's own tools have them: `*` any characters, slashes too; `?` any one;
/// `[abc]`, `[a-z]`, `[!abc]` one of, or none of, a set. It must match a whole path, or the part of one after its last slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// The pattern as it was typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True when the path is meant.
    pub fn matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        glob::matches(&self.0, path) || (!self.0.contains('/') && glob::matches(&self.0, name))
    }
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 1024 {
            return Err(format!("a pattern of 1 to 1024 characters expected, found {}", text.len()));
        }
        Ok(Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Digest;

    #[test]
    fn patterns_match_names_in_any_directory() {
        let pattern: Pattern = "*.gguf".parse().expect("pattern");
        assert!(pattern.matches("q8/model.gguf") && pattern.matches("model.gguf") && !pattern.matches("model.bin"));
        let pattern: Pattern = "config.json".parse().expect("pattern");
        assert!(pattern.matches("sub/config.json"));
        let pattern: Pattern = "q8/*".parse().expect("pattern");
        assert!(pattern.matches("q8/a") && !pattern.matches("x/q8/a"));
        assert!("".parse::<Pattern>().is_err());
    }

    #[test]
    fn the_default_is_a_checkpoint() {
        let names = [
            ("config.json", true),
            ("model-00001-of-00002.safetensors", true),
            ("model.safetensors.index.json", true),
            ("tokenizer.json", true),
            ("tokenizer_config.json", true),
            ("chat_template.jinja", true),
            ("additional_chat_templates/tools.jinja", true),
            ("video_preprocessor_config.json", true),
            ("processor_config.json", true),
            ("vocab.json", true),
            ("merges.txt", true),
            ("README.md", true),
            ("LICENSE.txt", true),
            ("consolidated.safetensors", false),
            ("original/model.safetensors", false),
            ("sub/config.json", false),
            ("pytorch_model.bin", false),
            ("tokenizer.bin", false),
            ("model.gguf", false),
            ("onnx/model.onnx", false),
            (".gitattributes", false),
            ("picture.png", false),
        ];
        let hash: Digest = format!("git:{}", "0".repeat(40)).parse().expect("hash");
        let files: Vec<_> = names
            .iter()
            .map(|(path, _)| ManifestFile { path: path.to_string(), size: 1, hash: hash.clone() })
            .collect();
        let selection = Selection::default();
        for (path, wanted) in names {
            assert_eq!(selection.wants(path, &files), wanted, "{path}");
        }
        assert!(selection.wants("consolidated.safetensors", &files[..1]), "the only weights");
        let gguf = Selection {
            include: vec!["*.gguf".parse().expect("pattern")],
            exclude: vec!["README*".parse().expect("pattern")],
        };
        for (path, wanted) in [
            ("model.gguf", true),
            ("config.json", true),
            ("model-00001-of-00002.safetensors", false),
            ("README.md", false),
        ] {
            assert_eq!(gguf.wants(path, &files), wanted, "{path}");
        }
    }
}
