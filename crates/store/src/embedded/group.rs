//! One group commit: what several callers change, weighed against what is stored and against each
//! other, and then written as one atomic, synced batch.
//!
//! What must hold:
//!
//! * Only the writer's thread makes groups, one after the other, so nothing that was weighed can
//!   change before it is written.
//! * A key stands in the database's batch at most once: rows, leases and cursors are merged here
//!   first.
//! * A call that fails while it is weighed leaves nothing of itself in the group.
//! * [`RecentStamps`] learns stamps only after they are durable.

use std::collections::HashMap;
use std::time::Duration;

use fjall::{PersistMode, UserValue};
use waybill_engine::{OperationId, PartitionId, Stamp, Timestamp};

use super::recent::RecentStamps;
use super::tables::Tables;
use crate::codec::{Encoder, StateHeader};
use crate::keys::{self, INDEX_KEY_LEN};
use crate::{DueBucket, Lease, StoreError, WriteBatch};

/// A [`WriteBatch`] as bytes. Made by the caller's thread, to spare the writer's.
pub(super) struct EncodedBatch {
    due: Vec<[u8; INDEX_KEY_LEN]>,
    attention: Vec<[u8; INDEX_KEY_LEN]>,
    rows: Vec<EncodedRow>,
}

struct EncodedRow {
    id: OperationId,
    stamp: Stamp,
    state: EncodedState,
    created: Option<UserValue>,
}

struct EncodedState {
    value: UserValue,
    expires_at: Option<Timestamp>,
}

impl EncodedBatch {
    /// Encodes a batch; retention counts from `now`.
    pub(super) fn new(batch: &WriteBatch, now: Timestamp) -> Self {
        let mut encoder = Encoder::default();
        let rows = batch.rows.iter().map(|row| {
            let expires_at = row.keep_for.map(|keep_for: Duration| now + keep_for);
            let header = StateHeader {
                stamp: row.stamp,
                expires_at,
            };
            EncodedRow {
                id: row.id,
                stamp: row.stamp,
                state: EncodedState {
                    value: encoder.state(header, &row.state).into(),
                    expires_at,
                },
                created: row
                    .created
                    .as_ref()
                    .map(|created| encoder.created(row.stamp, created).into()),
            }
        });
        Self {
            rows: rows.collect(),
            due: batch
                .due
                .iter()
                .map(|(shard, entry)| keys::index(*shard, entry.due, entry.operation))
                .collect(),
            attention: batch
                .attention
                .iter()
                .map(|(shard, entry)| keys::index(*shard, entry.at, entry.operation))
                .collect(),
        }
    }

    /// How many rows it writes.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }
}

/// How an operation's row stands: what is stored of it, and what the group makes of it.
struct Standing {
    /// The stamp of the state, if there is one.
    state_stamp: Option<Stamp>,
    /// The stamp of the immutable part, or one that is not below it.
    created_stamp: Option<Stamp>,
    /// Whether `created_stamp` is known and not a bound.
    created_stamp_is_exact: bool,
    /// The state to write.
    state: Option<EncodedState>,
    /// The immutable part to write.
    created: Option<UserValue>,
}

/// What is gathered for one commit.
pub(super) struct Group<'a> {
    tables: &'a Tables,
    recent: &'a mut RecentStamps,
    rows: HashMap<OperationId, Standing>,
    leases: HashMap<PartitionId, Lease>,
    cursors: HashMap<PartitionId, DueBucket>,
    due: Vec<[u8; INDEX_KEY_LEN]>,
    attention: Vec<[u8; INDEX_KEY_LEN]>,
}

impl<'a> Group<'a> {
    pub(super) fn new(tables: &'a Tables, recent: &'a mut RecentStamps) -> Self {
        Self {
            tables,
            recent,
            rows: HashMap::new(),
            leases: HashMap::new(),
            cursors: HashMap::new(),
            due: Vec::new(),
            attention: Vec::new(),
        }
    }

    /// Adds a batch. Of each row it keeps what has the higher stamp.
    pub(super) fn write(&mut self, batch: EncodedBatch) -> Result<(), StoreError> {
        self.rows.reserve(batch.rows.len());
        for row in &batch.rows {
            self.load(row)?;
        }
        for row in batch.rows {
            if let Some(standing) = self.rows.get_mut(&row.id) {
                standing.merge(row);
            }
        }
        self.due.extend(batch.due);
        self.attention.extend(batch.attention);
        Ok(())
    }

    /// Finds out how a row stands, as far as `row` has to be weighed against it.
    fn load(&mut self, row: &EncodedRow) -> Result<(), StoreError> {
        if !self.rows.contains_key(&row.id) {
            let state_stamp = match self.recent.get(row.id) {
                Some(stamp) => Some(stamp),
                None => self.tables.state_header(row.id)?.map(|state| state.stamp),
            };
            // An immutable part is always written together with a state, so its stamp is not above
            // the state's, and without a state there is none.
            let standing = Standing {
                state_stamp,
                created_stamp: state_stamp,
                created_stamp_is_exact: state_stamp.is_none(),
                state: None,
                created: None,
            };
            self.rows.insert(row.id, standing);
        }
        if let Some(standing) = self.rows.get_mut(&row.id)
            && row.created.is_some()
            && !standing.created_stamp_is_exact
            && Some(row.stamp) <= standing.created_stamp
        {
            standing.created_stamp = self.tables.created_stamp(row.id)?;
            standing.created_stamp_is_exact = true;
        }
        Ok(())
    }

    /// Takes a lease if the newest is exactly `seen`. Returns whether it is taken.
    pub(super) fn take_lease(
        &mut self,
        seen: Option<&Lease>,
        lease: Lease,
    ) -> Result<bool, StoreError> {
        let newest = self.newest_lease(lease.partition)?;
        let taken = newest.as_ref() == seen;
        if taken {
            self.leases.insert(lease.partition, lease);
        }
        Ok(taken)
    }

    /// Renews a lease if the newest is an earlier one of the same ownership. Returns whether
    /// `lease` is the newest now.
    pub(super) fn renew_lease(&mut self, lease: Lease) -> Result<bool, StoreError> {
        let Some(newest) = self.newest_lease(lease.partition)? else {
            return Ok(false);
        };
        if newest == lease {
            return Ok(true);
        }
        let renewed = newest.owner == lease.owner
            && newest.epoch == lease.epoch
            && newest.renewal < lease.renewal;
        if renewed {
            self.leases.insert(lease.partition, lease);
        }
        Ok(renewed)
    }

    fn newest_lease(&self, partition: PartitionId) -> Result<Option<Lease>, StoreError> {
        match self.leases.get(&partition) {
            Some(lease) => Ok(Some(lease.clone())),
            None => self.tables.lease(partition),
        }
    }

    /// Moves a sweep cursor, if that is forward.
    pub(super) fn advance_cursor(
        &mut self,
        shard: PartitionId,
        cursor: DueBucket,
    ) -> Result<(), StoreError> {
        let newest = match self.cursors.get(&shard) {
            Some(cursor) => Some(*cursor),
            None => self.tables.cursor(shard)?,
        };
        if newest.is_none_or(|newest| newest < cursor) {
            self.cursors.insert(shard, cursor);
        }
        Ok(())
    }

    /// Writes everything as one batch and syncs it.
    pub(super) fn commit(self) -> Result<(), fjall::Error> {
        let Self { tables, recent, .. } = self;
        let mut batch = tables.db.batch().durability(Some(PersistMode::SyncData));
        let mut encoder = Encoder::default();
        for key in self.due {
            batch.insert(&tables.due, key, []);
        }
        for key in self.attention {
            batch.insert(&tables.attention, key, []);
        }
        for (partition, lease) in &self.leases {
            let key = keys::partition(*partition);
            batch.insert(&tables.leases, key, encoder.lease(lease));
        }
        for (shard, cursor) in &self.cursors {
            let key = keys::partition(*shard);
            batch.insert(&tables.cursors, key, encoder.cursor(*cursor));
        }
        let mut written = Vec::with_capacity(self.rows.len());
        for (id, standing) in self.rows {
            let key = keys::row(id);
            if let Some(created) = standing.created {
                batch.insert(&tables.created, key, created);
            }
            if let Some(state) = standing.state {
                batch.insert(&tables.state, key, state.value);
                if let Some(expires_at) = state.expires_at {
                    batch.insert(&tables.expiry, keys::expiry(keys::hour(expires_at), id), []);
                }
            }
            written.extend(standing.state_stamp.map(|stamp| (id, stamp)));
        }
        batch.commit()?;
        for (id, stamp) in written {
            recent.insert(id, stamp);
        }
        Ok(())
    }
}

impl Standing {
    fn merge(&mut self, row: EncodedRow) {
        if let Some(created) = row.created
            && Some(row.stamp) > self.created_stamp
        {
            self.created = Some(created);
            self.created_stamp = Some(row.stamp);
            self.created_stamp_is_exact = true;
        }
        if Some(row.stamp) > self.state_stamp {
            self.state = Some(row.state);
            self.state_stamp = Some(row.stamp);
        }
    }
}
