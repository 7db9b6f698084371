//! `mlxcel`: run MLX-format language models on this machine.

use std::process::ExitCode;

use clap::Parser;
use mlxcel_cli::args::{Cli, Verb};
use mlxcel_cli::locate::Environment;
use mlxcel_cli::{generate, inspect, perplexity, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let environment = Environment::read();
    let result = match cli.verb {
        Verb::Generate(args) => generate::run(&args, &environment),
        Verb::Run(args) => run::run(&args, &environment),
        Verb::Inspect(args) => inspect::run(&args, &environment),
        Verb::Perplexity(args) => perplexity::run(&args, &environment),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
