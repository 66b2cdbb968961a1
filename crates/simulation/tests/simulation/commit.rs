//! An owner's commit in progress: first the rows, then the messages, then the report to the engine.

use std::collections::VecDeque;
use std::time::Duration;

use waybill_engine::{
    Action, Attempt, Batch, BatchNumber, Command, Event, Message, OperationId, Outcome, Priority,
    ProcessState, StepReply, Timestamp,
};
use waybill_state::DueEntry;

use crate::bugs::Bug;
use crate::history::Rule;
use crate::judge::Writer;
use crate::queue::What;
use crate::run::Run;
use crate::scheduler::{Life, position_of};
use crate::seen::Sight;
use crate::workload::Record;

/// How long after the start of a commit its writes may still reach the store, even if the owner has
/// died. It exceeds a lease, so writes of dead owners arrive among those of their successors.
pub const WRITE_LATE_MICROS: u64 = 4_000_000;

/// An attempt that a row intends to request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Intent {
    pub operation: OperationId,
    pub step: usize,
    pub attempt: Attempt,
    pub complete_by: Timestamp,
    pub undoes: bool,
}

/// The batch whose rows are being written.
#[derive(Debug)]
pub struct Commit {
    number: BatchNumber,
    began: Timestamp,
    /// What its owner knew when it took the batch.
    pub writer: Writer,
    writes: VecDeque<Command>,
    has_landed: bool,
    /// The entries of the deadline index that were written, and not yet compared with the cursor.
    entries: Vec<DueEntry>,
    /// Its writes leave the owner's memory only when they land.
    is_buffered: bool,
    sends: Vec<Message>,
    intents: Vec<Intent>,
}

/// A batch whose messages are in transit.
#[derive(Debug)]
pub struct Unsettled {
    number: BatchNumber,
    messages: usize,
    awaited: usize,
    is_settled: bool,
    /// Attempts that its rows intend.
    intents: Vec<Intent>,
}

impl Run {
    pub fn commit(&mut self, index: usize) {
        self.commit_begins(index);
        let owner = &self.owners[index];
        if owner.commit.is_some() || owner.is_releasing() {
            return;
        }
        if !self.has_valid_lease(index) {
            return self.give_up(index);
        }
        let owner = &mut self.owners[index];
        let local = owner.clock.read(self.now);
        let Some(engine) = &mut owner.engine else {
            return;
        };
        let Some(batch) = engine.take_batch(local) else {
            if owner.has_run_out_of_stamps(local) {
                self.seen.count(Sight::StampsRanOut);
            }
            return;
        };
        self.check_batch(index, &batch);
        let latest = self.owners[index].clock.latest();
        let writer = self.owners[index].writer(latest);
        let commit = self.prepare(batch, writer);
        if self.bug == Some(Bug::SendBeforePersist) {
            self.dispatch(index, commit.number, commit.sends.clone(), Vec::new());
        }
        if commit.writes.is_empty() {
            self.owners[index].commit = Some(commit);
            return self.committed(index);
        }
        let first = self.write_time();
        let rest = first + self.rng.below(2_000);
        self.owners[index].commit = Some(commit);
        for (after, is_rest) in [(first, false), (rest, true)] {
            self.later(
                after,
                What::Land {
                    owner: index,
                    is_rest,
                },
            );
        }
    }

    fn write_time(&mut self) -> u64 {
        match self.rng.below(100) {
            0..=93 => self.rng.below(2_000),
            94..=98 => self.rng.below(200_000),
            _ => self.rng.below(1_500_000),
        }
    }

    /// Splits a batch into writes and sends, and corrupts it if a bug is planted.
    fn prepare(&mut self, batch: Batch, writer: Writer) -> Commit {
        let mut commit = Commit {
            number: batch.number,
            began: self.now,
            writer,
            writes: VecDeque::new(),
            has_landed: false,
            entries: Vec::new(),
            is_buffered: self.rng.chance(50),
            sends: Vec::new(),
            intents: Vec::new(),
        };
        for command in batch.commands {
            match command {
                Command::Send(message) => commit.sends.push(message),
                Command::Index { .. } if self.bug == Some(Bug::SkipIndexEntry) => {}
                Command::Persist(change)
                    if self.bug == Some(Bug::LoseTombstone) && change.state.tombstone => {}
                Command::Persist(change) => {
                    commit.intents.extend(intents(change.id, &change.state));
                    commit.writes.push_back(Command::Persist(change));
                }
                write => commit.writes.push_back(write),
            }
        }
        if self.bug == Some(Bug::ForgetUnknownInUndo) {
            self.forget_unknown(&mut commit);
        }
        if self.bug == Some(Bug::ResumeWithoutAsking) {
            self.forget_resumed(&mut commit);
        }
        commit
    }

    /// The planted bug: an agent is not asked to undo a step of unknown outcome.
    fn forget_unknown(&mut self, commit: &mut Commit) {
        let unknown = |id: OperationId, step: usize| {
            commit.writes.iter().any(|write| {
                matches!(write, Command::Persist(change) if change.id == id
                    && change.state.steps[step].unsettled_until.is_some())
            })
        };
        let (mut kept, mut faked) = (Vec::new(), Vec::new());
        for message in commit.sends.drain(..) {
            match message {
                Message::Step(request)
                    if request.action == Action::Compensate
                        && unknown(request.operation, self.step_of(&request)) =>
                {
                    faked.push(request);
                }
                message => kept.push(message),
            }
        }
        commit.sends = kept;
        for request in faked {
            let step = self.step_of(&request);
            commit
                .intents
                .retain(|intent| (intent.operation, intent.step) != (request.operation, step));
            let reply = StepReply::to(
                &request,
                Outcome::Success {
                    outputs: Vec::new(),
                },
            );
            let (task, incarnation) = self.agents.nobody();
            self.later(
                3_000,
                What::Reply {
                    task,
                    incarnation,
                    reply: Box::new(reply),
                    is_copy: true,
                },
            );
        }
    }

    /// The planted bug: requests of an earlier owner are not sent again.
    fn forget_resumed(&self, commit: &mut Commit) {
        let judge = &self.judge;
        commit.sends.retain(|message| {
            let Message::Step(request) = message else {
                return true;
            };
            let step = self.step_of(request);
            !judge.intended_before(request.operation, step, request.attempt)
        });
    }

    /// Part of a commit becomes durable, or the rest.
    pub fn land(&mut self, index: usize, is_rest: bool) {
        let paused_until = self.owners[index].paused_until;
        let Some(commit) = &mut self.owners[index].commit else {
            return;
        };
        let latest = commit.began + Duration::from_micros(WRITE_LATE_MICROS);
        if commit.is_buffered && paused_until.min(latest) > self.now {
            // The unsent writes are paused together with the process.
            let at = paused_until.min(latest);
            let owner = index;
            return self.queue.push(at, What::Land { owner, is_rest });
        }
        let count = if is_rest {
            commit.writes.len()
        } else {
            self.rng.index(commit.writes.len() + 1)
        };
        commit.has_landed |= count > 0;
        let writer = commit.writer;
        let writes: Vec<_> = commit.writes.drain(..count).collect();
        for write in writes {
            self.write(index, write, writer);
        }
        if is_rest {
            let after = self.rng.below(1_000);
            self.later(after, What::Committed { owner: index });
        } else {
            self.is_up(index);
        }
    }

    /// Writes of a dead owner land.
    pub fn land_late(&mut self, index: usize, writes: Vec<Command>) {
        let latest = self.owners[index].clock.latest();
        let writer = self.owners[index].writer(latest);
        for write in writes {
            self.write(index, write, writer);
        }
    }

    fn write(&mut self, index: usize, write: Command, writer: Writer) {
        match write {
            Command::Index { due, operation } => {
                let entry = DueEntry { due, operation };
                self.store.logs[self.owners[index].partition].add_entry(entry);
                if let Some(commit) = &mut self.owners[index].commit {
                    commit.entries.push(entry);
                }
                self.note(operation, || format!("index: an entry at {due:?}"));
            }
            Command::Attention { operation, .. } => self.store.attention.push(operation),
            Command::Persist(change) => self.persist(index, *change, writer),
            Command::Send(_) => unreachable!("messages are no writes"),
        }
    }

    /// Writes the entries of a commit that its sweep has passed once more, further on. Returns
    /// whether there were any.
    fn write_entries_again(&mut self, index: usize) -> bool {
        let owner = &mut self.owners[index];
        let Some(commit) = &mut owner.commit else {
            return false;
        };
        let logs = &mut self.store.logs[owner.partition];
        let now = owner.clock.read(self.now);
        let cursor = logs.cursor;
        let again = |entry: DueEntry| entry.ahead_of(cursor?, now);
        commit.entries = commit.entries.drain(..).filter_map(again).collect();
        for entry in &commit.entries {
            logs.add_entry(*entry);
            self.seen.count(Sight::EntriesWrittenAgain);
            let DueEntry { due, operation } = *entry;
            let line = || format!("index: an entry again, at {due:?}");
            self.history.note(self.now, Some(operation), line);
        }
        !commit.entries.is_empty()
    }

    /// The commit is durable: its messages may leave, if the lease still holds.
    pub fn committed(&mut self, index: usize) {
        if self.write_entries_again(index) {
            let after = self.travel();
            return self.later(after, What::Committed { owner: index });
        }
        let Some(commit) = self.owners[index].commit.take() else {
            return;
        };
        if !self.has_valid_lease(index) {
            self.seen.count(Sight::FencedCommits);
            return self.give_up(index);
        }
        if self.bug != Some(Bug::SendBeforePersist) {
            self.dispatch(index, commit.number, commit.sends, commit.intents);
        }
        self.want_commit(index);
    }

    fn dispatch(
        &mut self,
        index: usize,
        number: BatchNumber,
        messages: Vec<Message>,
        intents: Vec<Intent>,
    ) {
        let awaited = messages.iter().filter(|message| self.waits_for(message));
        let awaited = awaited.count();
        self.owners[index].unsettled.push_back(Unsettled {
            number,
            messages: messages.len(),
            awaited,
            is_settled: false,
            intents,
        });
        if awaited == 0 {
            self.settle_soon(index, number);
        }
        for message in messages {
            if self.rng.chance(self.plan.copies) && !self.is_calm() {
                self.send(index, number, message.clone(), true);
            }
            self.send(index, number, message, false);
        }
    }

    fn send(&mut self, owner: usize, batch: BatchNumber, message: Message, is_copy: bool) {
        // A message without a pending acknowledgement may take longer.
        let lingers = !self.waits_for(&message);
        let after = self.travel()
            + if lingers {
                self.rng.below(1_500_000)
            } else {
                0
            };
        let is_buffered = self.rng.chance(50);
        self.later(
            after,
            What::Arrive {
                owner,
                batch,
                message: Box::new(message),
                is_buffered,
                is_copy,
            },
        );
    }

    /// A message arrives at its topic, unless it died with its sender.
    pub fn arrive(
        &mut self,
        index: usize,
        batch: BatchNumber,
        message: Box<Message>,
        is_buffered: bool,
        is_copy: bool,
    ) {
        let owner = &self.owners[index];
        if is_buffered && owner.life == Life::Crashed {
            return;
        }
        if is_buffered && owner.paused_until > self.now {
            let at = owner.paused_until + Duration::from_micros(10);
            let what = What::Arrive {
                owner: index,
                batch,
                message,
                is_buffered,
                is_copy,
            };
            return self.queue.push(at, what);
        }
        if owner.life != Life::Runs || self.now >= owner.valid_until {
            self.seen.count(Sight::LateMessages);
        }
        let is_awaited = self.waits_for(&message);
        self.take_message(index, *message);
        if is_copy {
            return;
        }
        let mut unsettled = self.owners[index].unsettled.iter_mut();
        if let Some(unsettled) = unsettled.find(|unsettled| unsettled.number == batch) {
            unsettled.messages -= 1;
            unsettled.awaited -= usize::from(is_awaited);
            if is_awaited && unsettled.awaited == 0 {
                self.settle_soon(index, batch);
            }
        }
    }

    /// Whether a batch settles only after this is acknowledged: always, except for bugs.
    fn waits_for(&self, message: &Message) -> bool {
        match (message, self.bug) {
            (_, Some(Bug::SettleBeforeAcknowledged))
            | (Message::Failed(_), Some(Bug::LoseFailedRecord))
            | (Message::Alert(_), Some(Bug::LoseAlert))
            | (Message::Owner(_), Some(Bug::LoseOwnerNotice)) => false,
            (_, _) => true,
        }
    }

    fn settle_soon(&mut self, owner: usize, batch: BatchNumber) {
        let after = self.rng.below(2_000);
        self.later(after, What::Settle { owner, batch });
    }

    fn take_message(&mut self, index: usize, message: Message) {
        let partition = self.owners[index].partition;
        match message {
            Message::Step(request) => {
                self.check_request(index, &request);
                let asked_by = self.plan.direct.then_some(index);
                self.receive(request, asked_by);
            }
            Message::Status(status) => self.take_status(*status),
            Message::Failed(failed) => self.take_failed(partition, *failed),
            Message::Alert(alert) => self.take_alert(*alert),
            Message::Owner(notice) => self.take_owner_notice(*notice),
            Message::Reroute {
                source,
                partition,
                partitions: _,
                record,
            } => {
                let (from, at) = position_of(&record);
                let Some(priority) = source.priority() else {
                    return self.fail(Rule::Contract, None, || format!("rerouted: {record:?}"));
                };
                let record = self.store.logs[from].requests[priority][at].clone();
                let record = match record {
                    Record::Request { request, .. } => Record::Request {
                        request,
                        is_rerouted: true,
                    },
                    Record::Poison => Record::Poison,
                };
                self.judge.rerouted.push((source, from, at));
                self.request_arrives(priority, partition.0 as usize, record);
            }
            Message::DeadLetter { source, offset, .. } => {
                let at = usize::try_from(offset.0).unwrap();
                self.judge.dead_letters.push((source, partition, at));
            }
        }
    }

    /// Reports to the engine that a batch is settled; the attempts that it intends were requested
    /// by then.
    pub fn settle(&mut self, index: usize, batch: BatchNumber) {
        let mut unsettled = self.owners[index].unsettled.iter_mut();
        if let Some(unsettled) = unsettled.find(|unsettled| unsettled.number == batch) {
            unsettled.is_settled = true;
        }
        while let Some(first) = self.owners[index].unsettled.front()
            && first.is_settled
        {
            let settled = self.owners[index].unsettled.pop_front();
            let intents = settled.map(|settled| settled.intents);
            self.check_asked_for(&intents.unwrap_or_default());
        }
        self.apply(index, Event::Settled { batch });
        for priority in Priority::ALL {
            self.wake(index, priority.source());
        }
    }

    pub fn crash(&mut self, index: usize) {
        let commit = self.owners[index].commit.take();
        let sight = self.crash_point(index, commit.as_ref());
        self.seen.count(sight);
        self.owners[index].life = Life::Crashed;
        self.note_all(|| format!("owner {index} dies: {sight:?}"));
        let Some(commit) = commit else {
            return;
        };
        let left = commit.writes.len();
        if left > 0 && self.rng.chance(60) {
            let count = self.rng.index(left) + 1;
            let writes = commit.writes.into_iter().take(count).collect();
            let latest = commit.began + Duration::from_micros(WRITE_LATE_MICROS);
            let within = u64::try_from(latest.since(self.now).as_micros()).unwrap();
            let after = self.rng.below(within.max(1));
            self.later(
                after,
                What::LandLate {
                    owner: index,
                    writes,
                },
            );
        }
    }

    fn crash_point(&self, index: usize, commit: Option<&Commit>) -> Sight {
        let unsettled = &self.owners[index].unsettled;
        match commit {
            Some(commit) if commit.writes.is_empty() => Sight::CrashBeforeSending,
            Some(commit) if commit.has_landed => Sight::CrashAmidPersisting,
            Some(_) => Sight::CrashBeforePersisting,
            None if unsettled.iter().any(|batch| batch.messages > 0) => Sight::CrashAmidSending,
            None if !unsettled.is_empty() => Sight::CrashBeforeSettling,
            None => Sight::CrashIdle,
        }
    }
}

/// The attempts in progress according to a row.
pub fn intents(
    operation: OperationId,
    state: &waybill_engine::OperationState,
) -> impl Iterator<Item = Intent> {
    let is_live = matches!(
        state.state,
        ProcessState::Processing | ProcessState::Compensating
    );
    let steps = state.steps.iter().enumerate();
    steps.filter_map(move |(step, progress)| {
        Some(Intent {
            operation,
            step,
            attempt: progress.attempt,
            complete_by: progress.complete_by.filter(|_| is_live)?,
            undoes: progress.action == Action::Compensate,
        })
    })
}
