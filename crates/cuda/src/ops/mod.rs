//! Operations: what is launched for each, and with which host data.

pub mod attend;
pub mod fuse;
pub mod linear;
pub mod moe;
pub mod recurrent;
pub mod rows;
pub mod split;
pub mod wide;
