//! What stops the start of a server: variables and flags that say nothing, or nothing that could be done.

use std::process::{Command, Output, Stdio};

/// Runs a server that is expected not to start.
fn refused(program: &str, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command.args(args).env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    // A start that succeeds by mistake ends at once: there is no such model.
    command.env("MLXCEL_MODEL", "no-such-model").env("MLXCEL_PORT", "0").envs(variables.iter().copied());
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

const SERVER: &str = env!("CARGO_BIN_EXE_mlxcel-server");

#[test]
fn variables_that_say_nothing_stop_the_start() {
    for (name, value) in [
        ("MLXCEL_HOST", ""),
        ("MLXCEL_PORT", ""),
        ("MLXCEL_ALIAS", ""),
        ("MLXCEL_JINJA", ""),
        ("MLXCEL_JINJA", "perhaps"),
        ("MLXCEL_METRICS", ""),
        ("MLXCEL_NO_SLOTS", "2"),
        ("MLXCEL_TEMP", "hot"),
        ("MLXCEL_SEED", ""),
        ("MLXCEL_REASONING", "maybe"),
        ("MLXCEL_TIMEOUT", "0"),
        ("MLXCEL_MAX_CONNECTIONS", "many"),
        ("MLXCEL_LOG_REQUESTS", ""),
        ("LLAMA_ARG_TIMEOUT", ""),
        ("LLAMA_ARG_TOP_K", "x"),
        ("LLAMA_ARG_ENDPOINT_SLOTS", "x"),
        ("LLAMA_ARG_CTX_SIZE", ""),
    ] {
        let (code, said) = refused(SERVER, &[], &[(name, value)]);
        assert_eq!(code, Some(2), "{name}={value:?}: {said}");
        let (code, said) = refused(env!("CARGO_BIN_EXE_mlxcel"), &["serve"], &[(name, value)]);
        assert_eq!(code, Some(2), "{name}={value:?}: {said}");
    }
    let (_, said) = refused(SERVER, &[], &[("MLXCEL_HOST", "")]);
    assert!(said.contains("MLXCEL_HOST") && said.contains("--host") && said.contains("unset it"), "{said}");
}

/// The twin: the same variables with values go on to the model, which is not there.
#[test]
fn variables_with_values_are_read() {
    let variables = [
        ("MLXCEL_JINJA", "true"),
        ("MLXCEL_METRICS", "off"),
        ("MLXCEL_NO_SLOTS", "1"),
        ("MLXCEL_TEMP", "0.5"),
        ("MLXCEL_REASONING", "off"),
        ("LLAMA_ARG_TIMEOUT", "600"),
        ("LLAMA_ARG_TOP_K", "20"),
    ];
    let (code, said) = refused(SERVER, &["-to", "30", "-rea", "on"], &variables);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no-such-model"), "{said}");
}

#[test]
fn an_endpoint_needs_the_feature() {
    let (code, said) = refused(SERVER, &["--otlp-endpoint", "localhost"], &[]);
    assert_eq!(code, Some(1), "{said}");
    let expected = if cfg!(feature = "otel") { "http://HOST:PORT expected" } else { "--features otel" };
    assert!(said.contains(expected) && said.contains("--otlp-endpoint"), "{said}");
}
