//! A state store that measures each request: its duration, failures, and damage found.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use metrics::{Counter, Gauge, Histogram};
use waybill_engine::{OperationId, PartitionId};
use waybill_store::{
    AttentionCursor, AttentionPage, DamageReport, DueBucket, DueEntry, Layout, Lease, LeaseKey,
    ReplyKey, RowRead, Store, StoreError, WriteBatch, WriteFailure, Written,
};
use waybill_telemetry::{Declared, Metric};

const DURATION: Metric<Histogram, 1> = Metric::new(
    "waybill_store_request_duration_seconds",
    "Duration of requests to the state store, by kind of request",
    ["statement"],
);
const FAILURES: Metric<Counter, 1> = Metric::new(
    "waybill_store_failures_total",
    "Requests to the state store that failed or whose outcome is unknown, by kind of request",
    ["statement"],
);
const DAMAGED: Metric<Gauge> = Metric::new(
    "waybill_store_damaged_parts",
    "Damaged rows and ranges of index entries found in the embedded store since it was opened",
    [],
);

/// All metrics of the state store.
pub const METRICS: &[&dyn Declared] = &[&DURATION, &FAILURES, &DAMAGED];

/// A store whose requests are measured.
#[derive(Debug)]
pub struct InstrumentedStore {
    store: Arc<dyn Store>,
    write: Statement,
    read: Statement,
    lease: Statement,
    take_lease: Statement,
    renew_lease: Statement,
    layout: Statement,
    set_layout: Statement,
    reply_key: Statement,
    due: Statement,
    due_cursor: Statement,
    advance_due_cursor: Statement,
    attention: Statement,
    damaged: Gauge,
}

#[derive(Debug)]
struct Statement {
    duration: Histogram,
    failures: Counter,
}

impl Statement {
    fn new(name: &str) -> Self {
        Self {
            duration: DURATION.of([name]),
            failures: FAILURES.of([name]),
        }
    }

    fn of<'a, T: 'a>(
        &'a self,
        answer: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let asked = Instant::now();
        let measured = answer.inspect(move |answer| {
            self.duration.record(asked.elapsed());
            if answer.is_err() {
                self.failures.increment(1);
            }
        });
        measured.boxed()
    }
}

impl InstrumentedStore {
    /// Measures the requests to `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            write: Statement::new("write"),
            read: Statement::new("read"),
            lease: Statement::new("lease"),
            take_lease: Statement::new("take-lease"),
            renew_lease: Statement::new("renew-lease"),
            layout: Statement::new("layout"),
            set_layout: Statement::new("set-layout"),
            reply_key: Statement::new("reply-key"),
            due: Statement::new("due"),
            due_cursor: Statement::new("due-cursor"),
            advance_due_cursor: Statement::new("advance-due-cursor"),
            attention: Statement::new("attention"),
            damaged: DAMAGED.of([]),
        }
    }

    /// Measures a read that may find damage.
    fn may_meet_damage<'a, T: 'a>(
        &'a self,
        answer: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let measured = answer.inspect(|_| {
            self.damaged.set(self.store.damaged_parts() as f64);
        });
        measured.boxed()
    }
}

impl Store for InstrumentedStore {
    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }

    fn damaged_parts(&self) -> u64 {
        self.store.damaged_parts()
    }

    fn damage(&self) -> DamageReport {
        self.store.damage()
    }

    fn write_failure(&self) -> Option<WriteFailure> {
        self.store.write_failure()
    }

    fn write(&self, batch: WriteBatch) -> BoxFuture<'_, Result<Written, StoreError>> {
        self.write.of(self.store.write(batch))
    }

    fn get_many(&self, ids: Vec<OperationId>) -> BoxFuture<'_, Result<Vec<RowRead>, StoreError>> {
        self.may_meet_damage(self.read.of(self.store.get_many(ids)))
    }

    fn lease(&self, key: LeaseKey) -> BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        self.lease.of(self.store.lease(key))
    }

    fn take_lease(
        &self,
        seen: Option<Lease>,
        lease: Lease,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.take_lease.of(self.store.take_lease(seen, lease))
    }

    fn renew_lease(&self, lease: Lease) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.renew_lease.of(self.store.renew_lease(lease))
    }

    fn layout(&self) -> BoxFuture<'_, Result<Option<Layout>, StoreError>> {
        self.layout.of(self.store.layout())
    }

    fn set_layout(
        &self,
        seen: Option<Layout>,
        layout: Layout,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.set_layout.of(self.store.set_layout(seen, layout))
    }

    fn reply_key(&self, candidate: ReplyKey) -> BoxFuture<'_, Result<ReplyKey, StoreError>> {
        self.reply_key.of(self.store.reply_key(candidate))
    }

    fn due(
        &self,
        index_shard: PartitionId,
        bucket: DueBucket,
        after: Option<DueEntry>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<DueEntry>, StoreError>> {
        let entries = self.store.due(index_shard, bucket, after, limit);
        self.may_meet_damage(self.due.of(entries))
    }

    fn due_cursor(
        &self,
        index_shard: PartitionId,
    ) -> BoxFuture<'_, Result<Option<DueBucket>, StoreError>> {
        self.due_cursor.of(self.store.due_cursor(index_shard))
    }

    fn advance_due_cursor(
        &self,
        index_shard: PartitionId,
        cursor: DueBucket,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let advanced = self.store.advance_due_cursor(index_shard, cursor);
        self.advance_due_cursor.of(advanced)
    }

    fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<AttentionPage, StoreError>> {
        let page = self.store.attention_page(index_shards, cursor, limit);
        self.may_meet_damage(self.attention.of(page))
    }
}
