//! The schedulers of the world: they hand operations off, and do recoveries.

use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{OperationId, ProcessState, Timestamp};
use waybill_state::{AttentionEntry, DueBucket, DueEntry};

use crate::rng::Rng;
use crate::rows;
use crate::run::{Run, START, What};
use crate::seen::Sight;

/// How far ahead a scheduler writes an entry again that is behind the cursor.
const INDEX_LEAD: Duration = Duration::from_secs(1);
/// How wrong a wrong clock is.
const HOUR: Duration = Duration::from_secs(3_600);

/// An operation that is handed off.
#[derive(Clone, Copy, Debug)]
pub struct HandOff {
    pub operation: OperationId,
    pub shard: usize,
    pub kind: Kind,
    pub due: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Plain,
    /// Its entry becomes visible long after it was decided.
    Late,
    /// The scheduler's clock is behind.
    Behind,
    /// The scheduler's clock is ahead, and is set back afterwards.
    Ahead,
    /// Its entry is lost.
    Lost,
}

/// The operations of a run, each with the time at which its scheduler writes it.
pub fn hand_offs(rng: &mut Rng, shards: u32) -> Vec<(u64, HandOff)> {
    // Sometimes more entries are due in one second than may be published during a lease.
    let burst = rng.chance(15).then(|| rng.between(10_000_000, 20_000_000));
    let count = match burst {
        Some(_) => rng.between(25, 40),
        None => rng.between(3, 28),
    };
    let one = |number: u64| {
        let operation = OperationId(Uuid::from_u128(u128::from(number) << 64 | 1));
        let kind = match rng.below(100) {
            0..75 => Kind::Plain,
            75..83 => Kind::Late,
            83..88 => Kind::Behind,
            88..93 => Kind::Ahead,
            _ => Kind::Lost,
        };
        let decided = rng.between(3_000_000, 20_000_000);
        let lag = match kind {
            Kind::Late => rng.between(1_000_000, 45_000_000),
            _ => rng.below(300_000),
        };
        let due = burst.unwrap_or(decided + rng.below(8_000_000));
        let due = START + Duration::from_micros(due);
        let due = match kind {
            Kind::Behind => due - HOUR,
            Kind::Ahead => due + HOUR,
            _ if burst.is_some() => due,
            _ => due - Duration::from_micros(rng.below(2_000_000)),
        };
        let partition = waybill_engine::partition_for(operation, shards);
        let hand_off = HandOff {
            operation,
            shard: partition.0 as usize,
            kind,
            due,
        };
        (decided + lag, hand_off)
    };
    (0..count).map(one).collect()
}

impl Run {
    /// A scheduler's commit lands: first the entry, then the row.
    pub fn hand_off(&mut self, hand_off: HandOff) {
        let HandOff {
            operation,
            shard,
            kind,
            due,
        } = hand_off;
        if kind != Kind::Lost {
            self.write_entry(shard, DueEntry { due, operation });
        }
        let after = self.rng.below(100_000);
        self.later(after, What::Row(hand_off));
    }

    pub fn row(&mut self, hand_off: HandOff) {
        let HandOff { operation, due, .. } = hand_off;
        let mut row = rows::handed_off(operation, ProcessState::Processing, Some(due));
        row.state.updated_at = match hand_off.kind {
            Kind::Ahead => self.wall() + HOUR,
            _ => self.wall(),
        };
        if !self.handled.contains(&operation) {
            self.store.rows.insert(operation, row);
        }
        if self.rng.chance(3) {
            self.store.unreadable.insert(operation);
            let after = self.rng.below(8_000_000);
            self.later(after, What::Readable(operation));
        }
        let at = self.wall();
        let attention = &mut self.store.shards[hand_off.shard].attention;
        attention.insert(AttentionEntry { at, operation });
        self.unwritten -= 1;
    }

    fn write_entry(&mut self, shard: usize, entry: DueEntry) {
        self.store.shards[shard].entries.insert(entry);
        let after = self.rng.below(1_000_000);
        self.later(after, What::Check { shard, entry });
    }

    /// The writer of an entry reads the cursor, and writes an entry behind it once more.
    pub fn check(&mut self, shard: usize, entry: DueEntry) {
        let cursor = self.store.shards[shard].cursor;
        let Some(cursor) = cursor.filter(|cursor| DueBucket::of(entry.due) < *cursor) else {
            self.relied_on.insert((shard, entry));
            return;
        };
        self.seen.count(Sight::EntriesWrittenAgain);
        let due = self.wall().max(cursor.start()) + INDEX_LEAD;
        let operation = entry.operation;
        self.write_entry(shard, DueEntry { due, operation });
    }

    /// A scheduler does the recoveries that it has read: their operations move, and end.
    pub fn consume(&mut self, shard: usize) {
        let of_shard = &mut self.store.shards[shard];
        for (operation, _) in &of_shard.recoveries[of_shard.done..] {
            if let Some(row) = self.store.rows.get_mut(operation) {
                row.state.state = ProcessState::Processed;
                row.state.next_due = None;
            }
            self.handled.insert(*operation);
        }
        of_shard.done = of_shard.recoveries.len();
        let after = self.rng.between(20_000, 400_000);
        self.later(after, What::Consume(shard));
    }
}
