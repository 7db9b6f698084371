//! The emulated device (tools/cuda_emulator), built by whoever needs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of its libraries, built now from the sources in the tree. Where there is no C++ compiler it says so, unless
/// MLXCEL_NEED_EMULATOR is set: then that is a failure.
pub fn built() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        if let Err(error) = Command::new(&compiler).arg("--version").output() {
            assert!(std::env::var_os("MLXCEL_NEED_EMULATOR").is_none(), "{compiler}: {error}");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_emulator");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/cuda_emulator/build.sh");
        let out = Command::new("sh").arg(script).arg(&folder).output().expect("a shell");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some(folder)
    });
    if folder.is_none() {
        println!("skipped: no C++ compiler, so no emulated device");
    }
    folder.as_deref()
}
