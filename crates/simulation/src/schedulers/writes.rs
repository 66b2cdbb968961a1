//! The writes of group commits: they become durable in parts, late, or without an answer.

use std::collections::VecDeque;
use std::time::Duration;

use waybill_engine::{PartitionId, ShardId, Timestamp};
use waybill_scheduler_core::{CommitNumber, Input};
use waybill_state::{AttentionEntry, DueEntry, LeaseKey, RowWrite, WriteBatch, Written};

use super::calls::unknown;
use super::messages::intents;
use super::{Act, Scheduler};
use crate::bugs::Bug;
use crate::history::Rule;
use crate::run::Run;
use crate::seen::Sight;

/// How long after it was sent a write may still reach the store, even if its process has died. It
/// exceeds a lease, so writes of dead owners arrive among those of their successors.
const LATE_MICROS: u64 = 4_000_000;
/// Of this many writes, one is not reported as durable, and one gets no answer.
const FAULTS_ONE_IN: u64 = 60;

/// The writer of a row, and what it could know.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    pub scheduler: usize,
    pub key: LeaseKey,
    pub epoch: waybill_engine::Epoch,
    /// The latest reading of its clock when it decided.
    pub local: Timestamp,
    /// The end of the inbox when it started, or after its last pause.
    pub replies_end: usize,
    /// It may not learn that the row was written, and write it again.
    pub may_repeat: bool,
}

/// Part of a write.
#[derive(Debug)]
pub enum Piece {
    Due(PartitionId, DueEntry),
    Attention(PartitionId, AttentionEntry),
    Row(Box<RowWrite>, Writer),
}

/// A write on its way to the store.
#[derive(Debug)]
pub struct Write {
    began: Timestamp,
    pieces: VecDeque<Piece>,
    has_landed: bool,
    /// The entries of the deadline index that were written, and not yet compared with the cursor.
    entries: Vec<(PartitionId, DueEntry)>,
    /// Its pieces leave the process's memory only when they land.
    is_buffered: bool,
    /// Whether its process learns that it is durable.
    is_answered: bool,
}

/// How much of a write is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    None,
    Partly,
    Durable,
}

impl Write {
    pub fn progress(&self) -> Progress {
        match (self.pieces.is_empty(), self.has_landed) {
            (true, _) => Progress::Durable,
            (false, true) => Progress::Partly,
            (false, false) => Progress::None,
        }
    }
}

impl Scheduler {
    /// The shard that writes a row.
    fn shard_of(&self, row: &RowWrite) -> Option<ShardId> {
        let mut of = self.readings.iter();
        let found =
            of.find(|(_, reading)| reading.epoch == row.state.epoch && reading.filter.has(row.id));
        found.map(|(shard, _)| *shard)
    }
}

impl Run {
    /// Sends a write to the store.
    pub fn write_rows(
        &mut self,
        index: usize,
        number: CommitNumber,
        batch: WriteBatch,
        again_after: Option<Duration>,
    ) {
        let batch = self.corrupted_write(batch);
        let scheduler = &self.schedulers[index];
        let is_cut_off = scheduler.cut_off_until > self.now && !scheduler.keeps_rows;
        let fault = match self.is_calm() {
            true => None,
            false if is_cut_off => Some(0),
            false => Some(self.rng.below(2 * FAULTS_ONE_IN)),
        };
        let is_answered = !matches!(fault, Some(0 | 1));
        self.schedulers[index].has_stuck |= matches!(fault, Some(1));
        let writers = self.writers(index, &batch, again_after.is_some(), is_answered);
        let mut pieces = VecDeque::new();
        let entries = batch.due.clone();
        pieces.extend(
            batch
                .due
                .into_iter()
                .map(|(of, entry)| Piece::Due(of, entry)),
        );
        let attention = batch.attention.into_iter();
        pieces.extend(attention.map(|(of, entry)| Piece::Attention(of, entry)));
        for (row, writer) in batch.rows.into_iter().zip(writers) {
            pieces.push_back(Piece::Row(Box::new(row), writer));
        }
        let waits = again_after.map_or(0, |after| u64::try_from(after.as_micros()).unwrap());
        let first = waits + self.write_time();
        let rest = first + self.rng.below(2_000);
        let write = Write {
            began: self.now + Duration::from_micros(waits),
            pieces,
            has_landed: false,
            entries,
            is_buffered: self.rng.chance(50),
            is_answered,
        };
        match fault {
            // The outcome is unknown. It may have landed, or may land yet.
            Some(0) => {
                self.seen.count(Sight::UnknownWrites);
                let after = waits + self.travel();
                let result = match self.bug {
                    Some(Bug::AssumeDurable) => Ok(Written::default()),
                    _ => Err(unknown()),
                };
                self.schedulers[index].unanswered.insert(number);
                let failed = Act::Input(Input::Committed { number, result });
                self.act_later(index, after, failed);
                if is_cut_off {
                    return;
                }
                if self.rng.chance(50) {
                    return self.write_fails(write.pieces);
                }
            }
            // Nothing is heard of it.
            Some(1) if self.rng.chance(50) => return self.write_fails(write.pieces),
            _ => {}
        }
        self.schedulers[index].writes.insert(number, write);
        if self.bug == Some(Bug::SendBeforePersist) {
            let result = Ok(Written::default());
            self.act_later(index, 0, Act::Input(Input::Committed { number, result }));
        }
        self.act_later(
            index,
            first,
            Act::Land {
                number,
                is_rest: false,
            },
        );
        if !self.rng.is_script() {
            self.act_later(
                index,
                rest,
                Act::Land {
                    number,
                    is_rest: true,
                },
            );
        }
    }

    /// Who writes each row of a batch.
    fn writers(
        &mut self,
        index: usize,
        batch: &WriteBatch,
        is_again: bool,
        is_answered: bool,
    ) -> Vec<Writer> {
        let local = self.schedulers[index].clock.latest();
        let mut writers = Vec::new();
        let mut shards = Vec::new();
        for (at, row) in batch.rows.iter().enumerate() {
            if batch.rows[..at].iter().any(|other| other.id == row.id) {
                self.fail(Rule::Contract, row.id, || format!("two rows: {batch:?}"));
            }
            let scheduler = &self.schedulers[index];
            let Some(shard) = scheduler.shard_of(row) else {
                self.fail(Rule::Stamps, row.id, || {
                    format!("no shard that runs here writes {row:?}")
                });
                break;
            };
            let reading = &scheduler.readings[&shard];
            if !is_again && row.stamp <= reading.last_stamp {
                let last = reading.last_stamp;
                self.fail(Rule::Stamps, row.id, || format!("{row:?} after {last:?}"));
            }
            let reading = &self.schedulers[index].readings[&shard];
            writers.push(Writer {
                scheduler: index,
                key: reading.key,
                epoch: reading.epoch,
                local,
                replies_end: reading.replies_end,
                may_repeat: is_again || !is_answered,
            });
            if !is_again {
                let intended: Vec<_> = intents(row.id, &row.state).collect();
                if self.bug == Some(Bug::ResumeWithoutAsking) {
                    let new = intended.iter().filter(|intent| !self.judge.knows(intent));
                    self.schedulers[index].new_intents.extend(new);
                }
                let generation = self.schedulers[index].readings[&shard].generation;
                let own = self.schedulers[index].intents.entry((shard, generation));
                own.or_default().extend(intended);
                shards.push((shard, row.stamp));
            }
            let digest = self.judge.digest.rotate_left(7) ^ row.stamp.0.unsigned_abs();
            self.judge.digest = digest;
        }
        for (shard, stamp) in shards {
            if let Some(reading) = self.schedulers[index].readings.get_mut(&shard) {
                reading.last_stamp = stamp;
                reading.replies_end = reading.inbox_end;
            }
        }
        writers
    }

    fn write_time(&mut self) -> u64 {
        match self.rng.below(100) {
            0..=93 => self.rng.below(2_000),
            94..=98 => self.rng.below(200_000),
            _ => self.rng.below(1_500_000),
        }
    }

    /// The planted bugs: parts of a write are forgotten.
    fn corrupted_write(&mut self, mut batch: WriteBatch) -> WriteBatch {
        match self.bug {
            Some(Bug::SkipIndexEntry) => batch.due.clear(),
            Some(Bug::LoseTombstone) => batch.rows.retain(|row| !row.state.tombstone),
            _ => {}
        }
        batch
    }

    /// Part of a write becomes durable, or the rest.
    pub fn land(&mut self, index: usize, number: CommitNumber, is_rest: bool) {
        let paused_until = self.schedulers[index].paused_until;
        let is_whole = is_rest || !self.may_be_interrupted();
        let Some(write) = self.schedulers[index].writes.get_mut(&number) else {
            return;
        };
        let latest = write.began + Duration::from_micros(LATE_MICROS);
        let is_paused = paused_until.min(latest) > self.now;
        let is_buffered = match self.rng.is_script() {
            // A search tries both.
            true => is_paused && self.rng.fate(50),
            false => write.is_buffered,
        };
        if is_buffered && is_paused {
            // The unsent pieces are paused together with the process.
            let of = self.incarnation(index);
            let at = paused_until.min(latest);
            return self.act_at(of, at, Act::Land { number, is_rest });
        }
        let count = match is_whole {
            true => write.pieces.len(),
            false => self.rng.fate_index(write.pieces.len() + 1),
        };
        write.has_landed |= count > 0;
        let is_answered = write.is_answered;
        let pieces: Vec<Piece> = write.pieces.drain(..count).collect();
        for piece in pieces {
            self.land_piece(piece);
        }
        if !is_rest {
            self.is_up(index);
            // In a search, the rest may land much later.
            if self.rng.is_script() {
                self.act_later(
                    index,
                    0,
                    Act::Land {
                        number,
                        is_rest: true,
                    },
                );
            }
            return;
        }
        match is_answered {
            true => {
                let after = self.rng.below(1_000);
                self.act_later(index, after, Act::Written(number));
            }
            false => {
                self.schedulers[index].writes.remove(&number);
            }
        }
    }

    /// What a dead process had written becomes durable.
    pub fn land_late(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            self.land_piece(piece);
        }
    }

    pub fn land_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Due(of, entry) => {
                self.store.logs[of.0 as usize].add_entry(entry);
                let DueEntry { due, operation } = entry;
                self.note(operation, || format!("index: an entry at {due:?}"));
            }
            Piece::Attention(of, entry) => {
                self.store.attention.insert((of, entry));
            }
            Piece::Row(row, writer) => self.persist(*row, writer),
        }
    }

    /// Writes the entries of a write that a sweep has passed once more, further on, as its driver
    /// does. Returns whether there were any.
    fn write_entries_again(&mut self, index: usize, number: CommitNumber) -> bool {
        let scheduler = &mut self.schedulers[index];
        let Some(write) = scheduler.writes.get_mut(&number) else {
            return false;
        };
        let now = scheduler.clock.read(self.now);
        let logs = &mut self.store.logs;
        let again = |(of, entry): (PartitionId, DueEntry)| {
            let cursor = logs[of.0 as usize].cursor?;
            Some((of, entry.ahead_of(cursor, now)?))
        };
        write.entries = write.entries.drain(..).filter_map(again).collect();
        let entries = write.entries.clone();
        for (of, entry) in &entries {
            self.store.logs[of.0 as usize].add_entry(*entry);
            self.seen.count(Sight::EntriesWrittenAgain);
            let DueEntry { due, operation } = *entry;
            self.note(operation, || format!("index: an entry again, at {due:?}"));
        }
        !entries.is_empty()
    }

    /// The process learns that a write is durable, unless entries must be written again first.
    pub fn written(&mut self, index: usize, number: CommitNumber) {
        if self.write_entries_again(index, number) {
            let after = self.travel();
            return self.act_later(index, after, Act::Written(number));
        }
        if self.schedulers[index].writes.remove(&number).is_some() {
            let result = Ok(Written::default());
            self.give(index, Input::Committed { number, result });
        }
    }

    /// The process of a write dies: some of what is left may land late.
    pub fn write_dies(&mut self, index: usize, write: Write) {
        let left = write.pieces.len();
        if left == 0 {
            return;
        }
        if !self.rng.fate(60) {
            return self.write_fails(write.pieces);
        }
        let count = self.rng.fate_index(left) + 1;
        let mut pieces = Vec::from(write.pieces);
        let failed = pieces.split_off(count);
        self.write_fails(failed);
        let latest = write.began + Duration::from_micros(LATE_MICROS);
        let within = u64::try_from(latest.since(self.now).as_micros()).unwrap();
        let after = self.rng.below(within.max(1));
        self.act_later(index, after, Act::LandLate(pieces));
    }
}
