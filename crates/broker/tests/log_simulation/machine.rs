//! One run: a log on a simulated disk, its producers, and the threads that serve it, one act after
//! another.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use waybill_disk::files::Disk;
use waybill_simulated_disk::{Loss, Rng, SimulatedDisk};
use waybill_wire::batch::BatchHeader;
use waybill_wire::batch::made::batch;

use super::super::partition::{AppendError, Condition, Limits, Partition};
use super::super::sync_threads::{Chores, SyncQueue};
use super::super::synced::SyncedEnds;
use super::super::syncing::SyncJob;
use super::boots::Boots;
use super::bugs::{Bug, BuggyDisk};
use super::judge::{Entry, Judge, Rule, Verdict, Violation, broken};
use crate::TopicConfig;
use crate::retention::SegmentAges;

pub(super) const KEY: ([u8; 16], i32) = ([7; 16], 0);
/// As many batches as a producer may have in flight, and as many as the log recognises.
const IN_FLIGHT_MAX: usize = 5;

pub(super) fn data_dir() -> &'static Path {
    Path::new("/data")
}

pub(super) fn log_dir() -> &'static Path {
    Path::new("/data/log")
}

/// A producer and its newest batches.
pub(super) struct Producer {
    /// Whether it has sequences.
    is_idempotent: bool,
    id: i64,
    sequence: i32,
    /// The number of its next batch.
    number: u64,
    /// Sent, and neither acknowledged nor given up: number, bytes and timestamp.
    unacknowledged: VecDeque<(u64, Bytes, i64)>,
}

/// A process that has the log open.
pub(super) struct Process {
    pub(super) partition: Arc<Partition>,
    pub(super) syncs: Arc<SyncQueue>,
    pub(super) chores: Chores,
    queued: VecDeque<Arc<Partition>>,
    job: Option<(Arc<Partition>, SyncJob, Option<std::io::Result<()>>)>,
    waiting: Vec<Waiting>,
    /// The high watermark after a sync failed.
    shown_at_failure: Option<i64>,
}

/// A request that waits for a sync.
struct Waiting {
    synced: Pin<Box<dyn Future<Output = bool>>>,
    sync_to: i64,
}

pub(super) struct Machine {
    pub(super) rng: Rng,
    pub(super) disk: SimulatedDisk,
    pub(super) bug: Option<Bug>,
    pub(super) config: TopicConfig,
    pub(super) judge: Judge,
    pub(super) boots: Boots,
    pub(super) process: Option<Process>,
    pub(super) seen: BTreeMap<&'static str, u64>,
    pub(super) history: Option<Vec<String>>,
    pub(super) losses: &'static [Loss],
    /// The offsets that repairs have dropped since the log was last opened.
    pub(super) dropped: Vec<std::ops::Range<i64>>,
    /// Whether a repair was interrupted, so that nobody knows which bytes a segment has for trimmed
    /// batches. Then no more bits flip.
    pub(super) is_repair_unsure: bool,
    /// Whether operations fail.
    pub(super) fails: bool,
    pub(super) producers: Vec<Producer>,
    producers_begun: i64,
    timestamps: i64,
    ages: SegmentAges,
    failed_syncs: u64,
    /// Whether the last attempt to store the record of synced ends failed.
    is_record_late: bool,
    /// Whether bits of the record flipped since it was last stored.
    pub(super) is_record_lost: bool,
    /// Crashes that follow each other: after how many changes, and what is lost.
    pub(super) planned: VecDeque<(u64, Loss)>,
    /// What the next one loses.
    next_loss: Option<Loss>,
    /// How many changes there were before the last crash.
    pub(super) changes_at_crash: u64,
    /// The log start that clients have asked for, which the broker keeps elsewhere.
    pub(super) stored_log_start: i64,
}

impl Machine {
    pub(super) fn new(seed: u64, bug: Option<Bug>, config: TopicConfig) -> Self {
        let mut machine = Self {
            rng: Rng::new(seed),
            disk: SimulatedDisk::new(!seed),
            bug,
            config,
            judge: Judge::default(),
            boots: Boots::new(),
            process: None,
            seen: BTreeMap::new(),
            history: None,
            losses: &[Loss::Process],
            dropped: Vec::new(),
            is_repair_unsure: false,
            fails: false,
            producers: Vec::new(),
            producers_begun: 0,
            timestamps: 0,
            ages: SegmentAges::default(),
            failed_syncs: 0,
            is_record_late: false,
            is_record_lost: false,
            planned: VecDeque::new(),
            next_loss: None,
            changes_at_crash: 0,
            stored_log_start: 0,
        };
        machine.begin_producers();
        machine
    }

    pub(super) fn note(&mut self, event: &'static str) {
        *self.seen.entry(event).or_default() += 1;
        self.tell(|| event.to_owned());
    }

    pub(super) fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            history.push(text());
        }
    }

    /// New producers in the place of the old ones, which give up.
    pub(super) fn begin_producers(&mut self) {
        self.producers.clear();
        for n in 0..3 {
            self.producers_begun += 1;
            self.producers.push(Producer {
                is_idempotent: n < 2,
                id: self.producers_begun,
                sequence: 0,
                number: 0,
                unacknowledged: VecDeque::new(),
            });
        }
    }

    pub(super) fn log_disk(&self) -> BuggyDisk {
        BuggyDisk {
            disk: self.disk.clone(),
            bug: self.bug,
        }
    }

    /// Plans the next crash.
    pub(super) fn plan_crash(&mut self) {
        if let Some((changes, loss)) = self.planned.pop_front() {
            self.disk.crash_after(changes);
            self.next_loss = Some(loss);
        }
    }

    /// How many changes the disk has begun since the last crash, or since the beginning.
    pub(super) fn changes_since_restart(&self) -> u64 {
        self.disk.changes_begun() - self.changes_at_crash
    }

    pub(super) fn some_loss(&mut self) -> Loss {
        self.losses[self.rng.index(self.losses.len())]
    }

    /// What a crash loses that has happened.
    pub(super) fn crash_loss(&mut self) -> Loss {
        let planned = self.next_loss.take();
        planned.unwrap_or_else(|| self.some_loss())
    }

    /// Starts a process without opening the log. `None` if the disk fails.
    pub(super) fn limits(&mut self) -> Result<Option<Limits>, Violation> {
        let disk: Arc<dyn Disk> = Arc::new(self.log_disk());
        let failures = self.disk.failures();
        let boot_id = match self.bug {
            Some(Bug::MissReboot) => Some("always".to_owned()),
            Some(Bug::TakeRestartForReboot) => Some(self.disk.changes_begun().to_string()),
            _ => self.disk.boot_id(),
        };
        let Ok(ends) = SyncedEnds::load(Arc::clone(&disk), data_dir(), boot_id) else {
            if self.disk.failures() == failures && !self.disk.has_crashed() {
                return Err(broken(Rule::Failed, "the record cannot be read"));
            }
            return Ok(None);
        };
        if !self.disk.has_crashed() {
            let found = ends.of(KEY).unwrap_or(0);
            if found > self.judge.durable_end {
                let what = format!("{found} is recorded, {} synced", self.judge.durable_end);
                return Err(broken(Rule::Ends, what));
            }
            if found < self.judge.stored_end {
                let what = format!("{found} is recorded, {} was stored", self.judge.stored_end);
                return Err(broken(Rule::Ends, what));
            }
            self.boots
                .check(&self.disk.boot_id(), ends.has_rebooted())?;
            self.judge.known_end = found;
            self.judge.has_rebooted = ends.has_rebooted();
            if ends.has_rebooted() {
                self.note("reboot known");
                self.judge.may_lose_damaged(found);
                if self.judge.is_holed {
                    // The log ends at the first hole, whatever was appended after it.
                    self.judge.may_lose_unsynced();
                }
            }
            if self.bug == Some(Bug::StoreBootEarly) {
                let early = SyncedEnds::load(Arc::clone(&disk), data_dir(), self.disk.boot_id());
                let _ = early.and_then(|early| early.logs_are_open());
            }
        }
        Ok(Some(Limits {
            disk,
            producers_max: 1000,
            syncs: SyncQueue::new(Arc::default(), ends),
            low_on_disk: Arc::default(),
        }))
    }

    /// The log was opened.
    pub(super) fn begin_process(&mut self, partition: Partition, syncs: Arc<SyncQueue>) {
        // As `Topics` does: what is appended from now on was not deleted.
        self.stored_log_start = self.stored_log_start.min(partition.log_start());
        self.process = Some(Process {
            partition: Arc::new(partition),
            chores: Chores::new(Arc::clone(&syncs)),
            syncs,
            queued: VecDeque::new(),
            job: None,
            waiting: Vec::new(),
            shown_at_failure: None,
        });
    }

    /// The process ends, orderly or not.
    pub(super) fn end_process(&mut self) {
        if let Some(process) = self.process.take() {
            // The queues hold the partition, which holds the queues.
            process.syncs.take_unsynced(Some(Duration::ZERO));
            process.syncs.take_chores(Some(Duration::ZERO));
        }
    }

    pub(super) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a process runs")
    }

    /// A producer sends a new batch, unless too many of its batches are unacknowledged.
    pub(super) fn produce(&mut self, producer: usize, records: usize) -> Verdict {
        let sender = &mut self.producers[producer];
        if sender.unacknowledged.len() == IN_FLIGHT_MAX {
            return Ok(());
        }
        let timestamps: Vec<_> = (0..records as i64).map(|n| self.timestamps + n).collect();
        self.timestamps += records as i64;
        let made = match sender.is_idempotent {
            true => batch(sender.id, 0, sender.sequence, &timestamps),
            false => batch(-1, -1, -1, &timestamps),
        };
        sender.sequence += records as i32;
        sender.number += 1;
        let number = sender.number;
        let sent = (number, made, timestamps[0]);
        sender.unacknowledged.push_back(sent);
        if self.is_sent(producer) {
            self.send(producer, number)?;
        }
        Ok(())
    }

    /// Whether all unacknowledged batches but the last are in the log.
    fn is_sent(&self, producer: usize) -> bool {
        let sender = &self.producers[producer];
        let before = sender.unacknowledged.iter().rev().skip(1);
        before
            .into_iter()
            .all(|(number, ..)| self.place(producer, *number).is_some())
    }

    /// Where a batch of a current producer is.
    fn place(&self, producer: usize, number: u64) -> Option<i64> {
        let sent_by = Some((self.producers[producer].id, number));
        let mut entries = self.judge.entries.iter().rev();
        let found = entries.find(|(_, entry)| entry.sent_by == sent_by);
        found.map(|(&base, _)| base)
    }

    /// Producers send again what was not acknowledged, in order, and some of what was.
    pub(super) fn repeat(&mut self) -> Verdict {
        for producer in 0..self.producers.len() {
            let mut numbers = Vec::new();
            let mut unacknowledged = std::mem::take(&mut self.producers[producer].unacknowledged);
            // A batch that was trimmed is not recognised for ever.
            unacknowledged.retain(|(number, ..)| {
                let place = self.place(producer, *number);
                place.is_none_or(|base| base >= self.judge.trimmed_to)
            });
            numbers.extend(unacknowledged.iter().map(|(number, ..)| *number));
            self.producers[producer].unacknowledged = unacknowledged;
            if !self.producers[producer].is_idempotent {
                // It cannot know, and gives up.
                self.producers[producer].unacknowledged.clear();
                continue;
            }
            for number in numbers {
                if self.process.is_none() || self.disk.has_crashed() {
                    return Ok(());
                }
                if !self.send(producer, number)? {
                    break;
                }
            }
        }
        self.repeat_old()
    }

    /// A producer repeats one of the batches that the log should recognise.
    fn repeat_old(&mut self) -> Verdict {
        let producer = self.rng.index(2);
        let id = self.producers[producer].id;
        let entries = self.judge.entries.iter().rev();
        let known = entries.filter(|(base, entry)| {
            let is_there = **base >= self.judge.trimmed_to;
            is_there && entry.sent_by.is_some_and(|(by, _)| by == id)
        });
        let known: Vec<_> = known.take(IN_FLIGHT_MAX).map(|(_, entry)| entry).collect();
        if known.is_empty() || self.disk.has_crashed() {
            return Ok(());
        }
        let entry = known[self.rng.index(known.len())].clone();
        self.append(producer, entry).map(|_| ())
    }

    /// Sends one of a producer's unacknowledged batches. Returns whether it is in the log.
    fn send(&mut self, producer: usize, number: u64) -> Result<bool, Violation> {
        let mut sent = self.producers[producer].unacknowledged.iter();
        let Some((_, bytes, timestamp)) = sent.find(|sent| sent.0 == number).cloned() else {
            return Ok(true);
        };
        let entry = Entry {
            next: 0,
            bytes,
            timestamp,
            sent_by: Some((self.producers[producer].id, number)),
        };
        self.append(producer, entry)
    }

    fn append(&mut self, producer: usize, mut entry: Entry) -> Result<bool, Violation> {
        let header = BatchHeader::of_produced(&entry.bytes).expect("it is a batch");
        let number = entry.sent_by.map_or(0, |(_, number)| number);
        let is_idempotent = header.is_idempotent();
        let first = self.place(producer, number).filter(|_| is_idempotent);
        let failures = self.disk.failures();
        let partition = Arc::clone(&self.process().partition);
        let result = partition.append(&header, &entry.bytes);
        self.tell(|| format!("append {producer}/{number}: {result:?}"));
        let end = self.judge.end();
        match result {
            Ok(appended) => {
                if let Some(first) = first {
                    self.note("repeated");
                    if appended.base_offset != first {
                        let at = appended.base_offset;
                        let what = format!("{number} of {producer} was at {first}, now at {at}");
                        return Err(broken(Rule::Repeated, what));
                    }
                } else {
                    entry.next = appended.base_offset + i64::from(header.last_offset_delta) + 1;
                    self.judge.appended(appended.base_offset, entry)?;
                }
                match appended.sync_to {
                    None => self.acknowledged(appended.base_offset + 1),
                    Some(sync_to) => self.process().waiting.push(Waiting {
                        synced: Box::pin(async move { partition.synced(sync_to).await }),
                        sync_to,
                    }),
                }
                Ok(true)
            }
            Err(error) => {
                if !is_idempotent {
                    self.producers[producer].unacknowledged.clear();
                }
                let is_explained = self.disk.failures() > failures
                    || self.disk.has_crashed()
                    || partition.condition() != Condition::Online && !self.is_online();
                if first.is_none() {
                    entry.next = end + i64::from(header.last_offset_delta) + 1;
                    self.judge.doubts.push((end, entry));
                }
                match error {
                    AppendError::Full | AppendError::Offline { .. } if is_explained => Ok(false),
                    error => Err(broken(Rule::Failed, format!("append: {error}"))),
                }
            }
        }
    }

    fn is_online(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.partition.condition() == Condition::Online)
    }

    /// Everything below `end` is acknowledged.
    fn acknowledged(&mut self, end: i64) {
        let entries = &self.judge.entries;
        for producer in &mut self.producers {
            let id = producer.id;
            producer.unacknowledged.retain(|(number, ..)| {
                let mut below = entries.range(..end).rev().take(64);
                !below.any(|(_, entry)| entry.sent_by == Some((id, *number)))
            });
        }
    }

    /// Whether the sync thread has something to do.
    pub(super) fn has_unsynced(&mut self) -> bool {
        let process = self.process();
        let unsynced = process.syncs.take_unsynced(Some(Duration::ZERO));
        process.queued.extend(unsynced.into_iter().flatten());
        process.job.is_some() || !process.queued.is_empty()
    }

    /// The next act of the sync thread: take what is queued, begin a sync, perform it, or end it.
    pub(super) fn sync(&mut self) -> Verdict {
        if !self.has_unsynced() {
            return Ok(());
        }
        let (bug, flush_messages) = (self.bug, self.config.flush_messages);
        let disk = self.log_disk();
        let process = self.process();
        match process.job.take() {
            None => {
                let Some(partition) = process.queued.pop_front() else {
                    return Ok(());
                };
                let job = partition.begin_sync();
                if bug == Some(Bug::EndBeforeSync) {
                    let end = partition.log.lock().unwrap().active.next_offset;
                    process.syncs.ends.note(KEY, end);
                    process.syncs.store_ends();
                }
                process.job = Some((partition, job, None));
            }
            Some((partition, job, None)) => {
                let mut result = job.run(&disk);
                if result.is_err() && bug == Some(Bug::IgnoreFailedSync) {
                    result = Ok(());
                }
                if result.is_err() && flush_messages == Some(1) {
                    process.shown_at_failure = Some(partition.high_watermark());
                }
                process.job = Some((partition, job, Some(result)));
                self.after_syncs();
            }
            Some((partition, mut job, Some(result))) => {
                if bug == Some(Bug::AckLaterAppends) {
                    job = partition.begin_sync();
                }
                let is_synced = result.is_ok();
                if !is_synced || bug == Some(Bug::AckBeforeEnd) {
                    partition.end_sync(job, result);
                } else {
                    self.store_record(|syncs| syncs.end_round(vec![(partition, job)]));
                }
                self.note(if is_synced { "synced" } else { "sync failed" });
                return self.answer();
            }
        }
        Ok(())
    }

    /// Whether a sync has failed, which the partition learns next.
    pub(super) fn has_unreported_failure(&mut self) -> bool {
        let job = self.process().job.as_ref();
        job.and_then(|(_, _, result)| result.as_ref())
            .is_some_and(Result::is_err)
    }

    /// A failed sync may leave holes.
    pub(super) fn after_syncs(&mut self) {
        let failed = self.disk.failed_syncs();
        if failed > self.failed_syncs {
            self.failed_syncs = failed;
            self.judge.is_holed = true;
            self.judge.may_lose_unsynced();
        }
    }

    /// Answers the requests that waited for a sync.
    fn answer(&mut self) -> Verdict {
        if self.disk.has_crashed() {
            return Ok(());
        }
        let process = self.process();
        let shown = process.partition.high_watermark();
        if let Some(before) = process.shown_at_failure
            && shown != before
        {
            let what = format!("{shown} is shown after a sync failed at {before}");
            return Err(broken(Rule::Visible, what));
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut acknowledged = 0;
        process
            .waiting
            .retain_mut(|waiting| match waiting.synced.as_mut().poll(&mut context) {
                Poll::Pending => true,
                Poll::Ready(is_synced) => {
                    if is_synced {
                        acknowledged = acknowledged.max(waiting.sync_to);
                    }
                    false
                }
            });
        if self.config.flush_messages == Some(1) {
            self.judge.is_durable(shown);
        }
        self.acknowledged(acknowledged);
        self.is_recorded(shown)
    }

    /// What is acknowledged or shown on a synced topic is recorded as synced, unless the record
    /// could not be stored.
    fn is_recorded(&self, shown: i64) -> Verdict {
        let stored = self.judge.stored_end;
        let is_excused = self.is_record_late || self.is_record_lost;
        if self.config.flush_messages != Some(1) || is_excused || shown <= stored {
            return Ok(());
        }
        let what = format!("{shown} is shown, but {stored} is recorded");
        Err(broken(Rule::Ends, what))
    }

    /// The second thread does what is queued.
    pub(super) fn perform_chores(&mut self) -> Verdict {
        let process = self.process();
        let queued = process.syncs.take_chores(Some(Duration::ZERO));
        for chore in queued.into_iter().flatten() {
            process.chores.perform(chore);
        }
        self.after_syncs();
        Ok(())
    }

    /// The second thread stores the synced ends.
    pub(super) fn store_ends(&mut self) -> Verdict {
        self.process().chores.catch_up();
        self.store_record(|syncs| syncs.store_ends());
        Ok(())
    }

    /// The log is open: from now on, damage in it has another cause than a power failure.
    pub(super) fn log_is_open(&mut self) {
        self.judge.has_rebooted = false;
        self.store_record(SyncQueue::logs_are_open);
    }

    /// Stores the record of synced ends.
    pub(super) fn store_record(&mut self, store: impl FnOnce(&SyncQueue) -> bool) {
        let boot_id = self.disk.boot_id();
        self.boots.may_be_stored(boot_id.clone());
        let is_stored = store(&self.process().syncs);
        self.after_syncs();
        self.claims();
        self.is_record_lost &= !is_stored;
        self.is_record_late = !self.process().syncs.ends_are_stored();
        if is_stored && !self.disk.has_crashed() {
            self.judge.stored_end = self.process().syncs.ends.of(KEY).unwrap_or(0);
            self.boots.are_stored(boot_id);
        }
    }

    /// What the log says is synced must be.
    pub(super) fn claims(&mut self) {
        if let Some(end) = self.process().syncs.ends.of(KEY) {
            self.judge.is_durable(end);
        }
    }

    pub(super) fn trim(&mut self) -> Verdict {
        let partition = Arc::clone(&self.process().partition);
        let (start, shown) = (partition.log_start(), partition.high_watermark());
        if start >= shown {
            return Ok(());
        }
        let failures = self.disk.failures();
        let result = if self.rng.chance(50) {
            let to = start + 1 + self.rng.below((shown - start) as u64) as i64;
            // The broker stores it before.
            self.judge.log_start = self.judge.log_start.max(to);
            self.stored_log_start = self.stored_log_start.max(to);
            partition.delete_records(to).map(|_| ())
        } else {
            partition.apply_retention(&mut self.ages, 0)
        };
        self.judge.trimmed_to = self.judge.trimmed_to.max(partition.log_start());
        self.tell(|| format!("trim to {}: {result:?}", partition.log_start()));
        if result.is_err() && self.disk.failures() == failures && !self.disk.has_crashed() {
            return Err(broken(Rule::Failed, format!("trim: {result:?}")));
        }
        self.note("trimmed");
        Ok(())
    }
}
