//! Closed pipes. A binary of its own: a child that another test forks at the same time holds the pipe open for a moment, and
//! the fault would not show.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = here.join("../../models/gemma-4-tiny-it-4bit");
    let model = model.to_str().expect("path");
    let text = here.join("tests/perplexity.txt");
    for args in [
        &["inspect", "-m", model][..],
        &["inspect", "-m", model, "--json"],
        &["generate", "-m", model, "-p", "Tell me a story."],
        &["generate", "-m", model, "-p", "Tell me a story.", "--json"],
        &["run", "-m", model],
        &["perplexity", text.to_str().expect("path"), "-m", model],
        &["perplexity", text.to_str().expect("path"), "-m", model, "--json"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mlxcel"))
            .args(args)
            .env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        drop(child.stdout.take());
        let _ = child.stdin.take().expect("stdin").write_all(b"Hello\nTell me a story.\n");
        let out = child.wait_with_output().expect("wait");
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !message.contains("panicked"), "{args:?}: {message}");
    }
}
