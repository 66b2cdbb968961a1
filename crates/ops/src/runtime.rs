//! The runtime of a command.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A runtime on this thread alone: a command does little at once.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
