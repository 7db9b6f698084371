//! Ctrl-C: the first stops the answer, not the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static PRESSED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<bool> = OnceLock::new();

/// Starts listening. A second Ctrl-C before the first was taken ends the process, for when the program hangs.
pub fn listen() {
    INSTALLED.get_or_init(|| {
        ctrlc::set_handler(|| {
            if PRESSED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })
        .is_ok()
    });
}

/// True once after each Ctrl-C.
pub fn taken() -> bool {
    PRESSED.swap(false, Ordering::SeqCst)
}
