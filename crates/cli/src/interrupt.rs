//! Ctrl-C and the signals that ask a process to end (SIGTERM, SIGHUP): the first asks the running command to finish
//! cleanly, the second ends the process.

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

/// Whether the user, or the system, asked for an end.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
