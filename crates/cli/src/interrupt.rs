//! Ctrl-C: the first stops the answer, not the program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

static PRESSED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<bool> = OnceLock::new();
static MAKING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts listening. A second Ctrl-C before the first was taken ends the process, for when the program hangs.
pub fn listen() {
    INSTALLED.get_or_init(|| {
        ctrlc::set_handler(|| {
            if PRESSED.swap(true, Ordering::SeqCst) {
                if let Some(dir) = MAKING.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    mlxcel_checkpoint::convert::abandon(&dir);
                }
                std::process::exit(130);
            }
        })
        .is_ok()
    });
}

/// Names the directory that a conversion is making, which goes when a second Ctrl-C ends the process.
pub fn making(dir: Option<&Path>) {
    *MAKING.lock().unwrap_or_else(PoisonError::into_inner) = dir.map(Path::to_path_buf);
}

/// True once after each Ctrl-C.
pub fn taken() -> bool {
    PRESSED.swap(false, Ordering::SeqCst)
}
