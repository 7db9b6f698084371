//! Ctrl-C: the first stops the answer, not the program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long a second Ctrl-C waits for a conversion that is clearing up. It looks for the first one every few
/// milliseconds; removing its directory from here while it writes could leave what it makes in between.
const PATIENCE: Duration = Duration::from_secs(5);

static CONVERTING: AtomicBool = AtomicBool::new(false);
static PRESSED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<bool> = OnceLock::new();
static MAKING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts listening. A second Ctrl-C before the first was taken ends the process, for when the program hangs.
pub fn listen() {
    INSTALLED.get_or_init(|| {
        ctrlc::set_handler(|| {
            if PRESSED.swap(true, Ordering::SeqCst) {
                if CONVERTING.load(Ordering::SeqCst) {
                    // The process ends meanwhile, unless the disk hangs.
                    std::thread::sleep(PATIENCE);
                }
                if let Some(dir) = MAKING.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    mlxcel_checkpoint::convert::abandon(&dir);
                }
                std::process::exit(130);
            }
        })
        .is_ok()
    });
}

/// Listens on behalf of a conversion, which a second Ctrl-C gives the time to clear up.
pub fn listen_converting() {
    CONVERTING.store(true, Ordering::SeqCst);
    listen();
}

/// Names the directory that a conversion is making, which goes when a second Ctrl-C ends a process that hangs.
pub fn making(dir: Option<&Path>) {
    *MAKING.lock().unwrap_or_else(PoisonError::into_inner) = dir.map(Path::to_path_buf);
}

/// True once after each Ctrl-C.
pub fn taken() -> bool {
    PRESSED.swap(false, Ordering::SeqCst)
}
