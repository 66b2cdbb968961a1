//! The runtime of a command.

use std::io;
use std::pin::{Pin, pin};

use tokio::runtime::Builder;

/// A runtime on the current thread, which is enough for a command.
pub(crate) struct Runtime(tokio::runtime::Runtime);

pub(crate) fn runtime() -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(Runtime(runtime))
}

impl Runtime {
    /// Runs a future to its end.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut output = None;
        {
            let future = pin!(async { output = Some(future.await) });
            // Behind a pointer: tokio's loops, with all that the future awaits, would be compiled
            // for each future anew.
            let future: Pin<&mut dyn Future<Output = ()>> = future;
            self.0.block_on(future);
        }
        output.expect("the future ended")
    }
}
