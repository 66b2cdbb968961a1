//! Operations as lines of JSON, out of one store and into another: to move from the embedded store to a cluster,
//! or to look at all of them with other tools.
//!
//! What must hold:
//!
//! * **A file is whole or refused.** It begins with a header and ends with how many operations it has. An import
//!   reads all of it before it writes anything.
//! * **A line says all of its row.** Each is read back when it is written, and written again when it is read: what
//!   does not come out the same is refused.
//! * **An import changes no operation that is there.** The same one is passed over, another is told of.
//! * **What is not final goes on.** An import leaves it as if it had been handed off: nobody holds it, its epoch is
//!   none that an owner can have, so that who loads it resumes it first, and the deadline index has it due at once.
//! * **The stamps of its next owner are higher.** A stamp that lies ahead of the clock is refused.
//!
//! Deliberately absent: leases, checkpoints, the layout, and whatever lies in topics. A new world has its own.

mod command;
mod export;
mod import;
mod line;

use anyhow::Context as _;
use waybill_store::{CqlStore, EmbeddedConfig, EmbeddedStore, StoreError};

pub use command::{ExportArgs, ImportArgs};
use export::{Exported, export};
use import::{Imported, import};

use waybill_node::config::Config;
use waybill_node::data_dir;

/// The store of a configuration, without a process that works on it.
enum Opened {
    Embedded(EmbeddedStore),
    Cql(Box<CqlStore>),
}

async fn open(config: &Config) -> anyhow::Result<Opened> {
    if let Some(cql) = config.store.scylla.cql() {
        let store = CqlStore::connect(cql).await;
        let store = store.context("the state store cannot be opened")?;
        return Ok(Opened::Cql(Box::new(store)));
    }
    let dir = data_dir::of_store(&config.data_dir);
    match EmbeddedStore::open(EmbeddedConfig::new(dir)) {
        Err(error @ StoreError::Locked { .. }) => Err(anyhow::Error::from(error)
            .context("the embedded store belongs to the process that runs on it: stop that first")),
        opened => Ok(Opened::Embedded(
            opened.context("the embedded store cannot be opened")?,
        )),
    }
}
