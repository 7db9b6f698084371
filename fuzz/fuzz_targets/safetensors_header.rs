//! Any bytes as a safetensors file: an error or a header whose every tensor lies inside the file, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = mlxcel_checkpoint::parse_header(data);
});
