//! Small GGUF files that ask for much memory are refused before they get it. One test alone in its process: what is measured
//! is the process's peak.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use mlxcel_checkpoint::Gguf;
use mlxcel_checkpoint::gguf::testing::{GgufBuilder, Item, byte_characters, tiny};

/// What the import of a hostile file may add to the peak.
const ALLOWED: u64 = 48 << 20;

/// Resident memory of this process in bytes, now (`VmRSS`) or at its peak (`VmHWM`), where the system tells.
fn resident(which: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Memory in use, which the peak is set back to, so that earlier work hides nothing; `None` where Linux does not allow it.
fn start() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    resident("VmRSS")
}

/// The result of a call and by how much its peak was above the memory in use before.
fn measured<T>(call: impl FnOnce() -> T) -> (T, Option<u64>) {
    let before = start();
    let result = call();
    (result, before.zip(resident("VmHWM")).map(|(before, peak)| peak.saturating_sub(before)))
}

/// A SentencePiece model of these tokens and types after its bytes and special tokens.
fn pieces(more: impl Iterator<Item = (String, i32)>) -> GgufBuilder {
    let mut file = tiny("gemma3");
    let mut scores = 0;
    let mut more: Vec<(String, i32)> = more.collect();
    for (key, item) in &mut file.metadata {
        match item {
            Item::Texts(tokens) if key.ends_with("ggml.tokens") => {
                let known: HashSet<&String> = tokens.iter().collect();
                more.retain(|(token, _)| !known.contains(token));
                tokens.extend(more.iter().map(|(token, _)| token.clone()));
                scores = tokens.len();
            }
            Item::I32s(types) if key.ends_with("token_type") => types.extend(more.iter().map(|(_, kind)| kind)),
            _ => {}
        }
    }
    file.set("tokenizer.ggml.scores", Item::F32s(vec![0.0; scores]));
    file
}

/// Runs of each of the first letters, up to so long.
fn runs(letters: usize, longest: usize) -> impl Iterator<Item = (String, i32)> {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9').take(letters);
    letters.flat_map(move |letter| (1..=longest).map(move |length| (letter.to_string().repeat(length), 1)))
}

/// A byte-level model whose merges are all ways to cut runs of a letter.
fn cut_runs(longest: usize) -> GgufBuilder {
    let mut file = tiny("llama");
    let run = |length: usize| "a".repeat(length);
    let tokens: Vec<String> =
        byte_characters().into_iter().filter(|token| token != "a").chain((1..=longest).map(run)).collect();
    let merges =
        (2..=longest).flat_map(|length| (1..length).map(move |at| format!("{} {}", run(at), run(length - at))));
    file.set("tokenizer.ggml.token_type", Item::I32s(vec![1; tokens.len()]));
    file.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.merges", merges.collect::<Vec<_>>());
    file
}

fn open(file: &GgufBuilder) -> Gguf {
    Gguf::from_bytes(Path::new("model.gguf"), file.bytes()).unwrap()
}

#[test]
fn small_files_take_little_memory() {
    let check = |case: &str, result: Result<(), String>, grown: Option<u64>, parts: &[&str]| {
        let error = result.expect_err(case);
        println!("{case}: peak grew by {grown:?}: {error}");
        parts.iter().for_each(|part| assert!(error.contains(part), "{case}: {part:?} not in: {error}"));
        assert!(grown.is_none_or(|grown| grown < ALLOWED), "{case}: peak grew by {grown:?} bytes");
    };
    if start().is_none() {
        println!("skipped: memory, for /proc/self has no peak that can be set back; refusals are checked");
    }

    // Just inside the limits: a vocabulary whose longest pieces are as long as they may be.
    let longest = [("b".repeat(256), 1), ("c".repeat(4096), 3)];
    open(&pieces(runs(1, 60).chain(longest))).text_files().unwrap();
    open(&cut_runs(60)).text_files().unwrap();

    type Case = (&'static str, fn() -> GgufBuilder, &'static [&'static str]);
    let cases: [Case; 6] = [
        ("cut runs", || cut_runs(500), &["tokenizer.ggml.merges", "too many merges", "8 for each of"]),
        ("nested pieces", || pieces(runs(1, 1000)), &["tokenizer.ggml.tokens", "of 257 bytes", "at most 256"]),
        (
            "long nested pieces",
            || pieces(runs(1, 256).chain((10..9000).map(|i| (i.to_string(), 1)))),
            &["tokenizer.ggml.tokens", "too many bytes of merges", "16 for each of"],
        ),
        (
            "many nested pieces",
            || pieces(runs(50, 256)),
            &["tokenizer.ggml.tokens", "too many merges", "8 for each of"],
        ),
        (
            "control tokens",
            || pieces((0..200_000).map(|i| (format!("<{i}>"), 3))),
            &["tokenizer.ggml.token_type", "65536", "for 200005 tokens"],
        ),
        (
            "tokens",
            || pieces((0..1 << 20).map(|i| (format!("<{i}>"), 5))),
            &["tokenizer.ggml.tokens", "at most 1048576 tokens"],
        ),
    ];
    for (case, build, parts) in cases {
        let file = open(&build());
        let (result, grown) = measured(|| file.text_files().map(|_| ()).map_err(|error| error.to_string()));
        check(case, result, grown, parts);
    }

    // A table of rotary factors of 2^28 elements, 151 MB in a sparse file and 1 GB when decoded.
    let (dir, mut file) = (tempfile::tempdir().unwrap(), tiny("llama"));
    let path = dir.path().join("model.gguf");
    file.tensor("rope_freqs.weight", &[1 << 14, 1 << 14], 2, Vec::new());
    let mut sparse = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    let bytes = file.bytes();
    sparse.write_all(&bytes).unwrap();
    match sparse.set_len(bytes.len() as u64 + (1 << 28) / 32 * 18) {
        Ok(()) => {
            let file = Gguf::open(&path).unwrap();
            let (result, grown) = measured(|| file.config().map(|_| ()).map_err(|error| error.to_string()));
            check("rotary factors", result, grown, &["rope_freqs.weight of 268435456 elements", "4 rotations"]);
        }
        Err(error) => println!("skipped: rotary factors, for the file system refuses a sparse file: {error}"),
    }

    // The planted fault: memory that is taken shows.
    let (_, grown) = measured(|| std::hint::black_box(vec![1u8; 2 * ALLOWED as usize]).len());
    assert!(grown.is_none_or(|grown| grown > ALLOWED), "a planted allocation grew the peak by {grown:?}");
}
