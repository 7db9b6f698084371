//! The commit of the build, for the rows: `MLXCEL_COMMIT`, else git's HEAD where this is the project's own working tree. Without
//! both the build goes on and rows say nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MLXCEL_COMMIT");
    let given = std::env::var("MLXCEL_COMMIT").ok().filter(|commit| is_commit(commit));
    if let Some(commit) = given.or_else(from_git) {
        println!("cargo:rustc-env=MLXCEL_BUILD_COMMIT={commit}");
    }
}

/// A name of a commit; anything else could break out of the line it is printed on.
fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn from_git() -> Option<String> {
    let root = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    // An unpacked archive may lie inside another project's repository, whose commit says nothing.
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("git").arg("-C").arg(&root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_string())
    };
    // A commit moves the branch's file, a checkout HEAD; the log of HEAD tells of both, packed-refs where a file went.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        // Only what exists: cargo takes an absent file for a changed one, and would build again each time.
        let path = git(&["rev-parse", "--git-path", name]).map(|path| root.join(PathBuf::from(path)));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}
