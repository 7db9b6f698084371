//! The operations, one idea a file.

pub mod argmax;
pub mod attend;
pub mod decode;
pub mod delta;
pub mod linear;
pub mod moe;
pub mod panel;
pub mod quant;
pub mod rows;
pub mod scales;
pub mod tile;
