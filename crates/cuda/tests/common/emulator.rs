//! The emulated device (tools/cuda_emulator), built by whoever needs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of its libraries, built now from the sources in the tree. Where that cannot be it says so, unless MLXCEL_NEED_EMULATOR
/// is set: then it is a failure.
pub fn built() -> Option<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(build) {
        Ok(folder) => Some(folder),
        Err(why) => {
            assert!(std::env::var_os("MLXCEL_NEED_EMULATOR").is_none(), "MLXCEL_NEED_EMULATOR is set: {why}");
            println!("skipped: {why}");
            None
        }
    }
}

/// What is missing is an error; what does not compile is a fault.
fn build() -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("the emulated device is for Linux".into());
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return Err(format!("no C++ compiler for the emulated device ({compiler}: {error})"));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_emulator");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/cuda_emulator/build.sh");
    let out = Command::new("sh").arg(script).arg(&folder).output().expect("a shell");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(folder)
}
