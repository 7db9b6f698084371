//! GGUF files: whole ones read back value by value, and damaged ones refused with a message that says what is wrong.

use std::path::Path;

use mlxcel_checkpoint::gguf::testing::{GgufBuilder, Item, TINY, tiny, tiny_values};
use mlxcel_checkpoint::gguf::{GgmlType, Value, header};
use mlxcel_checkpoint::{CheckpointError, Gguf};
use proptest::prelude::*;

fn open(file: &GgufBuilder) -> Result<Gguf, CheckpointError> {
    Gguf::from_bytes(Path::new("model.gguf"), file.bytes())
}

/// Everything that an import asks for.
fn import(file: &Gguf) -> Result<(), CheckpointError> {
    file.config()?;
    file.text_files()?;
    for (index, tensor) in file.tensors().iter().enumerate() {
        file.hf_name(index)?;
        file.read_rows(index, 0..tensor.rows(), &mut Vec::new())?;
    }
    Ok(())
}

fn refused(file: &GgufBuilder, parts: &[&str]) {
    let error = open(file).and_then(|file| import(&file)).expect_err(&format!("expected {parts:?}")).to_string();
    for part in parts.iter().chain(&["model.gguf"]) {
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

fn index(file: &Gguf, name: &str) -> usize {
    file.tensors().iter().position(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn all(file: &Gguf, name: &str) -> Vec<f32> {
    let index = index(file, name);
    let mut out = vec![9.0];
    file.read_rows(index, 0..file.tensors()[index].rows(), &mut out).unwrap();
    assert_eq!(out.remove(0), 9.0, "rows are appended");
    out
}

#[test]
fn whole_files_are_accepted() {
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let mut file = tiny(architecture);
        for version in [2, 3] {
            file.version = version;
            let opened = open(&file).unwrap();
            assert_eq!(opened.header().version, version);
            assert_eq!(opened.architecture(), architecture);
            import(&opened).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        }
        file.alignment = 64;
        file.set("general.alignment", 64u32);
        import(&open(&file).unwrap()).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, tiny("llama").bytes()).unwrap();
    import(&Gguf::open(&path).unwrap()).unwrap();
    let missing = Gguf::open(&dir.path().join("none.gguf")).unwrap_err().to_string();
    assert!(missing.contains("none.gguf"), "{missing}");
}

#[test]
fn names_are_those_of_the_original_checkpoint() {
    let names = |architecture| {
        let file = open(&tiny(architecture)).unwrap();
        (0..file.tensors().len()).map(|index| file.hf_name(index).unwrap().unwrap()).collect::<Vec<_>>()
    };
    let llama = names("llama");
    assert_eq!(
        llama[..11],
        [
            "model.embed_tokens.weight",
            "model.norm.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.v_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.0.mlp.down_proj.weight",
        ]
    );
    assert!(names("qwen2").contains(&"model.layers.1.self_attn.k_proj.bias".into()));
    assert!(names("qwen3").contains(&"model.layers.1.self_attn.q_norm.weight".into()));
    let gemma = names("gemma3");
    for norm in ["post_attention", "pre_feedforward", "post_feedforward"] {
        assert!(gemma.contains(&format!("model.layers.1.{norm}_layernorm.weight")), "{norm}");
    }
    let mut file = tiny("llama");
    file.singles("rope_freqs.weight", &[4], &[1.0; 4]).singles(
        "output.weight",
        &[263, 32],
        &tiny_values("o", 263 * 32),
    );
    let file = open(&file).unwrap();
    assert_eq!(file.hf_name(index(&file, "rope_freqs.weight")).unwrap(), None);
    assert_eq!(file.hf_name(index(&file, "output.weight")).unwrap().as_deref(), Some("lm_head.weight"));
    assert!(file.hf_name(10_000).is_err());
}

/// Rows of a projection as the converter orders them.
fn reorder(values: &[f32], width: usize, heads: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(width).collect();
    let dim = rows.len() / heads;
    let mut out = Vec::new();
    for head in 0..heads {
        for i in 0..dim / 2 {
            out.extend_from_slice(rows[head * dim + i]);
            out.extend_from_slice(rows[head * dim + dim / 2 + i]);
        }
    }
    out
}

#[test]
fn what_the_converter_did_is_undone() {
    let [_, hidden, heads, kv_heads, _, _] = TINY.map(|size| size as usize);
    let mut file = tiny("llama");
    let original = file.clone();
    for tensor in &mut file.tensors {
        let heads = match &tensor.name {
            name if name.contains("attn_q.") => heads,
            name if name.contains("attn_k.") => kv_heads,
            _ => continue,
        };
        let values = tiny_values(&tensor.name, tensor.shape.iter().product());
        tensor.data = reorder(&values, hidden, heads).iter().flat_map(|value| value.to_le_bytes()).collect();
    }
    assert_ne!(file.bytes(), original.bytes());
    let llama = open(&file).unwrap();
    for tensor in &original.tensors {
        let expected = tiny_values(&tensor.name, tensor.shape.iter().product());
        assert_eq!(all(&llama, &tensor.name), expected, "{}", tensor.name);
    }
    // Any range of rows is those rows.
    let q = index(&llama, "blk.1.attn_q.weight");
    let whole = all(&llama, "blk.1.attn_q.weight");
    for rows in [0..0, 0..1, 3..9, 5..32, 31..32, 32..32] {
        let mut part = Vec::new();
        llama.read_rows(q, rows.clone(), &mut part).unwrap();
        assert_eq!(part, whole[rows.start * hidden..rows.end * hidden], "{rows:?}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "a mistake to be refused")]
    for rows in [0..33, 33..33, 5..4] {
        let error = llama.read_rows(q, rows, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("blk.1.attn_q.weight") && error.contains("32"), "{error}");
    }
    // The planted mistake: a file whose rows were never reordered does not read back.
    let wrong = open(&original).unwrap();
    assert_ne!(all(&wrong, "blk.0.attn_q.weight"), tiny_values("blk.0.attn_q.weight", 32 * 32));
    // Other architectures keep their order.
    let qwen = open(&tiny("qwen3")).unwrap();
    assert_eq!(all(&qwen, "blk.0.attn_q.weight"), tiny_values("blk.0.attn_q.weight", 32 * 32));

    let gemma = open(&tiny("gemma3")).unwrap();
    for tensor in gemma.tensors() {
        let elements = tensor.shape.iter().product::<usize>() as u64;
        let less = if tensor.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let expected: Vec<f32> = tiny_values(&tensor.name, elements).iter().map(|value| value - less).collect();
        assert_eq!(all(&gemma, &tensor.name), expected, "{}", tensor.name);
    }
}

#[test]
fn biases_of_q_and_k_are_reordered_like_their_rows() {
    let mut file = tiny("llama");
    for block in 0..2 {
        for (name, length, heads) in [("attn_q", 32, 4), ("attn_k", 16, 2), ("attn_v", 16, 0), ("attn_output", 32, 0)] {
            let name = format!("blk.{block}.{name}.bias");
            let values = tiny_values(&name, length);
            let stored = if heads > 0 { reorder(&values, 1, heads) } else { values };
            file.singles(&name, &[length], &stored);
        }
    }
    let opened = open(&file).unwrap();
    assert_eq!(opened.config().unwrap()["attention_bias"], true);
    for (name, length) in [("blk.1.attn_q.bias", 32), ("blk.0.attn_k.bias", 16), ("blk.1.attn_v.bias", 16)] {
        assert_eq!(all(&opened, name), tiny_values(name, length), "{name}");
    }
    file.tensors.retain(|tensor| tensor.name != "blk.1.attn_output.bias");
    refused(&file, &["no tensor blk.1.attn_output.bias", "together"]);
}

#[test]
fn metadata_of_every_kind_is_read() {
    let mut file = tiny("llama");
    for (kind, bytes, expected) in [
        (0, vec![200], Value::Unsigned(200)),
        (1, vec![200], Value::Signed(-56)),
        (2, vec![1, 2], Value::Unsigned(513)),
        (3, vec![0, 255], Value::Signed(-256)),
        (4, vec![1, 0, 0, 128], Value::Unsigned(2_147_483_649)),
        (5, vec![1, 0, 0, 128], Value::Signed(-2_147_483_647)),
        (6, 1e-5f32.to_le_bytes().to_vec(), Value::Float32(1e-5)),
        (7, vec![1], Value::Bool(true)),
        (10, vec![255; 8], Value::Unsigned(u64::MAX)),
        (11, vec![255; 8], Value::Signed(-1)),
        (12, 0.1f64.to_le_bytes().to_vec(), Value::Float64(0.1)),
    ] {
        file.set("x", Item::Raw(kind, bytes));
        let opened = open(&file).unwrap();
        assert_eq!(opened.metadata("x"), Some(&expected), "kind {kind}");
        assert_eq!(opened.metadata("y"), None);
    }
    assert_eq!(Value::Float32(1e-5).as_f64(), Some(1e-5));
    file.set("x", Item::Nested(4));
    assert_eq!(open(&file).unwrap().metadata("x").unwrap().to_string(), "a list of 1 lists");
    let texts = vec!["a".to_owned(), String::new(), "日本".to_owned()];
    file.set("x", texts.clone());
    let opened = open(&file).unwrap();
    let list = opened.metadata("x").unwrap().as_array().unwrap();
    assert_eq!((list.len(), list.is_empty()), (3, false));
    assert_eq!(list.texts().unwrap().collect::<Vec<_>>(), texts);
    assert!(list.scalars().is_none());
}

/// One change of a whole file, and what the message must contain.
type Damage = (fn(&mut GgufBuilder), &'static [&'static str]);

#[test]
fn damaged_headers_are_refused() {
    let cases: &[Damage] = &[
        (|f| f.magic = *b"GGML", &["not a GGUF file", "GGML"]),
        (|f| f.magic = *b"tjgg", &["older GGML file"]),
        (|f| f.magic = *b"\x80\x02}q", &["not a GGUF file", "x80"]),
        (|f| f.version = 1, &["version 1", "expected 2 or 3"]),
        (|f| f.version = 4, &["version 4"]),
        (|f| f.version = 0, &["version 0"]),
        (|f| f.version = 3u32.swap_bytes(), &["big-endian"]),
        (|f| f.version = 2u32.swap_bytes(), &["big-endian"]),
        (|f| f.tensor_count = Some(u64::MAX), &["number of tensors is 18446744073709551615", "at most"]),
        (|f| f.tensor_count = Some(1 << 40), &["number of tensors", "at most"]),
        (|f| f.entry_count = Some(u64::MAX), &["number of metadata entries", "at most"]),
        (|f| f.entry_count = Some(3), &["tensor llama."]),
        (|f| _ = f.set("", 1u32), &["has no key"]),
        (|f| f.metadata.push(("general.architecture".into(), "llama".into())), &["\"general.architecture\"", "twice"]),
        (|f| _ = f.set("x", Item::Raw(13, vec![0; 8])), &["\"x\"", "kind 13"]),
        (|f| _ = f.set("x", Item::Raw(7, vec![2])), &["\"x\"", "boolean", "0 or 1"]),
        (
            |f| _ = f.set("x", Item::Raw(9, [&[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..], &[1, 3]].concat())),
            &["\"x\"", "[3]"],
        ),
        (|f| _ = f.set("x", Item::Nested(5)), &["\"x\"", "lists inside lists"]),
        (|f| _ = f.set("x", Item::Nested(100_000)), &["\"x\"", "lists inside lists"]),
        // A string, and lists, that claim more than there is.
        (|f| _ = f.set("x", Item::Raw(8, vec![255; 8])), &["truncated", "\"x\""]),
        (|f| _ = f.set("x", Item::Raw(8, (1u64 << 40).to_le_bytes().to_vec())), &["truncated", "\"x\""]),
        (|f| _ = f.set("x", Item::Raw(9, [vec![8, 0, 0, 0], vec![255; 8]].concat())), &["length of metadata \"x\""]),
        (|f| _ = f.set("x", Item::Raw(9, [vec![0, 0, 0, 0], vec![255; 8]].concat())), &["length of metadata \"x\""]),
        (|f| _ = f.set("x", Item::Raw(9, [vec![12, 0, 0, 0], vec![0, 0, 0, 0, 0, 0, 0, 32]].concat())), &["\"x\""]),
        (|f| _ = f.set("x", Item::Raw(9, [vec![99, 0, 0, 0], vec![0; 8]].concat())), &["\"x\"", "kind 99"]),
        (|f| _ = f.set("x", Item::Raw(8, vec![2, 0, 0, 0, 0, 0, 0, 0, 0xC3, 0x28])), &["\"x\"", "UTF-8"]),
        (|f| _ = f.set("general.alignment", 0u32), &["general.alignment is 0", "power of two"]),
        (|f| _ = f.set("general.alignment", 48u32), &["general.alignment is 48"]),
        (|f| _ = f.set("general.alignment", "32"), &["general.alignment is \"32\""]),
        (|f| _ = f.set("general.alignment", Item::U64(1 << 63)), &["token_embd.weight"]),
        (|f| _ = f.set("split.count", 3u32), &["one of 3 parts", "merge"]),
        (
            |f| _ = f.set("general.architecture", "mamba"),
            &["unsupported architecture \"mamba\"", "llama, qwen2, qwen3, gemma3"],
        ),
        (|f| _ = f.unset("general.architecture"), &["general.architecture is absent"]),
        (|f| _ = f.set("general.architecture", 3u32), &["general.architecture is 3", "a string"]),
    ];
    for (number, (damage, parts)) in cases.iter().enumerate() {
        let mut file = tiny("llama");
        damage(&mut file);
        println!("case {number}");
        refused(&file, parts);
    }
    for (bytes, part) in [
        (&b""[..], "truncated GGUF file: the magic number"),
        (b"GGU", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04aaaaaaaaaaaa", "zip archive"),
    ] {
        let error = Gguf::from_bytes(Path::new("f"), bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn damaged_tensors_are_refused() {
    let cases: &[Damage] = &[
        (|f| f.tensors[3].kind = 16, &["blk.0.attn_q.weight", "IQ2_XXS", "Q4_K"]),
        (|f| f.tensors[3].kind = 99, &["blk.0.attn_q.weight", "number 99"]),
        (|f| f.tensors[3].kind = 10, &["Q2_K"]),
        (|f| f.tensors[3].kind = 24, &["I8"]),
        (|f| f.tensors[3].shape = vec![], &["blk.0.attn_q.weight", "0 dimensions", "1 to 4"]),
        (|f| f.tensors[3].shape = vec![1; 5], &["5 dimensions"]),
        (|f| f.tensors[3].shape = vec![32, 0], &["a dimension of 0"]),
        (|f| f.tensors[3].shape = vec![1 << 40, 1 << 40], &["more bytes than fit 64 bits"]),
        (|f| f.tensors[3].shape = vec![1 << 63], &["more bytes than fit 64 bits"]),
        (|f| f.tensors[3].shape = vec![1 << 62], &["more bytes than fit 64 bits"]),
        (
            |f| f.tensors[3].shape = vec![1 << 61],
            &["truncated tensor blk.0.attn_q.weight", "9223372036854775808 bytes"],
        ),
        (|f| f.tensors[3].shape = vec![1 << 50], &["truncated tensor blk.0.attn_q.weight", "4503599627370496 bytes"]),
        (
            |f| (f.tensors[3].kind, f.tensors[3].shape) = (2, vec![32, 48]),
            &["rows of 48 elements", "multiple of 32", "Q4_0"],
        ),
        (|f| f.tensors[3].kind = 12, &["rows of 32 elements", "multiple of 256", "Q4_K"]),
        (|f| f.tensors[3].name = String::new(), &["empty name"]),
        (|f| f.tensors[3].name = "blk.0.attn_k.weight".into(), &["blk.0.attn_k.weight", "twice"]),
        (|f| f.tensors[3].offset = Some(8), &["blk.0.attn_q.weight", "offset 8", "alignment 32"]),
        (|f| f.tensors[3].offset = Some(u64::MAX - 31), &["blk.0.attn_q.weight", "64 bits"]),
        (|f| f.tensors[3].offset = Some(1 << 40), &["truncated tensor blk.0.attn_q.weight", "found 0"]),
        (|f| f.tensors[3].offset = Some(0), &["inside tensor", "token_embd.weight"]),
        (|f| f.tensors[1].shape = vec![64], &["inside tensor output_norm.weight"]),
        (
            |f| _ = f.tensors.last_mut().unwrap().data.pop(),
            &["truncated tensor blk.1.ffn_down.weight", "expected 6144 bytes, found 6143"],
        ),
        (|f| f.tensors[3].shape = vec![30, 32], &["blk.0.attn_q.weight", "30 rows", "multiple of 8"]),
        (|f| f.tensors[3].shape = vec![24, 32], &["blk.0.attn_q.weight", "expected 32 rows"]),
        (|f| f.tensors[3].shape = vec![2, 16, 32], &["blk.0.attn_q.weight", "expected 32 rows"]),
        (
            |f| f.tensors[3].name = "blk.0.attn_qkv.weight".into(),
            &["no tensor blk.0.attn_q.weight", "block_count is 2"],
        ),
        (
            |f| _ = f.singles("blk.0.attn_sub_norm.weight", &[1], &[1.0]),
            &["blk.0.attn_sub_norm.weight", "not known", "llama"],
        ),
        (|f| _ = f.singles("blk.2.attn_norm.weight", &[1], &[1.0]), &["blk.2.attn_norm.weight", "not known"]),
        (|f| _ = f.singles("blk.01.attn_norm.weight", &[1], &[1.0]), &["blk.01.attn_norm.weight", "not known"]),
        (|f| _ = f.singles("blk.0.attn_norm.bias", &[1], &[1.0]), &["blk.0.attn_norm.bias", "not known"]),
        (|f| _ = f.tensors.remove(0), &["no tensor token_embd.weight"]),
        (|f| f.tensors.clear(), &["no tensor token_embd.weight"]),
        (|f| _ = f.tensors.pop(), &["no tensor blk.1.ffn_down.weight"]),
    ];
    for (number, (damage, parts)) in cases.iter().enumerate() {
        let mut file = tiny("llama");
        damage(&mut file);
        println!("case {number}");
        refused(&file, parts);
    }
}

/// Every length short of the whole, of the header and of the first and last tensors.
#[test]
fn every_truncation_is_reported() {
    let file = tiny("llama");
    let whole = file.bytes();
    let header: usize =
        whole.len() - file.tensors.iter().map(|tensor| tensor.data.len().next_multiple_of(32)).sum::<usize>();
    for cut in (0..header + 100).chain(whole.len() - 100..whole.len()) {
        let error = Gguf::from_bytes(Path::new("f"), whole[..cut].to_vec()).unwrap_err().to_string();
        let counted = error.contains("room for at most");
        assert!(counted || (error.contains("truncated") && error.contains("download again")), "cut at {cut}: {error}");
        if cut >= whole.len() - 100 {
            assert!(error.contains("blk.1.ffn_down.weight") && error.contains("expected 6144 bytes"), "{error}");
        }
    }
    // Padding after the last tensor is ordinary.
    let longer = [&whole[..], &[0; 40]].concat();
    assert!(Gguf::from_bytes(Path::new("f"), longer).is_ok());
}

proptest! {
    /// Whatever happens to some bytes of the header: an error or an import, never a panic.
    #[test]
    fn changed_bytes_never_panic(
        architecture in prop::sample::select(vec!["llama", "qwen2", "qwen3", "gemma3"]),
        changes in prop::collection::vec((0usize..12_000, any::<u8>()), 1..4),
    ) {
        let mut bytes = tiny(architecture).bytes();
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        if let Ok(file) = Gguf::from_bytes(Path::new("f"), bytes) {
            let _ = import(&file);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = header::parse(&[&b"GGUF\x03\0\0\0"[..], &bytes].concat().into());
    }
}

#[test]
fn types_have_their_numbers_and_sizes() {
    for kind in GgmlType::ALL {
        assert_eq!(GgmlType::from_number(kind.number()), Some(kind));
    }
    assert_eq!(GgmlType::from_number(9), None);
    assert_eq!(GgmlType::from_number(u32::MAX), None);
}
