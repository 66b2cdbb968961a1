//! A random run: producers, readers, trims, restarts and faults, as a seed decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::{Bytes, BytesMut};
use waybill_simulated_disk::{Loss, Op};
use waybill_wire::batch::BatchHeader;

use super::super::partition::{Condition, Limits, Partition};
use super::super::read::ReadError;
use super::super::repair::{Repair, aside_path};
use super::super::segment::LogError;
use super::bugs::Bug;
use super::judge::{Rule, Verdict, Violation, broken};
use super::machine::{KEY, Machine, data_dir, log_dir};
use crate::TopicConfig;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// How many times in a row a log may be opened before it counts as stuck.
const OPENS_MAX: usize = 40;

const ALL_LOSSES: [Loss; 6] = [
    Loss::Process,
    Loss::Nothing,
    Loss::Everything,
    Loss::Tail,
    Loss::Sectors(512),
    Loss::Sectors(4096),
];

/// The result of a run.
pub(super) struct Outcome {
    pub(super) violation: Option<Violation>,
    pub(super) seen: BTreeMap<&'static str, u64>,
    pub(super) history: Vec<String>,
}

/// Runs a seed.
pub(super) fn run(seed: u64, bug: Option<Bug>, is_recorded: bool) -> Outcome {
    let mut machine = Machine::new(seed, bug, TopicConfig::default());
    let rng = &mut machine.rng;
    machine.config = TopicConfig {
        flush_messages: [Some(1), Some(1), Some(1), Some(1), Some(3), None][rng.index(6)],
        segment_bytes: 300 + rng.below(3_000),
        retention: None,
        retention_bytes: rng.chance(50).then(|| rng.below(8_000)),
        ..TopicConfig::default()
    };
    machine.losses = &ALL_LOSSES;
    machine.history = is_recorded.then(Vec::new);
    let violation = machine.live().err();
    machine.end_process();
    Outcome {
        violation,
        seen: machine.seen,
        history: machine.history.unwrap_or_default(),
    }
}

impl Machine {
    fn live(&mut self) -> Verdict {
        let is_short = self.rng.chance(50);
        self.disk.set_short(is_short);
        let rots = self.rng.chance(20);
        self.fails = self.rng.chance(70);
        let acts = 40 + self.rng.below(100);
        self.open()?;
        for _ in 0..acts {
            self.act(rots)?;
            self.go_on()?;
        }
        self.finish()
    }

    fn act(&mut self, rots: bool) -> Verdict {
        match self.rng.below(100) {
            0..=34 => {
                let producer = self.rng.index(self.producers.len());
                let records = match self.rng.below(10) {
                    0 => 100 + self.rng.index(700),
                    _ => 1 + self.rng.index(40),
                };
                self.produce(producer, records)
            }
            35..=39 => self.repeat(),
            40..=59 => self.sync(),
            60..=66 => self.perform_chores(),
            67..=70 => self.store_ends(),
            71..=78 => self.read_somewhere(),
            79..=82 => self.trim(),
            83 => self.close(),
            84..=86 => {
                let loss = self.some_loss();
                self.restart(loss);
                Ok(())
            }
            87..=90 => {
                self.crash_soon();
                Ok(())
            }
            91..=94 if self.fails => {
                self.fail_soon();
                Ok(())
            }
            95 if self.fails => {
                self.disk.set_full(true);
                self.note("disk full");
                Ok(())
            }
            96..=97 => {
                self.disk.evict();
                Ok(())
            }
            98 if rots => {
                self.rot();
                Ok(())
            }
            _ => {
                self.disk.set_full(false);
                Ok(())
            }
        }
    }

    fn crash_soon(&mut self) {
        let changes = self.rng.below(30);
        self.disk.crash_after(changes);
    }

    fn fail_soon(&mut self) {
        let op = Op::ALL[self.rng.index(Op::ALL.len())];
        let can_be_full = matches!(op, Op::Create | Op::Write | Op::Sync | Op::Rename);
        let is_full = can_be_full && self.rng.chance(30);
        let errno = if is_full { ENOSPC } else { EIO };
        let others = self.rng.below(6);
        self.disk.fail(op, others, errno);
    }

    fn rot(&mut self) {
        if self.is_repair_unsure {
            return;
        }
        if let Some((path, position)) = self.disk.rot() {
            self.tell(|| format!("a bit flips at {position} of {}", path.display()));
            self.note("bit rot");
            self.judge.rots(&path, position);
            if path.to_string_lossy().contains("synced-") {
                // What the other file holds is older.
                self.judge.stored_end = 0;
                self.is_record_lost = true;
                self.boots.may_be_missed();
            }
        }
    }

    /// Restarts what has stopped.
    pub(super) fn go_on(&mut self) -> Verdict {
        loop {
            if self.disk.has_crashed() {
                self.note("crash");
                self.crashed();
            }
            let Some(process) = &self.process else {
                self.open()?;
                continue;
            };
            let partition = Arc::clone(&process.partition);
            match partition.condition() {
                Condition::Online => return Ok(()),
                Condition::Full if self.rng.chance(50) => self.reopen(&partition)?,
                Condition::Full => return Ok(()),
                Condition::Offline | Condition::Deleted => {
                    self.note("offline");
                    let loss = self.some_loss();
                    self.restart(loss);
                }
            }
        }
    }

    fn crashed(&mut self) {
        let loss = self.crash_loss();
        self.restart(loss);
        self.changes_at_crash = self.disk.changes_begun();
        self.plan_crash();
    }

    /// The process ends, and the machine with it unless only the process dies.
    pub(super) fn restart(&mut self, loss: Loss) {
        self.tell(|| format!("restart, lost: {loss:?}"));
        self.end_process();
        self.after_syncs();
        self.disk.restart(loss);
        match loss {
            Loss::Process => {}
            // The disk may have more of a file than was seen since a cut that could not be synced.
            Loss::Nothing if self.disk.failed_syncs() == 0 => {}
            Loss::Nothing | Loss::Everything | Loss::Tail => self.judge.may_lose_unsynced(),
            Loss::Sectors(_) => {
                self.judge.may_lose_unsynced();
                self.judge.is_holed = true;
            }
        }
    }

    /// Opens the log, however often the disk fails; repairs it if it must be refused.
    pub(super) fn open(&mut self) -> Verdict {
        let mut is_repaired = false;
        for _ in 0..OPENS_MAX {
            if self.disk.has_crashed() {
                self.note("crash at a start");
                self.crashed();
            }
            if self.fails && self.rng.chance(30) {
                self.crash_soon();
            }
            if self.fails && self.rng.chance(30) {
                self.fail_soon();
            }
            let failures = self.disk.failures();
            let Some(limits) = self.limits()? else {
                self.note("failed start");
                continue;
            };
            let syncs = Arc::clone(&limits.syncs);
            let log_start = self.stored_log_start;
            let opened = self.open_partition(log_start, limits);
            self.after_syncs();
            match opened {
                _ if self.disk.has_crashed() => {}
                Ok(partition) => {
                    self.begin_process(partition, syncs);
                    self.tell(|| "opened".to_owned());
                    if !self.verify(is_repaired)? {
                        self.end_process();
                        continue;
                    }
                    self.log_is_open();
                    if is_repaired {
                        self.begin_producers();
                        return Ok(());
                    }
                    return self.repeat();
                }
                Err(LogError::Damaged(damage)) => {
                    self.tell(|| format!("refused: {damage}"));
                    self.note("refused");
                    self.judge.refused(log_dir(), &damage)?;
                    self.repair()?;
                    is_repaired = true;
                }
                Err(error) if self.disk.failures() > failures => {
                    self.tell(|| format!("not opened: {error:?}"));
                    self.disk.set_full(false);
                    self.note("failed start");
                }
                Err(error) => {
                    return Err(broken(Rule::Failed, format!("not opened: {error:?}")));
                }
            }
        }
        Err(broken(Rule::Refused, "the log cannot be opened"))
    }

    fn open_partition(&self, log_start: i64, limits: Limits) -> Result<Partition, LogError> {
        let bytes = Arc::new(AtomicU64::new(0));
        let dir = log_dir().to_owned();
        Partition::open("t".into(), KEY, dir, self.config, log_start, bytes, limits)
    }

    /// Opens a partition again whose disk was full at a sync.
    fn reopen(&mut self, partition: &Arc<Partition>) -> Verdict {
        let failures = self.disk.failures();
        let mut outcome = None;
        self.store_record(|syncs| {
            let reopened = partition.reopen();
            let are_stored = reopened.is_ok() && syncs.ends_are_stored();
            outcome = Some(reopened);
            are_stored
        });
        let reopened = outcome.expect("it was tried");
        let syncs = Arc::clone(&self.process().syncs);
        match reopened {
            _ if self.disk.has_crashed() => Ok(()),
            Ok(opened) => {
                self.note("reopened");
                self.end_process();
                self.begin_process(opened, syncs);
                if self.verify(false)? {
                    return self.repeat();
                }
                Ok(())
            }
            Err(LogError::Damaged(damage)) => {
                self.judge.refused(log_dir(), &damage)?;
                self.restart(Loss::Process);
                Ok(())
            }
            Err(_) if self.disk.failures() > failures => {
                // The broker keeps the old one if the disk is full, and else takes it offline.
                self.restart(Loss::Process);
                Ok(())
            }
            Err(error) => Err(broken(Rule::Failed, format!("not reopened: {error:?}"))),
        }
    }

    /// Repairs the log, if it is not interrupted.
    fn repair(&mut self) -> Verdict {
        let failures = self.disk.failures();
        let Some(limits) = self.limits()? else {
            return Ok(());
        };
        let disk = self.log_disk();
        let aside = data_dir().join("aside");
        let repaired = Repair::plan(&disk, log_dir(), limits.syncs.ends.of(KEY)).and_then(|plan| {
            plan.apply(&disk, &aside)?;
            Ok(plan)
        });
        self.is_repair_unsure |= self.disk.has_crashed() || repaired.is_err();
        match repaired {
            _ if self.disk.has_crashed() => Ok(()),
            Ok(plan) => {
                self.note("repaired");
                for dropped in plan.dropped() {
                    self.tell(|| format!("dropped: {dropped:?}"));
                    self.dropped.push(dropped.offsets.clone());
                    let bytes = dropped.bytes.end - dropped.bytes.start;
                    let path = aside_path(&aside, dropped);
                    if bytes > 0 && !self.disk.files(&aside).contains(&(path, bytes)) {
                        let what = format!("the bytes of {dropped:?} are not kept");
                        return Err(broken(Rule::Kept, what));
                    }
                }
                Ok(())
            }
            Err(_) if self.disk.failures() > failures => Ok(()),
            Err(error) => Err(broken(Rule::Failed, format!("not repaired: {error:?}"))),
        }
    }

    /// Reads the whole log that was just opened, and compares it with what it must hold. Returns
    /// `false` if the disk failed meanwhile.
    fn verify(&mut self, is_repaired: bool) -> Result<bool, Violation> {
        let partition = Arc::clone(&self.process().partition);
        let (start, end) = (partition.log_start(), partition.high_watermark());
        let mut batches = BTreeMap::new();
        let mut at = start;
        while at < end {
            let failures = self.disk.failures();
            let mut out = BytesMut::new();
            match partition.read(at, 1 << 20, true, &mut out) {
                Ok(0) => return Err(broken(Rule::Kept, format!("nothing can be read at {at}"))),
                Ok(_) => {
                    for (base, next, batch) in batches_of(&out.freeze())? {
                        if base > at || next <= at {
                            return Err(broken(Rule::Sent, format!("{base} follows {at}")));
                        }
                        batches.insert(base, Some(batch));
                        at = next;
                    }
                }
                Err(ReadError::Damaged(batch)) => {
                    self.judge
                        .damaged(batch.offset, &batch.path, batch.position)?;
                    batches.insert(at, None);
                    let mut here = self.judge.entries.range(..=at).rev();
                    at = here
                        .next()
                        .map_or(at + 1, |(_, entry)| entry.next.max(at + 1));
                    self.note("damage served as an error");
                }
                Err(_) if self.disk.has_crashed() => return Ok(false),
                Err(_) if self.disk.failures() > failures => {}
                Err(error) => return Err(broken(Rule::Failed, format!("read: {error:?}"))),
            }
        }
        let (end_before, durable_before) = (self.judge.end(), self.judge.durable_end);
        for offsets in std::mem::take(&mut self.dropped) {
            if offsets.end <= start && !offsets.is_empty() {
                self.judge.dropped_trimmed(&offsets);
            }
        }
        let is_damage_cut = self.judge.may_be_cut(end);
        if is_damage_cut {
            self.note("damage cut after a reboot");
        }
        self.judge.opened((start, end), &batches, is_repaired)?;
        if end < end_before {
            self.note("unsynced tail lost");
            if self.config.flush_messages != Some(1) || end < durable_before || is_damage_cut {
                // It was acknowledged: idempotent producers find a gap.
                self.begin_producers();
            }
        }
        if self.config.flush_messages.is_some() {
            self.judge.is_durable(end);
            self.judge.is_holed = false;
        }
        self.claims();
        Ok(true)
    }

    fn read_somewhere(&mut self) -> Verdict {
        let partition = Arc::clone(&self.process().partition);
        let (start, end) = (partition.log_start(), partition.high_watermark());
        if start >= end {
            return Ok(());
        }
        let offset = start + self.rng.below((end - start) as u64) as i64;
        let bytes_max = [1, 500, 1 << 20][self.rng.index(3)];
        let failures = self.disk.failures();
        let mut out = BytesMut::new();
        match partition.read(offset, bytes_max, true, &mut out) {
            Err(ReadError::Damaged(_)) if self.has_unreported_failure() => {}
            Ok(_) => {
                let mut at = offset;
                for (base, next, batch) in batches_of(&out.freeze())? {
                    let follows = if at == offset {
                        base <= at && next > at
                    } else {
                        base == at
                    };
                    if !follows || next > end {
                        let what = format!("{base} to {next} was read for {offset} below {end}");
                        return Err(broken(Rule::Sent, what));
                    }
                    self.judge.read(base, &batch)?;
                    at = next;
                }
                if at == offset {
                    return Err(broken(Rule::Kept, format!("nothing was read at {offset}")));
                }
                self.note("read");
            }
            Err(ReadError::Damaged(batch)) => {
                self.judge
                    .damaged(batch.offset, &batch.path, batch.position)?;
                self.note("damage served as an error");
            }
            Err(ReadError::Offline) if partition.condition() != Condition::Online => {}
            Err(_) if self.disk.failures() > failures || self.disk.has_crashed() => {}
            Err(error) => return Err(broken(Rule::Failed, format!("read: {error:?}"))),
        }
        self.find_time(&partition)
    }

    /// The first record at or after a timestamp.
    fn find_time(&mut self, partition: &Partition) -> Verdict {
        let shown = partition.high_watermark();
        let start = partition.log_start();
        let below = self.judge.entries.range(..shown);
        let visible: Vec<_> = below.filter(|(_, entry)| entry.next > start).collect();
        if visible.is_empty() || !self.judge.rotten.is_empty() {
            return Ok(());
        }
        let (_, wanted) = visible[self.rng.index(visible.len())];
        let timestamp = wanted.timestamp;
        if timestamp < 0 {
            // A filler.
            return Ok(());
        }
        let expected = visible.iter().find_map(|(base, entry)| {
            let last = entry.timestamp + entry.next - *base - 1;
            let first = (entry.timestamp >= 0 && last >= timestamp)
                .then(|| **base + (timestamp - entry.timestamp).max(0))?;
            Some(first.max(start))
        });
        let failures = self.disk.failures();
        match partition.offset_at_time(timestamp) {
            Err(ReadError::Damaged(_)) if self.has_unreported_failure() => Ok(()),
            Ok(found) if found.map(|(offset, _)| offset) == expected => Ok(()),
            Err(ReadError::Io(_)) if self.disk.failures() > failures => Ok(()),
            _ if self.disk.has_crashed() => Ok(()),
            Err(ReadError::Offline) => Ok(()),
            found => {
                let what = format!("{timestamp} is at {expected:?}, found {found:?}");
                Err(broken(Rule::Sent, what))
            }
        }
    }

    /// An orderly shutdown: the threads do what is queued, and stop.
    pub(super) fn close(&mut self) -> Verdict {
        while self.has_unsynced() {
            self.sync()?;
        }
        self.perform_chores()?;
        self.store_ends()?;
        let partition = Arc::clone(&self.process().partition);
        let failures = self.disk.failures();
        let is_online = partition.condition() == Condition::Online;
        let closed = partition.close();
        self.after_syncs();
        if self.disk.has_crashed() {
            return Ok(());
        }
        match closed {
            Ok(()) if is_online => {
                let end = self.judge.end();
                self.judge.is_durable(end);
                self.judge.is_holed = false;
                self.note("closed");
            }
            Ok(()) => {}
            Err(_) if !is_online || self.disk.failures() > failures => {}
            // What is written again is verified.
            Err(_) if self.judge.is_holed || !self.judge.rotten.is_empty() => {}
            Err(error) => return Err(broken(Rule::Failed, format!("close: {error:?}"))),
        }
        self.store_ends()?;
        if !self.disk.has_crashed() {
            let loss = self.some_loss();
            self.restart(loss);
        }
        Ok(())
    }

    /// Faults stop: everything that was sent arrives, and survives a power loss.
    pub(super) fn finish(&mut self) -> Verdict {
        self.fails = false;
        self.disk.cancel_crash();
        self.disk.fail_no_more();
        self.disk.set_full(false);
        self.restart(Loss::Process);
        self.open()?;
        for producer in 0..self.producers.len() {
            self.produce(producer, 3)?;
        }
        for _ in 0..30 {
            self.sync()?;
            self.perform_chores()?;
        }
        self.store_ends()?;
        let partition = Arc::clone(&self.process().partition);
        let (shown, end) = (partition.high_watermark(), self.judge.end());
        if self.config.flush_messages == Some(1) && shown != end {
            let what = format!("{shown} of {end} is shown in the end");
            return Err(broken(Rule::Kept, what));
        }
        self.restart(Loss::Everything);
        self.open()
    }
}

/// The batches in what was read: first offset, the one after it, and bytes.
fn batches_of(bytes: &Bytes) -> Result<Vec<(i64, i64, Bytes)>, Violation> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let header = BatchHeader::read(&bytes[at..]);
        let header = header.filter(|header| header.bytes <= bytes.len() - at);
        let Some((header, last)) = header.and_then(|header| Some((header, header.last_offset()?)))
        else {
            return Err(broken(Rule::Sent, "what was read is no batch"));
        };
        let batch = bytes.slice(at..at + header.bytes);
        found.push((header.base_offset, last + 1, batch));
        at += header.bytes;
    }
    Ok(found)
}
