//! The walk over old attention entries: removes those that lead to nothing.
//!
//! An entry over a day old leads to nothing once its operation's row no longer exists, or is final
//! without being parked. A caller that reopens an operation writes a new entry.
//!
//! * **Runs are deleted as one range**, so that an almost empty day holds few tombstones and a
//!   listing of it stays cheap. A deleted entry may return on a replica that was unavailable. It is
//!   a hint, and the next walk finds it again, so the tables need no long grace.
//! * **No delete affects a later write.** Each carries a timestamp of some minutes before its reads
//!   began, so that entries written in the meantime stay.
//! * Several processes may walk at the same time; they delete the same entries.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use scylla::statement::prepared::PreparedStatement;
use waybill_engine::{OperationId, Timestamp};

use super::attention::{self, ALL, numbers};
use super::due::read_entries;
use super::link::Link;
use super::rows::Rows;
use crate::{RowRead, StoreError, keys};
use waybill_clock::wall_clock;

/// The action that errors name.
const ACTION: &str = "purging the attention table";

/// How old an entry is when it is looked at for the first time.
const AGE: Duration = Duration::from_secs(24 * 3_600);

/// How far before its reads a walk dates its deletes: more than clocks differ and a write takes.
const MARGIN: Duration = Duration::from_secs(300);

/// How many entries, each with its row, are looked at together.
const PAGE: usize = 256;

/// The pause after each page, so that a walk takes little of the servers' capacity.
const PAUSE: Duration = Duration::from_millis(100);

/// The statements of the walk, and its reader of rows.
pub(super) struct Walk {
    link: Arc<Link>,
    rows: Arc<Rows>,
    select_days: PreparedStatement,
    select_index_shards: PreparedStatement,
    select_entries: PreparedStatement,
    delete_entries: PreparedStatement,
    delete_index_shard: PreparedStatement,
    delete_day: PreparedStatement,
}

impl Walk {
    pub(super) async fn new(
        link: Arc<Link>,
        rows: Arc<Rows>,
        keyspace: &str,
    ) -> Result<Self, StoreError> {
        let prepare = |statement: String| link.prepare(statement);
        Ok(Self {
            select_days: prepare(format!(
                "SELECT day FROM {keyspace}.attention_days WHERE part = ? AND day < ?"
            ))
            .await?,
            select_index_shards: prepare(format!(
                "SELECT shard FROM {keyspace}.attention_shards WHERE day = ?"
            ))
            .await?,
            select_entries: prepare(format!(
                "SELECT entry FROM {keyspace}.attention \
                 WHERE shard = ? AND day = ? AND entry > ? ORDER BY entry ASC LIMIT ?"
            ))
            .await?,
            delete_entries: prepare(format!(
                "DELETE FROM {keyspace}.attention USING TIMESTAMP ? \
                 WHERE shard = ? AND day = ? AND entry >= ? AND entry <= ?"
            ))
            .await?,
            delete_index_shard: prepare(format!(
                "DELETE FROM {keyspace}.attention_shards USING TIMESTAMP ? \
                 WHERE day = ? AND shard = ?"
            ))
            .await?,
            delete_day: prepare(format!(
                "DELETE FROM {keyspace}.attention_days USING TIMESTAMP ? \
                 WHERE part = ? AND day = ?"
            ))
            .await?,
            link,
            rows,
        })
    }

    /// Walks again and again, at this interval. The first walk begins at some moment of the first
    /// interval, so that processes which began together do not walk together.
    pub(super) async fn run(self, interval: Duration) {
        let fraction = f64::from(uuid::Uuid::new_v4().as_u128() as u8) / 255.0;
        let mut pause = interval.mul_f64(fraction);
        loop {
            tokio::time::sleep(pause).await;
            pause = interval;
            match AssertUnwindSafe(self.walk()).catch_unwind().await {
                Ok(Ok(0)) => {}
                Ok(Ok(spent)) => tracing::debug!(spent, "removed old attention entries"),
                Err(_) => tracing::error!("a removal of old attention entries panicked"),
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "could not remove all old attention entries");
                }
            }
        }
    }

    /// Looks at every entry of the days that ended long enough ago. Returns how many were removed.
    async fn walk(&self) -> Result<usize, StoreError> {
        let today = attention::day_of(wall_clock() - AGE);
        let mut spent = 0;
        for day in numbers(&self.link, &self.select_days, (ALL, today)).await? {
            let began = wall_clock() - MARGIN;
            let mut is_empty = true;
            for index_shard in numbers(&self.link, &self.select_index_shards, (day,)).await? {
                let (removed, left) = self.walk_partition(index_shard, day).await?;
                spent += removed;
                if left == 0 {
                    self.delete(&self.delete_index_shard, (began.0, day, index_shard))
                        .await?;
                } else {
                    is_empty = false;
                }
            }
            if is_empty {
                self.delete(&self.delete_day, (began.0, ALL, day)).await?;
            }
        }
        Ok(spent)
    }

    /// Looks at the entries of one day and index shard. Returns how many were removed, and how many
    /// are left.
    async fn walk_partition(
        &self,
        index_shard: i64,
        day: i64,
    ) -> Result<(usize, usize), StoreError> {
        let (mut removed, mut left) = (0, 0);
        // Nothing precedes the empty key.
        let mut after = Vec::new();
        loop {
            let began = wall_clock() - MARGIN;
            let limit = i32::try_from(PAGE).unwrap_or(i32::MAX);
            let values = (index_shard, day, after.as_slice(), limit);
            let entries = read_entries(&self.link, ACTION, &self.select_entries, values).await?;
            let ids: Vec<_> = entries.iter().map(|(_, operation)| *operation).collect();
            let rows = self.rows.read(&self.link, &ids).await?;
            for (is_spent, run) in runs(&entries, &rows) {
                if !is_spent {
                    left += run.len();
                    continue;
                }
                removed += run.len();
                if let [first, ..] = run
                    && let [.., last] = run
                {
                    let [first, last] = [first, last].map(|(at, id)| keys::entry(*at, *id));
                    let values = (began.0, index_shard, day, &first[..], &last[..]);
                    self.delete(&self.delete_entries, values).await?;
                }
            }
            match entries.last() {
                Some(&(at, id)) if entries.len() == PAGE => after = keys::entry(at, id).to_vec(),
                Some(_) | None => return Ok((removed, left)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn delete(
        &self,
        statement: &PreparedStatement,
        values: impl scylla::serialize::row::SerializeRow,
    ) -> Result<(), StoreError> {
        let delete = || self.link.session.execute_unpaged(statement, &values);
        self.link.repeat(ACTION, delete).await?;
        Ok(())
    }
}

/// An entry of the table.
type Entry = (Timestamp, OperationId);

/// Splits entries into runs that lead to nothing, and others.
fn runs<'a>(
    entries: &'a [Entry],
    rows: &'a [RowRead],
) -> impl Iterator<Item = (bool, &'a [Entry])> + use<'a> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let is_spent = leads_to_nothing(rows.get(begin)?);
        let rest = rows[begin..].iter();
        let len = rest
            .take_while(|row| leads_to_nothing(row) == is_spent)
            .count();
        let run = entries.get(begin..begin + len)?;
        begin += len;
        Some((is_spent, run))
    })
}

/// Whether an entry of an operation whose row reads like this leads to nothing. A row that cannot
/// be read needs attention.
fn leads_to_nothing(row: &RowRead) -> bool {
    match row {
        Ok(None) => true,
        Ok(Some(row)) => row.state.state.is_final() && !row.state.state.is_parked(),
        Err(_) => false,
    }
}
