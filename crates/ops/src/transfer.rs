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
use waybill_node::data_dir;
use waybill_store::{CqlStore, EmbeddedConfig, EmbeddedStore, StoreError};

pub use self::command::{ExportArgs, ImportArgs};

use self::export::{Exported, export};
use self::import::{Imported, import};

/// The configured store, opened by this command itself.
enum Opened {
    Embedded(EmbeddedStore),
    Cql(Box<CqlStore>),
}

async fn open(config: &Config) -> anyhow::Result<Opened> {
    if let Some(cql) = config.store.scylla.cql() {
        let store = CqlStore::connect(cql).await;
        let store = store.context("cannot open the state store")?;
        return Ok(Opened::Cql(Box::new(store)));
    }
    let dir = data_dir::of_store(&config.data_dir);
    match EmbeddedStore::open(EmbeddedConfig::new(dir)) {
        Err(error @ StoreError::Locked { .. }) => {
            anyhow::bail!("{error}: stop that process first")
        }
        opened => Ok(Opened::Embedded(
            opened.context("cannot open the embedded store")?,
        )),
    }
}
