//! The runtime of a command.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A runtime on the current thread, which is enough for a command.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
