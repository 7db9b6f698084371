//! Every storage type against the values of an independent implementation, bit for bit (tests/golden/gguf).

use std::path::{Path, PathBuf};

use mlxcel_checkpoint::gguf::{GgmlType, dequantize};

fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Elements whose bits differ.
fn differences(kind: GgmlType, blocks: &[u8], expected: &[u32]) -> usize {
    let mut values = Vec::new();
    dequantize(kind, blocks, &mut values);
    assert_eq!(values.len(), expected.len(), "{}", kind.name());
    values.iter().zip(expected).filter(|(value, expected)| value.to_bits() != **expected).count()
}

fn vectors(kind: GgmlType) -> (Vec<u8>, Vec<u32>) {
    let blocks = golden(&format!("{}.blocks", kind.name()));
    let values = golden(&format!("{}.values", kind.name()));
    let expected = values.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    (blocks, expected)
}

#[test]
fn every_type_gives_the_reference_values() {
    for kind in GgmlType::ALL {
        let (blocks, expected) = vectors(kind);
        assert_eq!(blocks.len() / kind.block_bytes() * kind.block_elements(), expected.len(), "{}", kind.name());
        assert!(expected.len() >= 200, "{}", kind.name());
        assert_eq!(differences(kind, &blocks, &expected), 0, "{}", kind.name());
    }
}

/// The planted fault: one changed bit anywhere in a block is seen.
#[test]
fn every_bit_of_a_block_counts() {
    for kind in GgmlType::ALL {
        let (mut blocks, expected) = vectors(kind);
        // The last block has ordinary halves: with a scale of zero the codes would not matter.
        let last = blocks.len() - kind.block_bytes();
        for place in last..blocks.len() {
            for bit in 0..8 {
                blocks[place] ^= 1 << bit;
                assert_ne!(differences(kind, &blocks, &expected), 0, "{} byte {} bit {bit}", kind.name(), place - last);
                blocks[place] ^= 1 << bit;
            }
        }
        assert_eq!(differences(kind, &blocks, &expected), 0);
    }
}

#[test]
fn a_cut_block_is_not_read() {
    for kind in GgmlType::ALL {
        let (blocks, expected) = vectors(kind);
        let mut values = Vec::new();
        dequantize(kind, &blocks[..blocks.len() - 1], &mut values);
        assert_eq!(values.len(), expected.len() - kind.block_elements(), "{}", kind.name());
    }
}
