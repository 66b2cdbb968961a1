//! The clock that ends the retention of rows.
//!
//! A row records when its retention ends. By the wall clock, a row that was written while the clock
//! was far behind would expire as soon as the clock is corrected. So the end is given in the
//! store's own time. It begins with the wall clock when the store is created, and then counts how
//! long the store has been open. It is saved at each purge and continues from there.
//!
//! What must hold: a row is never removed before the store has been open for its retention. Rows
//! may stay longer: while the store is closed, no retention passes.

use fjall::{Database, Keyspace, OwnedWriteBatch};
use waybill_clock::{boot_clock, wall_clock};
use waybill_engine::{BootTime, Timestamp};

use super::damage::{self, Damages};
use super::tables::{Tables, failed};
use crate::codec::{self, Encoder};
use crate::{StoreError, keys};

/// The clock of retention.
pub(super) struct Retention {
    began: Timestamp,
    opened: BootTime,
}

impl Retention {
    /// Continues from the saved time, or begins with the wall clock and saves that.
    pub(super) fn open(
        db: &Database,
        leases: &Keyspace,
        damages: &Damages,
    ) -> Result<Self, StoreError> {
        let saved = match leases.get(keys::RETENTION) {
            Ok(value) => {
                value.map(|value| codec::retention(&value).map_err(|error| error.to_string()))
            }
            Err(error) => {
                let Some(cause) = damage::cause(&error) else {
                    return Err(failed("reading the retention time")(error));
                };
                let key = &keys::RETENTION[..];
                damages.note("leases", leases, key..=key, &cause);
                Some(Err(cause))
            }
        };
        // A saved time is not saved again: the disk may be full.
        let is_saved = matches!(saved, Some(Ok(_)));
        let began = match saved {
            None => wall_clock(),
            Some(Ok(saved)) => saved,
            Some(Err(cause)) => {
                // Keeping rows for too long does no harm.
                tracing::error!(
                    cause,
                    "cannot read the stored retention time; keeping rows that were written before"
                );
                Timestamp(0)
            }
        };
        let retention = Self {
            began,
            opened: boot_clock(),
        };
        if !is_saved {
            let mut batch = db.batch();
            retention.put(&mut batch, leases);
            batch
                .commit()
                .map_err(failed("saving the retention time"))?;
        }
        Ok(retention)
    }

    /// The time now.
    pub(super) fn now(&self) -> Timestamp {
        self.began + boot_clock().since(self.opened)
    }

    /// Saves the time without a sync: a lost save makes rows stay longer.
    pub(super) fn save(&self, tables: &Tables) -> Result<(), StoreError> {
        let mut batch = tables.db.batch();
        self.put(&mut batch, &tables.leases);
        tables
            .commit(batch)
            .map_err(failed("saving the retention time"))
    }

    fn put(&self, batch: &mut OwnedWriteBatch, leases: &Keyspace) {
        let mut encoder = Encoder::default();
        batch.insert(leases, keys::RETENTION, encoder.retention(self.now()));
    }
}
