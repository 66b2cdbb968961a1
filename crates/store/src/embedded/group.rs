//! One group commit: the changes of several callers, compared with stored values and with each
//! other, and then written as one atomic, synced batch.
//!
//! What must hold:
//!
//! * Only the writer's thread makes groups, one after the other, so no value changes between its
//!   comparison and the write.
//! * A key occurs in the database's batch at most once: rows, leases and cursors are merged here
//!   first.
//! * A call whose comparison fails adds nothing to the group.
//! * An unreadable row fails no call. A write is compared with the readable part; if it wins, the
//!   values that it replaces are set aside in the same batch.
//! * [`RecentStamps`] learns stamps only after they are durable.

use std::collections::HashMap;
use std::time::Duration;

use fjall::UserValue;
use waybill_engine::{OperationId, PartitionId, Stamp, Timestamp};

use super::recent::RecentStamps;
use super::tables::{Stored, Tables};
use crate::codec::{Encoder, StateHeader};
use crate::keys::{self, INDEX_KEY_LEN, RowPart};
use crate::{
    CorruptRow, DueBucket, Layout, Lease, LeaseKey, ReplyKey, StoreError, WriteBatch, Written,
};
use waybill_clock::wall_clock;

/// A [`WriteBatch`] as bytes. The caller's thread makes it, to save time of the writer's thread.
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
                .map(|(index_shard, entry)| keys::index(*index_shard, entry.due, entry.operation))
                .collect(),
            attention: batch
                .attention
                .iter()
                .map(|(index_shard, entry)| keys::index(*index_shard, entry.at, entry.operation))
                .collect(),
        }
    }

    /// How many rows it writes.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }
}

/// The state of an operation's row: what is stored, and what the group writes.
struct PendingRow {
    /// The stamp of the state, if there is one.
    state_stamp: Option<Stamp>,
    /// The stamp of the immutable part, or an upper bound of it.
    created_stamp: Option<Stamp>,
    /// Whether `created_stamp` is known and not a bound.
    created_stamp_is_exact: bool,
    /// Whether this process wrote the row recently, so that its immutable part is readable.
    is_recent: bool,
    /// The state to write.
    state: Option<EncodedState>,
    /// The immutable part to write.
    created: Option<UserValue>,
    /// The damage found in the stored row, if any.
    damage: Option<Box<Damage>>,
}

/// A stored row with an unreadable part, and its old values, to be set aside. A row in a damaged
/// block has no values.
struct Damage {
    /// The unreadable part; taken once it is reported.
    unreported: Option<CorruptRow>,
    old_state: Option<UserValue>,
    old_created: Option<UserValue>,
}

/// The changes gathered for one commit.
pub(super) struct Group<'a> {
    tables: &'a Tables,
    recent: &'a mut RecentStamps,
    rows: HashMap<OperationId, PendingRow>,
    leases: HashMap<LeaseKey, Lease>,
    layout: Option<Layout>,
    /// The reply key, if this group creates it.
    reply_key: Option<ReplyKey>,
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
            layout: None,
            reply_key: None,
            cursors: HashMap::new(),
            due: Vec::new(),
            attention: Vec::new(),
        }
    }

    /// Adds a batch. For each part of a row, keeps the version with the higher stamp.
    pub(super) fn write(&mut self, batch: EncodedBatch) -> Result<Written, StoreError> {
        self.rows.reserve(batch.rows.len());
        for row in &batch.rows {
            self.load(row)?;
        }
        let mut written = Written::default();
        for row in batch.rows {
            if let Some(pending) = self.rows.get_mut(&row.id) {
                pending.merge(row);
                written.replaced.extend(pending.replaced());
            }
        }
        self.due.extend(batch.due);
        self.attention.extend(batch.attention);
        Ok(written)
    }

    /// Loads the stored parts of a row with which `row` must be compared.
    fn load(&mut self, row: &EncodedRow) -> Result<(), StoreError> {
        if !self.rows.contains_key(&row.id) {
            let pending = self.stored(row.id)?;
            self.rows.insert(row.id, pending);
        }
        if let Some(pending) = self.rows.get_mut(&row.id)
            && row.created.is_some()
            && !pending.created_stamp_is_exact
            && (!pending.is_recent || Some(row.stamp) <= pending.created_stamp)
        {
            pending.found_created(self.tables.stored_created(row.id)?);
        }
        Ok(())
    }

    fn stored(&self, id: OperationId) -> Result<PendingRow, StoreError> {
        if let Some(stamp) = self.recent.get(id) {
            return Ok(PendingRow {
                is_recent: true,
                ..PendingRow::with_state(Some(stamp))
            });
        }
        let Some(Stored { bytes, stamp }) = self.tables.stored_state(id)? else {
            return Ok(PendingRow::with_state(None));
        };
        let corrupt = match stamp {
            Ok(stamp) => return Ok(PendingRow::with_state(Some(stamp))),
            Err(corrupt) => corrupt,
        };
        let created = self.tables.stored_created(id)?;
        let damage = Damage {
            unreported: Some(corrupt),
            old_state: bytes,
            old_created: created.as_ref().and_then(|created| created.bytes.clone()),
        };
        // The state's stamp was at least that of the immutable part.
        let stamp = created.and_then(|created| created.stamp.ok());
        Ok(PendingRow {
            created_stamp_is_exact: true,
            damage: Some(Box::new(damage)),
            ..PendingRow::with_state(stamp)
        })
    }

    /// Takes a lease if the newest is exactly `seen`. Returns whether it is taken.
    pub(super) fn take_lease(
        &mut self,
        seen: Option<&Lease>,
        lease: Lease,
    ) -> Result<bool, StoreError> {
        let newest = self.newest_lease(lease.key)?;
        let taken = newest.as_ref() == seen;
        if taken {
            self.leases.insert(lease.key, lease);
        }
        Ok(taken)
    }

    /// Renews a lease if the newest is an earlier one of the same ownership. Returns whether
    /// `lease` is the newest now.
    pub(super) fn renew_lease(&mut self, lease: Lease) -> Result<bool, StoreError> {
        let Some(newest) = self.newest_lease(lease.key)? else {
            return Ok(false);
        };
        if newest == lease {
            return Ok(true);
        }
        let renewed = newest.owner == lease.owner
            && newest.epoch == lease.epoch
            && newest.renewal < lease.renewal;
        if renewed {
            self.leases.insert(lease.key, lease);
        }
        Ok(renewed)
    }

    fn newest_lease(&self, key: LeaseKey) -> Result<Option<Lease>, StoreError> {
        match self.leases.get(&key) {
            Some(lease) => Ok(Some(lease.clone())),
            None => self.tables.lease(key),
        }
    }

    /// Replaces the layout if the newest is exactly `seen`. Returns whether `layout` is the newest
    /// now.
    pub(super) fn set_layout(
        &mut self,
        seen: Option<&Layout>,
        layout: Layout,
    ) -> Result<bool, StoreError> {
        let newest = match &self.layout {
            Some(newest) => Some(newest.clone()),
            None => self.tables.layout()?,
        };
        if newest.as_ref() == seen {
            self.layout = Some(layout);
            return Ok(true);
        }
        Ok(newest == Some(layout))
    }

    /// The reply key: the stored one, or else that of the first caller.
    pub(super) fn reply_key(&mut self, candidate: ReplyKey) -> Result<ReplyKey, StoreError> {
        if let Some(created) = &self.reply_key {
            return Ok(created.clone());
        }
        if let Some(stored) = self.tables.reply_key()? {
            return Ok(stored);
        }
        Ok(self.reply_key.insert(candidate).clone())
    }

    /// Moves a sweep cursor forward. Ignores a move backward.
    pub(super) fn advance_cursor(
        &mut self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> Result<(), StoreError> {
        let newest = match self.cursors.get(&index_shard) {
            Some(cursor) => Some(*cursor),
            None => self.tables.cursor(index_shard)?,
        };
        if newest.is_none_or(|newest| newest < cursor) {
            self.cursors.insert(index_shard, cursor);
        }
        Ok(())
    }

    /// Writes everything as one batch and syncs it.
    pub(super) fn commit(self) -> Result<(), fjall::Error> {
        let Self { tables, recent, .. } = self;
        let mut batch = tables.db.batch();
        let mut encoder = Encoder::default();
        for key in self.due {
            batch.insert(&tables.due, key, []);
        }
        for key in self.attention {
            batch.insert(&tables.attention, key, []);
        }
        for (key, lease) in &self.leases {
            batch.insert(&tables.leases, keys::lease(*key), encoder.lease(lease));
        }
        if let Some(layout) = &self.layout {
            batch.insert(&tables.leases, keys::LAYOUT, encoder.layout(layout));
        }
        if let Some(key) = &self.reply_key {
            batch.insert(&tables.leases, keys::REPLY_KEY, encoder.reply_key(key));
        }
        for (index_shard, cursor) in &self.cursors {
            let key = keys::partition(*index_shard);
            batch.insert(&tables.cursors, key, encoder.cursor(*cursor));
        }
        let mut written = Vec::with_capacity(self.rows.len());
        for (id, mut pending) in self.rows {
            let key = keys::row(id);
            if pending.is_replaced()
                && let Some(damage) = pending.damage.take()
            {
                let at = wall_clock();
                let parts = [
                    (RowPart::State, damage.old_state),
                    (RowPart::Created, damage.old_created),
                ];
                for (part, bytes) in parts {
                    if let Some(bytes) = bytes {
                        batch.insert(&tables.corrupt, keys::aside(id, at, part), bytes);
                    }
                }
            }
            if let Some(created) = pending.created {
                batch.insert(&tables.created, key, created);
            }
            if let Some(state) = pending.state {
                batch.insert(&tables.state, key, state.value);
                if let Some(expires_at) = state.expires_at {
                    batch.insert(&tables.expiry, keys::expiry(keys::hour(expires_at), id), []);
                }
            }
            // The stamp of a row that stays damaged is not remembered: the next write must find the
            // damage.
            if pending.damage.is_none() {
                written.extend(pending.state_stamp.map(|stamp| (id, stamp)));
            }
        }
        tables.commit_synced(batch)?;
        for (id, stamp) in written {
            recent.insert(id, stamp);
        }
        Ok(())
    }
}

impl PendingRow {
    /// A row that is stored with a state of this stamp, or is not stored.
    fn with_state(stamp: Option<Stamp>) -> Self {
        // An immutable part is always written together with a state, so its stamp is not above the
        // state's, and without a state there is none.
        Self {
            state_stamp: stamp,
            created_stamp: stamp,
            created_stamp_is_exact: stamp.is_none(),
            is_recent: false,
            state: None,
            created: None,
            damage: None,
        }
    }

    /// Records whether the immutable part is stored, and with which stamp.
    fn found_created(&mut self, created: Option<Stored>) {
        self.created_stamp_is_exact = true;
        self.created_stamp = match created {
            None => None,
            Some(Stored {
                stamp: Ok(stamp), ..
            }) => Some(stamp),
            Some(Stored {
                stamp: Err(corrupt),
                bytes,
            }) => {
                self.damage = Some(Box::new(Damage {
                    unreported: Some(corrupt),
                    old_state: None,
                    old_created: bytes,
                }));
                None
            }
        };
    }

    /// The unreadable row that is now replaced. Returned by the first call only.
    fn replaced(&mut self) -> Option<CorruptRow> {
        if !self.is_replaced() {
            return None;
        }
        self.damage.as_mut()?.unreported.take()
    }

    /// Whether the group writes a part of the row.
    fn is_replaced(&self) -> bool {
        self.state.is_some() || self.created.is_some()
    }

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
