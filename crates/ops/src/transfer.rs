//! Operations as lines of JSON, from one store to another: to move from the embedded store to a
//! cluster, or to inspect all of them with other tools.
//!
//! What must hold:
//!
//! * **A file is whole or refused.** It begins with a header and ends with its number of
//!   operations. An import reads all of it before it writes anything.
//! * **A line holds its whole row.** Each line is decoded again when it is written, and encoded
//!   again when it is read; a difference is refused.
//! * **An import changes no existing operation.** An equal one is skipped, a different one is
//!   reported.
//! * **Unfinished operations continue.** An import leaves them as if they were handed off: without
//!   an owner, with an epoch that no owner can have, so that the scheduler that loads one resumes
//!   it, and due immediately in the deadline index.
//! * **Stamps of the next owner are higher.** A stamp ahead of the clock is refused.
//!
//! Deliberately absent: leases, checkpoints, the layout, and records in topics. The new
//! installation has its own.

mod command;
mod export;
mod import;
mod line;

use anyhow::Context as _;
use waybill_node::config::Config;
use waybill_store::{OpenStore, StoreError};

pub use self::command::{ExportArgs, ImportArgs};

use self::export::{Exported, export};
use self::import::{Imported, import};

/// Opens the configured store.
async fn open(config: &Config) -> anyhow::Result<OpenStore> {
    let backend = config.store_backend();
    match backend.open().await {
        Err(error @ StoreError::Locked { .. }) => {
            anyhow::bail!("{error}: stop that process first")
        }
        opened => opened.with_context(|| format!("cannot open the {backend}")),
    }
}
