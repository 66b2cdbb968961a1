//! The judge: knows what was sent and what was promised, and compares it with what the log says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use waybill_wire::batch::{BatchHeader, filler};

use super::super::damage::Damage;
use super::super::segment::segment_path;

/// What must hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rule {
    Kept,
    Sent,
    Refused,
    Repeated,
    Visible,
    Ends,
    Failed,
    Trimmed,
    Rebooted,
}

impl Rule {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Kept => "what was acknowledged is there",
            Self::Sent => "what is read was appended there",
            Self::Refused => "only damage is refused, and named",
            Self::Repeated => "a repetition gets its first offset",
            Self::Visible => "nothing unsynced is shown",
            Self::Ends => "the recorded end is right",
            Self::Failed => "only a failing disk makes an operation fail",
            Self::Trimmed => "only what was trimmed is missing at the start",
            Self::Rebooted => "a reboot is noticed, and nothing else taken for one",
        }
    }
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) rule: Rule,
    pub(super) what: String,
}

pub(super) type Verdict = Result<(), Violation>;

pub(super) fn broken(rule: Rule, what: impl Into<String>) -> Violation {
    let what = what.into();
    Violation { rule, what }
}

/// A batch in the log.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The offset after it.
    pub(super) next: i64,
    /// As it was sent. The first offset in it means nothing.
    pub(super) bytes: Bytes,
    pub(super) timestamp: i64,
    /// Its producer and that one's number of the batch.
    pub(super) sent_by: Option<(i64, u64)>,
}

/// What is known about the log.
#[derive(Default)]
pub(super) struct Judge {
    /// By first offset. Those that were trimmed stay: a crash may bring them back.
    pub(super) entries: BTreeMap<i64, Entry>,
    /// Batches whose append failed, and where they began: a crash may bring back what was written
    /// of them, unless something durable is there.
    pub(super) doubts: Vec<(i64, Entry)>,
    /// What is below survives everything but rot.
    pub(super) durable_end: i64,
    /// What is below survives until the machine loses power.
    pub(super) kept_end: i64,
    /// The newest recorded end that was stored.
    pub(super) stored_end: i64,
    /// The end that the process knows to be synced since its start.
    pub(super) known_end: i64,
    /// Whether the process knows that the machine has booted since the log was open.
    pub(super) has_rebooted: bool,
    /// Up to where the log was trimmed, at most.
    pub(super) trimmed_to: i64,
    /// Where clients have asked to trim it; the broker's metadata hold it.
    pub(super) log_start: i64,
    /// Whether unsynced data may be lost before other unsynced data.
    pub(super) is_holed: bool,
    /// What a start may have cut off that was interrupted then, since the log was last opened.
    cut_from: Option<i64>,
    /// The first offsets of batches with flipped bits.
    pub(super) rotten: BTreeSet<i64>,
}

impl Judge {
    pub(super) fn end(&self) -> i64 {
        self.entries
            .last_key_value()
            .map_or(0, |(_, last)| last.next)
    }

    /// Something may have been lost: all that is not durable.
    pub(super) fn may_lose_unsynced(&mut self) {
        self.kept_end = self.durable_end;
    }

    /// The machine has booted, and a process knows that everything below `known_end` was synced. It
    /// cuts off any damage beyond, also if that start is then interrupted.
    pub(super) fn may_lose_damaged(&mut self, known_end: i64) {
        let first = self.rotten.range(known_end..).next().copied();
        self.cut_from = self.cut_from.into_iter().chain(first).min();
    }

    /// Everything below is durable now.
    pub(super) fn is_durable(&mut self, end: i64) {
        self.durable_end = self.durable_end.max(end);
        self.kept_end = self.kept_end.max(end);
    }

    pub(super) fn appended(&mut self, base: i64, entry: Entry) -> Verdict {
        if base != self.end() {
            let what = format!("appended at {base}, but the log ends at {}", self.end());
            return Err(broken(Rule::Sent, what));
        }
        self.kept_end = self.kept_end.max(entry.next);
        self.entries.insert(base, entry);
        Ok(())
    }

    /// A bit flipped.
    pub(super) fn rots(&mut self, path: &Path, position: u64) {
        if let Some((base, _)) = self.at(path, position) {
            self.rotten.insert(base);
        }
    }

    /// The batch that holds a byte, and where it begins.
    fn at(&self, path: &Path, position: u64) -> Option<(i64, u64)> {
        let name = path.file_name()?.to_str()?;
        let segment: i64 = name.strip_suffix(".log")?.parse().ok()?;
        let mut begins = 0;
        for (&base, entry) in self.entries.range(segment..) {
            let ends = begins + entry.bytes.len() as u64;
            if (begins..ends).contains(&position) {
                return Some((base, begins));
            }
            begins = ends;
        }
        None
    }

    /// A log was refused. Is that right, and does the error name the place?
    pub(super) fn refused(&self, dir: &Path, damage: &Damage) -> Verdict {
        let (path, position, offset) = match damage {
            Damage::Inside {
                path,
                position,
                offset,
                next_path,
                next_position,
                next_offset,
                is_verified,
            } => {
                // A checksum does not cover the offset, in which a bit may have flipped. Where
                // sectors are lost, it may be, too.
                let next = self.at(next_path, *next_position);
                let is_moved = next.is_some_and(|(base, _)| self.rotten.contains(&base));
                let is_known = self.is_known(*next_offset) || is_moved || self.is_holed;
                if !is_known || !is_verified {
                    let what = format!("no valid batch follows at {next_offset}: {damage}");
                    return Err(broken(Rule::Refused, what));
                }
                (path, *position, *offset)
            }
            Damage::Missing { .. } => {
                return Err(broken(
                    Rule::Refused,
                    format!("no segment is lost: {damage}"),
                ));
            }
            Damage::Short {
                path,
                position,
                offset,
                synced_end,
            } => {
                if *synced_end > self.durable_end {
                    let what = format!("synced up to {}: {damage}", self.durable_end);
                    return Err(broken(Rule::Ends, what));
                }
                (path, *position, *offset)
            }
        };
        if self.has_rebooted && offset >= self.known_end {
            let what = format!("synced up to {} before a reboot: {damage}", self.known_end);
            return Err(broken(Rule::Refused, what));
        }
        let is_rotten = self.rotten.contains(&offset);
        if !(is_rotten || self.may_be_cut(offset) || self.is_holed && offset >= self.durable_end) {
            let what = format!("nothing is damaged at {offset}: {damage}");
            return Err(broken(Rule::Refused, what));
        }
        let segment = self.segment_of(path);
        let before = segment.map(|segment| {
            let entries = self
                .entries
                .range(segment..)
                .take_while(|(base, _)| **base < offset);
            entries
                .map(|(_, entry)| entry.bytes.len() as u64)
                .sum::<u64>()
        });
        if !self.is_known(offset)
            || before != Some(position)
            || segment.is_none_or(|segment| *path != segment_path(dir, segment))
        {
            let what = format!("{offset} is not at that place: {damage}");
            return Err(broken(Rule::Refused, what));
        }
        Ok(())
    }

    /// Whether an interrupted start may have cut off what is at `offset`.
    pub(super) fn may_be_cut(&self, offset: i64) -> bool {
        self.cut_from.is_some_and(|from| from <= offset)
    }

    fn segment_of(&self, path: &Path) -> Option<i64> {
        path.file_stem()?.to_str()?.parse().ok()
    }

    fn is_known(&self, base: i64) -> bool {
        self.entries.contains_key(&base) || self.doubts.iter().any(|(at, _)| *at == base)
    }

    /// Whether `batch`, read at `base`, is the one that was appended there.
    pub(super) fn is_right(&self, base: i64, batch: &[u8]) -> bool {
        let entry = self.entries.get(&base);
        entry.is_some_and(|entry| is_same(&entry.bytes, base, batch))
    }

    /// Takes a batch at `base` whose append failed for one that is there. Returns whether it may
    /// be: nothing durable was there.
    fn resolve_doubt(&mut self, base: i64, batch: &[u8]) -> bool {
        let mut doubts = self.doubts.iter();
        let found = doubts.find(|(at, entry)| *at == base && is_same(&entry.bytes, base, batch));
        let Some((_, entry)) = found.filter(|_| base >= self.durable_end).cloned() else {
            return false;
        };
        self.entries.split_off(&base);
        self.entries.insert(base, entry);
        true
    }

    /// A batch that was read.
    pub(super) fn read(&self, base: i64, batch: &[u8]) -> Verdict {
        if self
            .entries
            .get(&base)
            .is_some_and(|entry| is_same(&entry.bytes, base, batch))
        {
            return Ok(());
        }
        Err(broken(
            Rule::Sent,
            format!("another batch was read at {base}"),
        ))
    }

    /// A damaged batch was reported.
    pub(super) fn damaged(&self, offset: i64, path: &Path, position: u64) -> Verdict {
        let place = self.at(path, position);
        if self.rotten.contains(&offset) && place == Some((offset, position)) {
            return Ok(());
        }
        // A damaged length leads to a wrong position after it.
        if self.is_behind_damage(path, offset) {
            return Ok(());
        }
        let what = format!(
            "{offset} at {position} of {} is not damaged",
            path.display()
        );
        Err(broken(Rule::Kept, what))
    }

    /// Whether a damaged batch comes before `offset` in this segment.
    fn is_behind_damage(&self, path: &Path, offset: i64) -> bool {
        let segment = self.segment_of(path).unwrap_or(offset);
        self.rotten
            .range(segment.min(offset)..offset)
            .next()
            .is_some()
    }

    /// The log was opened and holds `batches`, each at its first offset, up to `end`. `None` stands
    /// for a damaged one.
    pub(super) fn opened(
        &mut self,
        (start, end): (i64, i64),
        batches: &BTreeMap<i64, Option<Bytes>>,
        is_repaired: bool,
    ) -> Verdict {
        if start > self.trimmed_to.max(self.log_start) || start < self.log_start.min(end) {
            let (log_start, trimmed) = (self.log_start, self.trimmed_to);
            let what = format!("begins at {start}: trimmed to {trimmed}, asked for {log_start}");
            return Err(broken(Rule::Trimmed, what));
        }
        self.may_end_at(end)?;
        for (&base, batch) in batches {
            let Some(batch) = batch else {
                if self.rotten.range(..=base).next().is_none() {
                    return Err(broken(Rule::Kept, format!("{base} is not damaged")));
                }
                continue;
            };
            if self.is_right(base, batch) || self.resolve_doubt(base, batch) {
                continue;
            }
            self.is_filler(base, batch, is_repaired)?;
        }
        self.doubts.retain(|(at, _)| *at >= end);
        self.cut_from = None;
        self.entries.split_off(&end);
        self.rotten.split_off(&end);
        if let Some((&base, last)) = self.entries.last_key_value()
            && last.next > end
            && start == end
        {
            // All is trimmed, and a repair has moved a batch to a lower offset.
            self.dropped_trimmed(&(base..end));
        }
        if self.end() != end && end > start {
            let what = format!("ends at {end}, within or after the batch before");
            return Err(broken(Rule::Sent, what));
        }
        // What is appended now is not trimmed.
        self.trimmed_to = self.trimmed_to.min(end);
        self.log_start = self.log_start.min(end);
        self.kept_end = end;
        self.durable_end = self.durable_end.min(end);
        self.stored_end = self.stored_end.min(end);
        Ok(())
    }

    /// Whether the log may end there.
    fn may_end_at(&self, end: i64) -> Verdict {
        if end >= self.kept_end {
            return Ok(());
        }
        let mut lost = self.entries.range(end..self.kept_end);
        let is_rotten = lost.all(|(base, _)| self.rotten.contains(base));
        // A damaged end that is not known to be synced looks like a torn one.
        if is_rotten && end >= self.stored_end {
            return Ok(());
        }
        // So does any damage after a reboot, with what follows.
        if self.may_be_cut(end) {
            return Ok(());
        }
        let what = format!("ends at {end}, but must reach {}", self.kept_end);
        Err(broken(Rule::Kept, what))
    }

    /// A repair has dropped these offsets, which were trimmed and cannot be read.
    pub(super) fn dropped_trimmed(&mut self, offsets: &std::ops::Range<i64>) {
        let filler = filler(offsets.start, offsets.end - 1);
        self.replace(offsets, &filler);
    }

    fn replace(&mut self, offsets: &std::ops::Range<i64>, batch: &[u8]) {
        let after = self.entries.split_off(&offsets.end);
        self.entries.split_off(&offsets.start);
        self.entries.extend(after);
        self.rotten.retain(|lost| !offsets.contains(lost));
        let entry = Entry {
            next: offsets.end,
            bytes: Bytes::copy_from_slice(batch),
            timestamp: -1,
            sent_by: None,
        };
        self.entries.insert(offsets.start, entry);
    }

    /// Whether this is a batch that was never synced and has lost its offset with a sector. A
    /// repair keeps it, because its checksum is right.
    fn is_moved(&self, batch: &[u8]) -> bool {
        let unsynced = self
            .entries
            .range(self.durable_end..)
            .map(|(_, entry)| entry);
        let doubts = self.doubts.iter().map(|(_, entry)| entry);
        unsynced
            .chain(doubts)
            .any(|entry| is_same_but_moved(&entry.bytes, batch))
    }

    /// A batch without records takes the place of damaged ones.
    fn is_filler(&mut self, base: i64, batch: &[u8], is_repaired: bool) -> Verdict {
        let header = BatchHeader::read(batch);
        let next = header
            .and_then(|header| header.last_offset())
            .map_or(0, |last| last + 1);
        let is_empty = header.is_some_and(|header| header.records == 0);
        let mut replaced = self.entries.range(base..next);
        let all_lost = replaced.all(|(lost, _)| {
            self.rotten.contains(lost) || *lost >= self.durable_end || self.may_be_cut(*lost)
        });
        let is_misplaced = base >= self.durable_end && self.is_moved(batch);
        if !is_repaired || !(is_empty || is_misplaced) || !all_lost {
            return Err(broken(Rule::Sent, format!("another batch is at {base}")));
        }
        self.replace(&(base..next), batch);
        Ok(())
    }
}

/// Whether two batches agree apart from their offsets, which a checksum does not cover.
fn is_same_but_moved(sent: &[u8], stored: &[u8]) -> bool {
    stored.len() == sent.len() && stored[16..] == sent[16..]
}

/// Whether a stored batch is the one that was sent.
fn is_same(sent: &[u8], base: i64, stored: &[u8]) -> bool {
    stored.len() == sent.len()
        && stored[..8] == base.to_be_bytes()
        && stored[8..12] == sent[8..12]
        && stored[12..16] == [0; 4]
        && stored[16..] == sent[16..]
}
