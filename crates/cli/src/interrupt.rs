//! Ctrl-C: the first asks the running command to finish cleanly, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler and returns the flag that long loops look at.
pub fn install() -> anyhow::Result<&'static AtomicBool> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })?;
    Ok(&INTERRUPTED)
}

/// Whether Ctrl-C was pressed.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
