//! `mlxcel`: run MLX-format language models on this machine.

use std::process::ExitCode;

use mlxcel_cli::args::{self, Verb};
use mlxcel_cli::locate::Environment;
#[cfg(feature = "hub")]
use mlxcel_cli::pull;
use mlxcel_cli::{convert, generate, inspect, list, perplexity, probe, rm, run, serve, synth};

fn main() -> ExitCode {
    let cli = args::parse(std::env::args_os());
    let environment = Environment::read();
    let result = match cli.verb {
        Verb::Generate(args) => generate::run(&args, &environment),
        Verb::Run(args) => run::run(&args, &environment),
        Verb::Inspect(args) => inspect::run(&args, &environment),
        Verb::Perplexity(args) => perplexity::run(&args, &environment),
        Verb::Probe(args) => probe::run(&args, &environment),
        Verb::Serve(args) => serve::run(&args, &environment),
        Verb::Convert(args) => convert::run(&args),
        Verb::Synth(args) => synth::run(&args, &environment),
        #[cfg(feature = "hub")]
        Verb::Pull(args) => pull::run(&args, &environment),
        Verb::List(args) => list::run(&args, &environment),
        Verb::Rm(args) => rm::run(&args, &environment),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
