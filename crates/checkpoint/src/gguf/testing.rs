//! Writing GGUF files, for tests: valid ones, and ones broken on purpose. Nothing is checked.

/// A metadata value to be written.
#[derive(Clone, Debug)]
pub enum Item {
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 32 bits.
    I32(i32),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// A single.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list of strings.
    Texts(Vec<String>),
    /// A list of signed integers of 32 bits.
    I32s(Vec<i32>),
    /// A list of singles.
    F32s(Vec<f32>),
    /// A list of booleans.
    Bools(Vec<bool>),
    /// A list of lists of … of no integers, so many deep.
    Nested(usize),
    /// A kind and its bytes, whatever they are.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u32> for Item {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<f32> for Item {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl From<bool> for Item {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<Vec<String>> for Item {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

impl Item {
    fn write(&self, out: &mut Vec<u8>) {
        let list = |out: &mut Vec<u8>, kind: u32, length: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((length as u64).to_le_bytes());
        };
        let scalar = |out: &mut Vec<u8>, kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U32(number) => scalar(out, 4, &number.to_le_bytes()),
            Self::I32(number) => scalar(out, 5, &number.to_le_bytes()),
            Self::U64(number) => scalar(out, 10, &number.to_le_bytes()),
            Self::F32(number) => scalar(out, 6, &number.to_le_bytes()),
            Self::Bool(flag) => scalar(out, 7, &[u8::from(*flag)]),
            Self::Raw(kind, bytes) => scalar(out, *kind, bytes),
            Self::Text(text) => {
                out.extend(8u32.to_le_bytes());
                write_text(out, text.as_bytes());
            }
            Self::Texts(texts) => {
                list(out, 8, texts.len());
                texts.iter().for_each(|text| write_text(out, text.as_bytes()));
            }
            Self::I32s(numbers) => {
                list(out, 5, numbers.len());
                numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            Self::F32s(numbers) => {
                list(out, 6, numbers.len());
                numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            Self::Bools(flags) => {
                list(out, 7, flags.len());
                out.extend(flags.iter().map(|flag| u8::from(*flag)));
            }
            Self::Nested(depth) => {
                out.extend(9u32.to_le_bytes());
                for _ in 1..*depth {
                    out.extend(9u32.to_le_bytes());
                    out.extend(1u64.to_le_bytes());
                }
                out.extend(4u32.to_le_bytes());
                out.extend(0u64.to_le_bytes());
            }
        }
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct RawTensor {
    /// Its name.
    pub name: String,
    /// Dimensions, slowest first; the file has them reversed.
    pub shape: Vec<u64>,
    /// Number of its type.
    pub kind: u32,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its offset, when it is not where its data was put.
    pub offset: Option<u64>,
}

/// A file in the making. Every field may be set to nonsense.
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    /// The first four bytes.
    pub magic: [u8; 4],
    /// The version.
    pub version: u32,
    /// The number of tensors stated, when it is not their number.
    pub tensor_count: Option<u64>,
    /// The number of metadata entries stated, when it is not their number.
    pub entry_count: Option<u64>,
    /// Alignment of the data; not written to the metadata.
    pub alignment: usize,
    /// Metadata, in order.
    pub metadata: Vec<(String, Item)>,
    /// Tensors, in order.
    pub tensors: Vec<RawTensor>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufBuilder {
    /// Adds a metadata entry, or replaces the value of one.
    pub fn set(&mut self, key: &str, item: impl Into<Item>) -> &mut Self {
        let item = item.into();
        match self.metadata.iter_mut().find(|(other, _)| other == key) {
            Some((_, value)) => *value = item,
            None => self.metadata.push((key.into(), item)),
        }
        self
    }

    /// Removes a metadata entry.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(other, _)| other != key);
        self
    }

    /// Adds a tensor of singles.
    pub fn singles(&mut self, name: &str, shape: &[u64], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, 0, data)
    }

    /// Adds a tensor of a type's number.
    pub fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, data: Vec<u8>) -> &mut Self {
        self.tensors.push(RawTensor { name: name.into(), shape: shape.into(), kind, data, offset: None });
        self
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, item) in &self.metadata {
            write_text(&mut out, key.as_bytes());
            item.write(&mut out);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            write_text(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }
}

/// Sizes of [`tiny`]: layers, hidden size, heads, key and value heads, size of a head, feed-forward width.
pub const TINY: [u64; 6] = [2, 32, 4, 2, 8, 48];

/// A value for each element of a tensor that differs between elements and between tensors, exact in every float type.
pub fn tiny_values(name: &str, elements: u64) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    (0..elements as u32).map(|i| ((seed ^ i.wrapping_mul(2_654_435_761)) >> 24) as f32 / 64.0 - 2.0).collect()
}

/// GPT-2's characters for the 256 bytes.
pub fn byte_characters() -> Vec<String> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    let characters = (0..256).map(|byte| if printable(&byte) { byte } else { others.next().unwrap_or(byte) });
    characters.filter_map(char::from_u32).map(String::from).collect()
}

/// A whole model of an architecture: `llama` and `qwen2`, `qwen3` with a byte-level vocabulary, `gemma3` with a
/// SentencePiece one. Every tensor holds [`tiny_values`] of its name.
pub fn tiny(architecture: &str) -> GgufBuilder {
    let [blocks, hidden, heads, kv_heads, dim, width] = TINY;
    let mut file = GgufBuilder::default();
    let file_ref = &mut file;
    file_ref.set("general.architecture", architecture);
    let mut size = |key: &str, number: u64| _ = file_ref.set(&format!("{architecture}.{key}"), number as u32);
    size("block_count", blocks);
    size("context_length", 512);
    size("embedding_length", hidden);
    size("feed_forward_length", width);
    size("attention.head_count", heads);
    size("attention.head_count_kv", kv_heads);
    file.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    file.set(&format!("{architecture}.rope.freq_base"), 10_000.0f32);
    let vocabulary = if architecture == "gemma3" {
        file.set("gemma3.attention.key_length", dim as u32).set("gemma3.attention.sliding_window", 16u32);
        sentencepiece_vocabulary(&mut file)
    } else {
        byte_level_vocabulary(&mut file, if architecture == "llama" { "smollm" } else { "qwen2" })
    };

    let mut add = |name: String, shape: &[u64]| {
        let values = tiny_values(&name, shape.iter().product());
        file.singles(&name, shape, &values);
    };
    add("token_embd.weight".into(), &[vocabulary, hidden]);
    add("output_norm.weight".into(), &[hidden]);
    for block in 0..blocks {
        let mut add = |name: &str, shape: &[u64]| add(format!("blk.{block}.{name}"), shape);
        add("attn_norm.weight", &[hidden]);
        add("attn_q.weight", &[heads * dim, hidden]);
        add("attn_k.weight", &[kv_heads * dim, hidden]);
        add("attn_v.weight", &[kv_heads * dim, hidden]);
        add("attn_output.weight", &[hidden, heads * dim]);
        add("ffn_norm.weight", &[hidden]);
        add("ffn_gate.weight", &[width, hidden]);
        add("ffn_up.weight", &[width, hidden]);
        add("ffn_down.weight", &[hidden, width]);
        match architecture {
            "qwen2" => {
                add("attn_q.bias", &[heads * dim]);
                add("attn_k.bias", &[kv_heads * dim]);
                add("attn_v.bias", &[kv_heads * dim]);
            }
            "qwen3" | "gemma3" => {
                add("attn_q_norm.weight", &[dim]);
                add("attn_k_norm.weight", &[dim]);
            }
            _ => {}
        }
        if architecture == "gemma3" {
            add("post_attention_norm.weight", &[hidden]);
            add("post_ffw_norm.weight", &[hidden]);
        }
    }
    file
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).into()).collect()
}

fn byte_level_vocabulary(file: &mut GgufBuilder, pre: &str) -> u64 {
    let merges = strings(&["h e", "l l", "he ll", "hell o"]);
    let mut tokens = strings(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
    tokens.extend(byte_characters());
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let count = tokens.len();
    let types = (0..count).map(|id| if id < 3 { 3 } else { 1 }).collect();
    file.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
    file.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", Item::I32s(types));
    file.set("tokenizer.ggml.merges", merges);
    file.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    file.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
    count as u64
}

fn sentencepiece_vocabulary(file: &mut GgufBuilder) -> u64 {
    let mut tokens = strings(&["<pad>", "<eos>", "<bos>", "<unk>"]);
    let mut types = vec![3, 3, 3, 2];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    types.extend([6; 256]);
    // The converter writes this one as spaces.
    tokens.push("  ".into());
    types.push(4);
    let pieces = strings(&["\u{2581}h", "el", "el\u{2581}", "\u{2581}", "h", "e", "l", "o"]);
    types.extend(vec![1; pieces.len()]);
    tokens.extend(pieces);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let count = tokens.len();
    file.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
    file.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", Item::I32s(types));
    file.set("tokenizer.ggml.scores", Item::F32s(scores));
    for (key, id) in [("bos", 2u32), ("eos", 1), ("unknown", 3), ("padding", 0)] {
        file.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    file.set("tokenizer.ggml.add_space_prefix", false);
    count as u64
}
