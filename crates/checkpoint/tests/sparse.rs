//! Opening a checkpoint touches no weight data: 20 GB of it open in no time and no memory.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use mlxcel_checkpoint::{Checkpoint, Weights};
use serde_json::{Map, Value, json};

const TENSORS: u64 = 500;
const ROWS: u64 = 5000;
const COLUMNS: u64 = 4000;

/// Resident memory of this process in bytes, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[test]
fn opening_twenty_gigabytes_is_instant_and_small() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = ROWS * COLUMNS * 2;
    let mut header = Map::new();
    for index in 0..TENSORS {
        let entry = json!({
            "dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [index * bytes, (index + 1) * bytes]
        });
        header.insert(format!("model.layers.{index}.mlp.up_proj.weight"), entry);
    }
    let header = Value::Object(header).to_string();
    let total = 8 + header.len() as u64 + TENSORS * bytes;
    assert!(total > 20_000_000_000);
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let path = dir.path().join("model.safetensors");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    if let Err(error) = file.set_len(total) {
        println!("skipped: the file system refuses a sparse file of {total} bytes: {error}");
        return;
    }
    drop(file);

    let before = resident();
    let start = Instant::now();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let weights = Weights::new(&checkpoint, "model.");
    let mut taken = 0;
    for index in 0..TENSORS {
        let name = format!("layers.{index}.mlp.up_proj");
        taken += weights.linear(&name, ROWS as usize, COLUMNS as usize).unwrap().byte_len() as u64;
    }
    weights.finish(|_| false).unwrap();
    let elapsed = start.elapsed();
    assert_eq!((taken, checkpoint.total_bytes()), (TENSORS * bytes, TENSORS * bytes));
    assert!(elapsed < Duration::from_secs(1), "took {elapsed:?}");
    match before.zip(resident()) {
        Some((before, after)) => {
            let grown = after.saturating_sub(before);
            println!("opened {total} bytes in {elapsed:?}, resident memory grew by {grown} bytes");
            assert!(grown < 16 << 20, "resident memory grew by {grown} bytes");
        }
        None => println!("resident memory not checked: no /proc/self/status"),
    }
}
