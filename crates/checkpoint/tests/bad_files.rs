//! Damaged, incomplete and inconsistent weight files: each is refused with a message that says what to do.

mod common;

use std::path::Path;

use common::{Copy, assert_error, shard_name, walk};
use mlxcel_checkpoint::header::HeaderError;
use mlxcel_checkpoint::testing::{safetensors_bytes, with_header, write_checkpoint, write_safetensors};
use mlxcel_checkpoint::{Checkpoint, CheckpointError, SafetensorsFile, Weights, parse_header};
use serde_json::json;
use tempfile::tempdir;

fn small() -> Vec<u8> {
    safetensors_bytes(&[
        ("a", "F32", &[2, 3], &[1; 24]),
        ("empty", "F32", &[0, 3], &[]),
        ("b", "U8", &[5], &[2; 5]),
        ("c", "BF16", &[4], &[3; 8]),
    ])
}

#[test]
fn a_whole_file_is_accepted() {
    let file = small();
    let header = parse_header(&file).unwrap();
    let names: Vec<_> = header.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "empty", "b", "c"]);
    assert_eq!(header.entries[3].range, file.len() - 8..file.len());
    // Unaligned data and non-ASCII names are ordinary.
    let odd = safetensors_bytes(&[("ü", "U8", &[1], &[9]), ("x", "F32", &[1], &[0, 0, 128, 63])]);
    assert_eq!(parse_header(&odd).unwrap().entries[0].name, "ü");
}

/// Every length short of the whole: in the length field, the header, each tensor.
#[test]
fn every_truncation_is_reported() {
    let file = small();
    for cut in 0..file.len() {
        let error = parse_header(&file[..cut]).unwrap_err();
        match error {
            HeaderError::TooShort { found } => assert!(cut < 8 && found == cut as u64),
            HeaderError::Truncated { expected, found } => {
                assert!(cut >= 8 && found == cut as u64 && expected > found && expected <= file.len() as u64);
            }
            other => panic!("cut at {cut}: {other}"),
        }
        let message = error.to_string();
        assert!(message.contains("download again") && message.contains(&cut.to_string()), "{message}");
    }
    let mut longer = file.clone();
    longer.push(0);
    assert_eq!(
        parse_header(&longer).unwrap_err(),
        HeaderError::Trailing { expected: file.len() as u64, found: file.len() as u64 + 1 }
    );
}

#[test]
fn a_truncated_checkpoint_names_file_and_bytes() {
    let dir = tempdir().unwrap();
    Copy::of("dense-mlx-q4").write(dir.path());
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let half = whole.len() / 2;
    std::fs::write(&path, &whole[..half]).unwrap();
    let (expected, found) = (format!("expected {} bytes", whole.len()), format!("found {half}"));
    assert_error(Checkpoint::open(dir.path()), &["model.safetensors", &expected, &found, "download again"]);
    std::fs::write(&path, []).unwrap();
    assert_error(Checkpoint::open(dir.path()), &["model.safetensors", "found 0"]);
}

#[test]
fn bad_headers_are_reported() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = |dtype, shape, offsets| format!(r#"{{"w":{}}}"#, entry(dtype, shape, offsets));
    let (a, b) = (entry("U8", "[8]", "[0,8]"), entry("U8", "[8]", "[8,16]"));
    for (header, data, part) in [
        (String::new(), 0, "begin with '{'"),
        ("[]".into(), 0, "begin with '{'"),
        ("{".into(), 0, "EOF"),
        ("{\"w\":3}".into(), 0, "tensor w"),
        ("{\"w\":{}}".into(), 0, "dtype"),
        (one("U8", "[8]", "[0]"), 8, "tensor w"),
        (one("U8", "[-8]", "[0,8]"), 8, "tensor w"),
        (one("U8", "[8.5]", "[0,8]"), 8, "tensor w"),
        (one("U8", "8", "[0,8]"), 8, "tensor w"),
        (one("U8", "[8]", "[8,0]"), 8, "backwards"),
        (one("F32", "[8]", "[0,8]"), 8, "takes 32 bytes, data_offsets give 8"),
        (one("F64", "[8]", "[0,8]"), 8, "takes 64 bytes"),
        (one("U8", "[4294967296,4294967296]", "[0,8]"), 8, "64 bits"),
        (one("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, "64 bits"),
        (one("F32", "[9223372036854775807]", "[0,8]"), 8, "takes more bytes"),
        (one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "17 dimensions"),
        (one("U8", "[8]", "[1,9]"), 9, "gap"),
        (format!(r#"{{"a":{a},"b":{}}}"#, entry("U8", "[8]", "[4,12]")), 12, "overlaps"),
        (format!(r#"{{"a":{a},"b":{a}}}"#), 8, "overlaps"),
        (format!(r#"{{"a":{a},"b":{}}}"#, entry("U8", "[8]", "[9,17]")), 17, "gap"),
        (format!(r#"{{"a":{a},"a":{b}}}"#), 16, "listed twice"),
        (one("U8", "[8]", "[0,18446744073709551615]"), 8, "expected 18446744073709551615 bytes"),
    ] {
        let error = parse_header(&with_header(&header, &vec![0; data])).expect_err(&header).to_string();
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

/// A damaged length field must not lead to an allocation of that size.
#[test]
fn absurd_header_lengths_are_refused() {
    for length in [1u64 << 60, u64::MAX, 100_000_001] {
        let mut file = small();
        file[..8].copy_from_slice(&length.to_le_bytes());
        assert_eq!(parse_header(&file).unwrap_err(), HeaderError::HeaderTooLong { found: length });
    }
    let mut file = small();
    file[..8].copy_from_slice(&99_999_999u64.to_le_bytes());
    let found = file.len() as u64;
    assert_eq!(parse_header(&file).unwrap_err(), HeaderError::Truncated { expected: 100_000_007, found });
}

#[test]
fn an_lfs_pointer_is_recognised() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    assert_eq!(parse_header(pointer).unwrap_err(), HeaderError::LfsPointer);
}

#[test]
fn unsupported_dtypes_matter_only_when_asked_for() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let tensors: [(&str, &str, &[usize], &[u8]); 5] = [
        ("double", "F64", &[2], &[0; 16]),
        ("flags", "BOOL", &[3], &[0; 3]),
        ("fp8", "F8_E4M3", &[4], &[0; 4]),
        ("future", "F3_SURPRISE", &[7], &[0; 3]),
        ("fine", "F32", &[1], &[0; 4]),
    ];
    write_safetensors(&path, &tensors);
    let file = SafetensorsFile::open(&path).unwrap();
    for (index, (name, dtype, ..)) in tensors.iter().enumerate().take(4) {
        assert_eq!(file.entries()[index].dtype.name(), *dtype);
        assert_error(file.tensor(index), &["x.safetensors", name, dtype, "expected F32"]);
    }
    assert_eq!(file.tensor(4).unwrap().data.len(), 4);
}

#[test]
fn bad_directories_are_reported() {
    let dir = tempdir().unwrap();
    let root = dir.path();
    assert_error(Checkpoint::open(&root.join("none")), &["none", "no such directory"]);
    assert_error(Checkpoint::open(root), &["no config.json"]);
    std::fs::write(root.join("file"), "").unwrap();
    assert_error(Checkpoint::open(&root.join("file")), &["file", "not a directory"]);
    for (text, part) in [("", "empty file"), ("{\"a\":", "invalid JSON"), ("[1]", "expected an object")] {
        std::fs::write(root.join("config.json"), text).unwrap();
        assert_error(Checkpoint::open(root), &["config.json", part]);
    }
    std::fs::write(root.join("config.json"), "{}").unwrap();
    assert!(matches!(Checkpoint::open(root), Err(CheckpointError::NoWeights { .. })));
    std::fs::create_dir(root.join("model.safetensors")).unwrap();
    assert_error(Checkpoint::open(root), &["model.safetensors"]);
    std::fs::remove_dir(root.join("model.safetensors")).unwrap();
    write_safetensors(&root.join("model.safetensors"), &[]);
    assert_error(walk(root), &["model_type", "absent", "gemma4"]);
    std::fs::write(root.join("generation_config.json"), "{").unwrap();
    assert_error(Checkpoint::open(root), &["generation_config.json", "invalid JSON"]);
}

fn sharded(shards: usize) -> tempfile::TempDir {
    let dir = tempdir().unwrap();
    Copy::of("dense-mlx-q4").write_shards(dir.path(), shards);
    dir
}

fn edit_index(dir: &Path, edit: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn shards_with_and_without_an_index() {
    let dir = sharded(3);
    let whole = walk(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(walk(dir.path()).unwrap().len(), whole.len());
    // Test vectors and adapters beside the model are not its weights.
    write_safetensors(&dir.path().join("golden.safetensors"), &[("stray", "U8", &[1], &[0])]);
    assert_eq!(walk(dir.path()).unwrap().len(), whole.len());
}

#[test]
fn files_of_any_name_serve_when_none_is_called_model() {
    let dir = tempdir().unwrap();
    Copy::of("dense").write(dir.path());
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("weights.safetensors")).unwrap();
    walk(dir.path()).unwrap();
}

#[test]
fn missing_shards_are_all_listed() {
    let dir = sharded(4);
    for shard in [1, 3] {
        std::fs::remove_file(dir.path().join(shard_name(shard, 4))).unwrap();
    }
    let parts = ["2 weight file(s) missing", &shard_name(1, 4), &shard_name(3, 4), "index.json"];
    assert_error(Checkpoint::open(dir.path()), &parts);
    // The names alone tell it too.
    std::fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    assert_error(Checkpoint::open(dir.path()), &["2 weight file(s) missing", &shard_name(1, 4), &shard_name(3, 4)]);
}

#[test]
fn a_stale_index_is_recognised() {
    let dir = sharded(2);
    for shard in 0..2 {
        let renamed = dir.path().join(format!("weights-{shard}.safetensors"));
        std::fs::rename(dir.path().join(shard_name(shard, 2)), renamed).unwrap();
    }
    let parts = ["stale", &shard_name(0, 2), &shard_name(1, 2), "weights-0.safetensors", "weights-1.safetensors"];
    assert_error(Checkpoint::open(dir.path()), &parts);
}

#[test]
fn an_index_that_names_an_absent_tensor_is_refused() {
    let dir = sharded(2);
    edit_index(dir.path(), |map| {
        map.insert("language_model.model.ghost.weight".into(), json!(shard_name(1, 2)));
    });
    assert_error(Checkpoint::open(dir.path()), &["language_model.model.ghost.weight", &shard_name(1, 2)]);
}

#[test]
fn an_index_cannot_leave_the_directory() {
    for shard in ["../model.safetensors", "/etc/passwd", "a/../../b", "..", "", "..\\x", "."] {
        let dir = sharded(2);
        edit_index(dir.path(), |map| {
            map.insert("x".into(), json!(shard));
        });
        let result = Checkpoint::open(dir.path());
        assert!(matches!(result, Err(CheckpointError::ShardEscapes { .. })), "{shard:?}: {result:?}");
    }
    let dir = sharded(2);
    edit_index(dir.path(), |map| {
        map.insert("x".into(), json!(3));
    });
    assert_error(Checkpoint::open(dir.path()), &["weight_map.x", "3", "a file name"]);
    edit_index(dir.path(), |map| map.clear());
    assert_error(Checkpoint::open(dir.path()), &["weight_map", "at least one tensor"]);
    std::fs::write(dir.path().join("model.safetensors.index.json"), "{}").unwrap();
    assert_error(Checkpoint::open(dir.path()), &["weight_map", "an object of tensor names"]);
}

#[cfg(unix)]
#[test]
fn linked_shards_are_followed() {
    let (dir, blobs) = (tempdir().unwrap(), tempdir().unwrap());
    Copy::of("dense").write(blobs.path());
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(blobs.path().join(file), dir.path().join(file)).unwrap();
    }
    walk(dir.path()).unwrap();
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let dir = tempdir().unwrap();
    write_checkpoint(dir.path(), &json!({}), &[("w", "U8", &[1], &[0])]);
    write_safetensors(&dir.path().join("model-extra.safetensors"), &[("w", "U8", &[1], &[0])]);
    assert_error(Checkpoint::open(dir.path()), &["tensor w", "model-extra.safetensors", "model.safetensors"]);
}

#[test]
fn totals_and_names() {
    let dir = sharded(3);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let copy = Copy::of("dense-mlx-q4");
    assert_eq!(checkpoint.total_bytes(), copy.tensors.values().map(|tensor| tensor.2.len() as u64).sum::<u64>());
    assert!(checkpoint.names().eq(copy.tensors.keys().map(String::as_str)));
    for (name, (dtype, shape, bytes)) in &copy.tensors {
        let tensor = checkpoint.get(name).unwrap();
        assert_eq!((tensor.dtype.name(), &tensor.shape, &tensor.data[..]), (dtype.as_str(), shape, &bytes[..]));
    }
    assert_error(checkpoint.get("nothing"), &["no tensor nothing"]);
}

#[test]
fn readers_convert_small_tensors() {
    let dir = tempdir().unwrap();
    let ordering = [0i64, -1, 1 << 40].map(i64::to_le_bytes).concat();
    write_checkpoint(
        dir.path(),
        &json!({}),
        &[
            ("p.half", "F16", &[2], &[0x00, 0x3c, 0x00, 0xc0]),
            ("p.brain", "BF16", &[1], &[0x80, 0x3f]),
            ("p.scalar", "F32", &[], &2.5f32.to_le_bytes()),
            ("p.wide", "I64", &[3], &ordering),
            ("p.narrow", "I32", &[1], &(-7i32).to_le_bytes()),
        ],
    );
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let weights = Weights::new(&checkpoint, "p.");
    assert_eq!(weights.vector("half", 2).unwrap(), [1.0, -2.0]);
    assert_eq!(weights.vector("brain", 1).unwrap(), [1.0]);
    assert_eq!(weights.scalar("brain").unwrap(), 1.0);
    assert_eq!(weights.scalar("scalar").unwrap(), 2.5);
    assert_eq!(weights.integers("wide", 3).unwrap(), [0, -1, 1 << 40]);
    assert_error(weights.finish(|_| false), &["1 tensor(s)", "p.narrow"]);
    assert_eq!(weights.integers("narrow", 1).unwrap(), [-7]);
    weights.finish(|_| false).unwrap();
    assert_error(weights.scalar("half"), &["p.half", "[2]", "[1]"]);
    assert_error(weights.vector("wide", 3), &["p.wide", "I64", "F32 or BF16 or F16", "model.safetensors"]);
    assert_error(weights.integers("half", 2), &["p.half", "F16"]);
    assert_error(Weights::detect(&checkpoint), &["embed_tokens.weight", "language_model.model."]);
}
