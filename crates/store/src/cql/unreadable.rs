//! Keeps the bytes of unreadable rows aside when they are read, because a blind write would lose
//! them.
//!
//! A scheduler reads a row before it continues an operation, and a request for an operation reads
//! its row. A row that is damaged and then overwritten without a read is lost. The rows that were
//! found are remembered, within bounds, so that the write that replaces one can name it.
//!
//! The copies expire after 90 days, counted again by each process that finds the row unchanged:
//! until the row is replaced, its own table still holds its bytes, too.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;
use waybill_clock::wall_clock;
use waybill_engine::OperationId;

use super::link::Link;
use crate::{CorruptRow, RowWrite, StoreError};

/// How many unreadable rows are remembered. A write that replaces a further one does not name it.
const REMEMBERED_MAX: usize = 10_000;

/// How long the bytes of an unreadable row are kept for a person.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3_600);

/// The part of a row that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    State,
    Created,
}

impl Part {
    /// For people.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Created => "immutable part",
        }
    }
}

/// A row that was read and cannot be decoded: its values, each with its stamp.
pub(super) struct Damage<'a> {
    pub(super) corrupt: CorruptRow,
    pub(super) part: Part,
    pub(super) state: (&'a [u8], i64),
    pub(super) created: Option<(&'a [u8], i64)>,
}

/// A row whose bytes are set aside.
struct Known {
    corrupt: CorruptRow,
    part: Part,
    /// The stamp of the part that cannot be read.
    stamp: i64,
}

/// Keeps unreadable rows aside.
pub(super) struct Unreadable {
    insert: PreparedStatement,
    known: Mutex<HashMap<OperationId, Known>>,
}

impl Unreadable {
    pub(super) async fn new(link: &Link, keyspace: &str) -> Result<Self, StoreError> {
        let insert = format!(
            "INSERT INTO {keyspace}.unreadable (id, part, stamp, value, found_at) \
             VALUES (?, ?, ?, ?, ?) USING TTL {}",
            KEPT.as_secs()
        );
        Ok(Self {
            insert: link.prepare(insert).await?,
            known: Mutex::default(),
        })
    }

    /// Keeps an unreadable row aside, once. If that fails, the read still returns the row's error,
    /// and the next read tries again.
    pub(super) async fn found(&self, link: &Link, damage: Damage<'_>) -> CorruptRow {
        let corrupt = damage.corrupt.clone();
        let stamp = match (damage.part, damage.created) {
            (Part::Created, Some((_, stamp))) => stamp,
            (Part::State | Part::Created, _) => damage.state.1,
        };
        let is_known = self.with_known(|known| {
            let known = known.get(&corrupt.id);
            known.is_some_and(|known| known.part == damage.part && known.stamp == stamp)
        });
        if is_known {
            return corrupt;
        }
        match self.keep_aside(link, &damage).await {
            Ok(()) => {
                tracing::error!(%corrupt, "copied an unreadable row to table unreadable");
                self.with_known(|known| {
                    if known.len() < REMEMBERED_MAX {
                        let (corrupt, part) = (damage.corrupt, damage.part);
                        known.insert(
                            corrupt.id,
                            Known {
                                corrupt,
                                part,
                                stamp,
                            },
                        );
                    }
                });
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    %corrupt,
                    error,
                    "could not copy an unreadable row to table unreadable"
                );
            }
        }
        corrupt
    }

    /// Which of the rows that were found unreadable these writes have replaced.
    pub(super) fn replaced(&self, rows: &[RowWrite]) -> Vec<CorruptRow> {
        self.with_known(|known| {
            if known.is_empty() {
                return Vec::new();
            }
            let replaced = rows.iter().filter_map(|row| {
                let found = known.get(&row.id)?;
                let gives_part = found.part == Part::State || row.created.is_some();
                if !gives_part || row.stamp.0 <= found.stamp {
                    return None;
                }
                known.remove(&row.id).map(|found| found.corrupt)
            });
            replaced.collect()
        })
    }

    async fn keep_aside(&self, link: &Link, damage: &Damage<'_>) -> Result<(), StoreError> {
        let found_at = CqlTimestamp(wall_clock().as_millis());
        let id: Uuid = damage.corrupt.id.0;
        let parts = [
            (Part::State, Some(damage.state)),
            (Part::Created, damage.created),
        ];
        for (part, value) in parts {
            let Some((value, stamp)) = value else {
                continue;
            };
            let values = (id, part.what(), stamp, value, found_at);
            link.repeat("keeping an unreadable row aside", || {
                link.session.execute_unpaged(&self.insert, values)
            })
            .await?;
        }
        Ok(())
    }

    fn with_known<T>(&self, access: impl FnOnce(&mut HashMap<OperationId, Known>) -> T) -> T {
        access(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
