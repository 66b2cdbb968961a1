//! The messages of schedulers: on their way they are late, doubled or lost.

use std::time::Duration;

use waybill_engine::{
    Action, Attempt, BootTime, Message, OperationId, OperationState, Outcome, ProcessState,
    ShardId, StepReply, Timestamp,
};
use waybill_scheduler_core::{Generation, Input, Requester, SendNumber, Undelivered};

use super::consumers::position_of;
use super::{Act, Incarnation};
use crate::bugs::Bug;
use crate::history::Rule;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Record;

/// Of this many batches of messages, one is not delivered.
const FAULTS_ONE_IN: u64 = 150;

/// An attempt that a row intends to request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Intent {
    pub operation: OperationId,
    pub step: usize,
    pub attempt: Attempt,
    pub complete_by: Timestamp,
    pub undoes: bool,
}

/// Messages that were sent together, and are not acknowledged.
#[derive(Debug)]
pub struct Unsettled {
    /// How many have not arrived.
    pub messages: usize,
    /// How many of them are waited for.
    awaited: usize,
    of: (ShardId, Generation),
    is_settled: bool,
    /// Attempts that the rows before them intend.
    intents: Vec<Intent>,
}

/// A message on its way.
#[derive(Debug)]
pub struct Arriving {
    number: SendNumber,
    from: Requester,
    message: Box<Message>,
    valid_until: BootTime,
    /// It is still in the process's memory until it arrives.
    is_buffered: bool,
    is_copy: bool,
}

impl Run {
    /// Sends the messages of a shard, unless its lease has ended.
    pub fn send_all(
        &mut self,
        index: usize,
        number: SendNumber,
        from: Requester,
        messages: Vec<Message>,
        valid_until: BootTime,
    ) {
        let key = (from.shard, from.generation);
        let scheduler = &mut self.schedulers[index];
        let intents = scheduler.intents.remove(&key).unwrap_or_default();
        let has_ended = scheduler.now(self.now).boot >= valid_until;
        if has_ended && self.bug != Some(Bug::IgnoreLease) {
            self.seen.count(Sight::FencedMessages);
            let result = Err(Undelivered::LeaseEnded);
            return self.settle_soon(index, number, result);
        }
        if !messages.is_empty() {
            self.check_owner(index, from);
        }
        let (messages, intents) = self.corrupted_messages(index, messages, intents);
        let messages = match self.plan.direct {
            true => self.call_agents(index, from, messages),
            false => messages,
        };
        let awaited = messages.iter().filter(|message| self.waits_for(message));
        let unsettled = Unsettled {
            messages: messages.len(),
            awaited: awaited.count(),
            of: key,
            is_settled: false,
            intents,
        };
        let is_settled = unsettled.awaited == 0;
        self.schedulers[index].unsettled.insert(number, unsettled);
        let fails = !self.is_calm() && !is_settled && self.rng.below(FAULTS_ONE_IN) == 0;
        if fails {
            // Some may have been delivered, or are yet.
            self.seen.count(Sight::LostMessages);
            let after = self.travel();
            let result = Err(Undelivered::Failed("it timed out".to_owned()));
            self.act_later(index, after, Act::Input(Input::Settled { number, result }));
        } else if is_settled {
            self.settle_soon(index, number, Ok(()));
        }
        for message in messages {
            if fails && self.rng.chance(50) {
                continue;
            }
            if self.rng.chance(self.plan.copies) && !self.is_calm() {
                self.send(index, number, from, message.clone(), valid_until, true);
            }
            self.send(index, number, from, message, valid_until, fails);
        }
    }

    /// The sender of messages must still have the lease of their shard.
    fn check_owner(&mut self, index: usize, from: Requester) {
        let reading = self.schedulers[index].readings.get(&from.shard);
        let Some(reading) = reading.filter(|reading| reading.generation == from.generation) else {
            return;
        };
        let lease = self.store.leases.get(&reading.key).cloned();
        let epoch = reading.epoch;
        if lease.as_ref().is_none_or(|lease| lease.epoch != epoch) {
            self.fail(Rule::OneOwner, None, || {
                format!("scheduler {index} sends under epoch {epoch}, after {lease:?}")
            });
        }
    }

    fn send(
        &mut self,
        index: usize,
        number: SendNumber,
        from: Requester,
        message: Message,
        valid_until: BootTime,
        is_copy: bool,
    ) {
        // A message without a pending acknowledgement may take longer.
        let lingers = match self.waits_for(&message) {
            true => 0,
            false => self.rng.below(1_500_000),
        };
        let after = self.travel() + lingers;
        let is_buffered = self.rng.chance(50);
        let arriving = Arriving {
            number,
            from,
            message: Box::new(message),
            valid_until,
            is_buffered,
            is_copy,
        };
        self.act_later(index, after, Act::Arrive(arriving));
    }

    /// A message arrives at its topic, unless it died with its sender.
    pub fn arrive(&mut self, of: Incarnation, arriving: Arriving) {
        let lives = self.lives(of);
        let until = self.schedulers[of.scheduler].paused_until;
        let is_buffered = match self.rng.is_script() {
            // A search tries both, if there is a difference.
            true => (!lives || until > self.now) && self.rng.fate(50),
            false => arriving.is_buffered,
        };
        if is_buffered && !lives {
            return;
        }
        if is_buffered && until > self.now {
            let at = until + Duration::from_micros(10);
            return self.act_at(of, at, Act::Arrive(arriving));
        }
        let Arriving {
            number,
            from,
            message,
            valid_until,
            is_copy,
            ..
        } = arriving;
        let is_awaited = self.waits_for(&message);
        let has_ended = self.schedulers[of.scheduler].now(self.now).boot >= valid_until;
        if !lives || has_ended {
            self.seen.count(Sight::LateMessages);
        }
        self.take_message(of, from, *message);
        if is_copy || !lives {
            return;
        }
        let scheduler = &mut self.schedulers[of.scheduler];
        if let Some(unsettled) = scheduler.unsettled.get_mut(&number) {
            unsettled.messages -= 1;
            unsettled.awaited -= usize::from(is_awaited);
            if is_awaited && unsettled.awaited == 0 {
                self.settle_soon(of.scheduler, number, Ok(()));
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

    fn settle_soon(&mut self, index: usize, number: SendNumber, result: Result<(), Undelivered>) {
        let after = self.rng.below(2_000);
        self.act_later(index, after, Act::Input(Input::Settled { number, result }));
    }

    /// A batch settles: once those before it are settled too, the attempts that its rows intend
    /// were requested.
    pub fn settled(&mut self, index: usize, number: SendNumber, is_delivered: bool) {
        let unsettled = &mut self.schedulers[index].unsettled;
        let Some(settled) = unsettled.get_mut(&number) else {
            return;
        };
        settled.is_settled = true;
        let of = settled.of;
        if !is_delivered {
            // The next owner asks again for all of it.
            unsettled.retain(|_, other| other.of != of);
        }
        loop {
            let unsettled = &mut self.schedulers[index].unsettled;
            let mut own = unsettled.iter().filter(|(_, other)| other.of == of);
            let Some((&first, _)) = own.next().filter(|(_, first)| first.is_settled) else {
                return;
            };
            if let Some(settled) = unsettled.remove(&first) {
                self.check_asked_for(&settled.intents);
            }
        }
    }

    fn take_message(&mut self, of: Incarnation, from: Requester, message: Message) {
        let partition = from.partition.0 as usize;
        match message {
            Message::Step(request) => {
                self.check_request(of.scheduler, &request);
                self.receive(request);
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

    /// The planted bugs: requests are not sent.
    fn corrupted_messages(
        &mut self,
        index: usize,
        messages: Vec<Message>,
        intents: Vec<Intent>,
    ) -> (Vec<Message>, Vec<Intent>) {
        match self.bug {
            Some(Bug::ForgetUnknownInUndo) => self.without_unknown(messages, intents),
            Some(Bug::ResumeWithoutAsking) => {
                let is_new = |message: &Message| {
                    let Message::Step(request) = message else {
                        return true;
                    };
                    let step = self.step_of(request);
                    let mut new = self.schedulers[index].new_intents.iter();
                    new.any(|intent| {
                        (intent.operation, intent.step, intent.attempt)
                            == (request.operation, step, request.attempt)
                    })
                };
                (messages.into_iter().filter(is_new).collect(), intents)
            }
            _ => (messages, intents),
        }
    }

    /// The planted bug: an agent is not asked to undo a step of unknown outcome.
    fn without_unknown(
        &mut self,
        messages: Vec<Message>,
        mut intents: Vec<Intent>,
    ) -> (Vec<Message>, Vec<Intent>) {
        let mut kept = Vec::new();
        for message in messages {
            let is_unknown = match &message {
                Message::Step(request) if request.action == Action::Compensate => {
                    let step = self.step_of(request);
                    let row = self.store.row(request.operation);
                    row.is_some_and(|row| row.state.steps[step].unsettled_until.is_some())
                }
                _ => false,
            };
            let Message::Step(request) = &message else {
                kept.push(message);
                continue;
            };
            if !is_unknown {
                kept.push(message);
                continue;
            }
            let step = self.step_of(request);
            intents.retain(|intent| (intent.operation, intent.step) != (request.operation, step));
            let outputs = Vec::new();
            let reply = Box::new(StepReply::to(request, Outcome::Success { outputs }));
            self.later(3_000, What::Reply(reply));
        }
        (kept, intents)
    }
}

/// The attempts in progress according to a row.
pub fn intents(
    operation: OperationId,
    state: &OperationState,
) -> impl Iterator<Item = Intent> + use<> {
    let is_live = matches!(
        state.state,
        ProcessState::Processing | ProcessState::Compensating
    );
    let intent = |(step, progress): (usize, &waybill_engine::StepProgress)| {
        Some(Intent {
            operation,
            step,
            attempt: progress.attempt,
            complete_by: progress.complete_by.filter(|_| is_live)?,
            undoes: progress.action == Action::Compensate,
        })
    };
    let found: Vec<Intent> = state.steps.iter().enumerate().filter_map(intent).collect();
    found.into_iter()
}
