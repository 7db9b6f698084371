//! `mlxcel convert`: a float checkpoint or a GGUF file to MLX's layout, quantised or not.

use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_checkpoint::CheckpointError;
use mlxcel_checkpoint::convert::{Options, Progress, Summary, convert, default_target, open};
use serde_json::{Value, json};

use crate::args::ConvertArgs;
use crate::interrupt;
use crate::units::{bytes, shell_word};

/// Runs the verb.
///
/// # Errors
/// What is wrong with the source or the target, in words; nothing is left of the output then.
pub fn run(args: &ConvertArgs) -> Result<ExitCode> {
    interrupt::listen_converting();
    let started = Instant::now();
    let source = open(&args.source)?;
    let target = args.output.clone().unwrap_or_else(|| default_target(&args.source, args.bits));
    let options = Options {
        bits: args.bits,
        group: args.group_size,
        mixed: args.mixed.clone(),
        dtype: args.dtype.map(Into::into),
        force: args.force,
        ..Options::default()
    };
    let bar = Bar::new(args.quiet);
    let mut named = false;
    let outcome = convert(&*source, &target, &options, &mut |progress| {
        if !std::mem::replace(&mut named, true) {
            interrupt::making(Some(progress.dir));
        }
        bar.show(progress);
        !interrupt::taken()
    });
    interrupt::making(None);
    bar.clear();
    let summary = match outcome {
        Err(error @ CheckpointError::Interrupted { .. }) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(130));
        }
        other => other?,
    };
    let seconds = started.elapsed().as_secs_f64();
    if !args.quiet {
        for note in &summary.notes {
            eprintln!("note: {note}");
        }
    }
    // A reader that went away is no error.
    let mut out = std::io::stdout();
    if args.json {
        let _ = writeln!(out, "{:#}", to_json(&summary, seconds));
    } else if !args.quiet {
        let _ = write!(out, "{}", to_text(&summary, seconds));
    }
    Ok(ExitCode::SUCCESS)
}

fn to_text(summary: &Summary, seconds: f64) -> String {
    let target = summary.target.display();
    let files = if summary.files == 1 { "1 file".into() } else { format!("{} files", summary.files) };
    format!(
        "{target}: {} of tensors in {files}, from {}; {:.3} bits per weight; {seconds:.1} s\n\
         Try: mlxcel generate -m {} -p \"Hello\"\n",
        bytes(summary.written_bytes),
        bytes(summary.read_bytes),
        summary.bits_per_weight(),
        quoted(&summary.target),
    )
}

/// A path as a shell takes it, a bare name as a path so that it is not looked up in the model store.
pub(crate) fn quoted(path: &Path) -> String {
    let plain = path.display().to_string();
    let plain = if path.components().count() == 1 && !path.is_absolute() { format!("./{plain}") } else { plain };
    shell_word(&plain)
}

fn to_json(summary: &Summary, seconds: f64) -> Value {
    json!({
        "path": summary.target.display().to_string(),
        "files": summary.files,
        "parameters": summary.parameters,
        "source_bytes": summary.read_bytes,
        "bytes": summary.written_bytes,
        "bits_per_weight": summary.bits_per_weight(),
        "seconds": seconds,
        "notes": summary.notes,
    })
}

/// The progress bar; nothing where nobody looks.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A hidden one when nobody wants to look, or can.
    pub(crate) fn new(quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(
            "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left, {msg}",
        ) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says how far the work is.
    pub(crate) fn show(&self, progress: Progress<'_>) {
        if self.0.is_hidden() {
            return;
        }
        self.0.set_length(progress.total_bytes);
        self.0.set_position(progress.bytes);
        self.0.set_message(format!("tensor {}/{}: {}", progress.tensors, progress.total_tensors, progress.tensor));
    }

    /// Takes it off the screen.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_can_be_pasted() {
        assert_eq!(quoted(Path::new("a-4bit")), "./a-4bit");
        assert_eq!(quoted(Path::new("out/a b")), "'out/a b'");
        assert_eq!(quoted(Path::new("/x/it's")), r"'/x/it'\''s'");
    }
}
