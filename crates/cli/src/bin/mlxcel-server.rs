//! `mlxcel-server`: a model over HTTP.

use std::process::ExitCode;

use mlxcel_cli::locate::Environment;
use mlxcel_cli::serve::{self, args};

fn main() -> ExitCode {
    let cli = args::parse(std::env::args_os());
    match serve::run(&cli.serve, &Environment::read()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
