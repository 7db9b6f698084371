//! `speculative_bench`: how fast, how often right, and whether the output is the same.

use std::process::ExitCode;

use mlxcel_cli::bench::{self, args};
use mlxcel_cli::locate::Environment;

fn main() -> ExitCode {
    let cli = args::parse(std::env::args_os());
    match bench::run(&cli, &Environment::read()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
