//! Checks what lies below checkpoints.

use waybill_engine::{
    Amendment, OperationId, OperationRequest, OperationRow, Priority, Source, TopicOffsets,
};
use waybill_state::Lease;

use crate::history::Rule;
use crate::run::Run;
use crate::store::{FINGERPRINT_BASE, position, topic_of};
use crate::workload::Record;

impl Run {
    /// The fingerprints in a lease are those of the last records that are done, or of the topics.
    pub fn check_fingerprints(&mut self, lease: &Lease) {
        let is_right = |priority: Priority| {
            let source = priority.source();
            let done = position(&lease.checkpoint.at, source) as u64;
            let expected = match done {
                0 => topic_of(source).head(),
                done => done - 1 + FINGERPRINT_BASE,
            };
            let found = lease.checkpoint.fingerprints[priority];
            found.is_none_or(|found| found == expected)
                && lease.consumed[priority] >= lease.checkpoint.on(source)
        };
        if !Priority::ALL.into_iter().all(is_right) {
            self.fail(Rule::Contract, None, || format!("{lease:?}"));
        }
    }

    /// No record below a checkpoint is unfinished.
    pub fn check_checkpoint(&mut self, partition: usize) {
        let accepted = self.judge.accepted.iter();
        let unsafe_one = accepted
            .filter(|(_, accepted)| accepted.partition == partition)
            .map(|(id, accepted)| (*id, accepted, self.store.reached_of(partition, *id)))
            .filter(|(id, accepted, reached)| match self.store.row(*id) {
                // The row's own request is the one that would be read again.
                Some(row) => {
                    let made_by = row.created.request;
                    made_by.offset < reached.on(made_by.priority.source())
                }
                None => Priority::ALL.into_iter().any(|priority| {
                    accepted.at[priority]
                        .is_some_and(|at| at < position(reached, priority.source()))
                }),
            })
            .find(|(id, _, reached)| !self.is_safe(*id, partition, *reached));
        if let Some((id, _, reached)) = unsafe_one {
            let state = self.store.row(id).map(|row| row.state.clone());
            let cursor = self.store.logs[partition].cursor;
            self.fail(Rule::CheckpointAhead, id, || {
                format!("{reached:?} and cursor {cursor:?} have passed {state:?}")
            });
        }
        for priority in Priority::ALL {
            self.check_records_below(priority, partition);
        }
        self.check_replies_below(partition);
    }

    /// Whether an operation whose request is below the checkpoint is certain to end.
    fn is_safe(&self, id: OperationId, partition: usize, checkpoint: TopicOffsets) -> bool {
        let Some(row) = self.store.row(id) else {
            return false;
        };
        // An audit will wake it. Later hand-offs could be judged, but nothing tells them apart.
        if self.judge.lost_wakes.contains(&id) {
            return true;
        }
        let logs = &self.store.logs[partition];
        let mut recoveries = logs.recoveries[position(&checkpoint, Source::Recoveries)..].iter();
        let is_hinted_at =
            logs.will_find(id) || recoveries.any(|recovery| recovery.operation == id);
        // Any record that is still to be read loads the row: then the operation goes on, and its
        // end is announced if that has not happened.
        let mut replies = logs.replies[position(&checkpoint, Source::Replies)..]
            .iter()
            .flatten();
        let requests = |priority: Priority| {
            logs.requests[priority][position(&checkpoint, priority.source())..].iter()
        };
        let mut requests = Priority::ALL.into_iter().flat_map(requests);
        let will_be_loaded = is_hinted_at
            || replies.any(|reply| reply.operation == id)
            || requests.any(|record| record.operation() == Some(id));
        match row.state.state.is_final() {
            true => will_be_loaded || self.judge.is_announced(row),
            false => will_be_loaded && (row.state.handed_off || self.judge.was_unreadable(id)),
        }
    }

    /// Records without an operation are on a dead-letter topic or were rerouted; a cancel is noted.
    fn check_records_below(&mut self, priority: Priority, partition: usize) {
        let logs = &self.store.logs[partition];
        let records = logs.requests[priority].iter().enumerate();
        let mut below = records.filter(|(at, record)| {
            let reached = self.store.reached(partition, record.key(*at));
            *at < position(&reached, priority.source())
        });
        let lost = below.find(|(at, _)| !self.is_seen_to(priority, partition, *at));
        let lost = lost.map(|(at, _)| at);
        if let Some(at) = lost {
            let record = self.store.logs[partition].requests[priority][at].clone();
            self.fail(Rule::NotAnswered, record.operation(), || {
                format!("{at}: {record:?}")
            });
        }
    }

    fn is_seen_to(&self, priority: Priority, partition: usize, at: usize) -> bool {
        let place = (priority.source(), partition, at);
        let Record::Request {
            request,
            is_rerouted,
        } = &self.store.logs[partition].requests[priority][at]
        else {
            return self.judge.dead_letters.contains(&place);
        };
        let id = request.operation();
        if self.home_of(id) != partition {
            return if *is_rerouted {
                self.judge.dead_letters.contains(&place)
            } else {
                self.judge.rerouted.contains(&place)
            };
        }
        if self.judge.was_unreadable(id) {
            return true;
        }
        let row = self.store.row(id);
        match &**request {
            OperationRequest::Create(create) => {
                let priority = match priority {
                    Priority::Normal => "",
                    Priority::High => "high-priority-",
                };
                let rejected = || id.event_id(&format!("rejected-{priority}{partition}-{at}"));
                row.is_some_and(|row| row.created.request_hash == create.request_hash)
                    || self.judge.statuses.contains_key(&rejected())
            }
            OperationRequest::Amend(amend) => {
                let answer = id.event_id(&format!("answer-{}", amend.id));
                let is_noted = |row: &OperationRow| {
                    let mut history = row.state.history.iter();
                    history.any(|entry| entry.id == amend.id && entry.refused.is_none())
                };
                let is_void = |row: &OperationRow| row.state.cancelled;
                match amend.amendment {
                    Amendment::Cancel { .. } => {
                        row.is_some_and(|row| is_noted(row) || is_void(row))
                            || self.judge.statuses.contains_key(&answer)
                    }
                    Amendment::Reschedule { .. } => self.judge.statuses.contains_key(&answer),
                }
            }
        }
    }

    /// No row still awaits a reply below the checkpoint.
    fn check_replies_below(&mut self, partition: usize) {
        let awaited = self.store.rows().find_map(|row| {
            let replies = self.judge.replies.get(&row.id)?;
            let is_ours = self.home_of(row.id) == partition && !row.state.state.is_final();
            let end = position(&self.store.reached_of(partition, row.id), Source::Replies);
            let reply = replies.iter().find(|reply| {
                let step = &row.state.steps[reply.step];
                reply.at < end
                    && reply.counts_for(row.state.epoch)
                    && step.is_under_way()
                    && step.attempt == reply.attempt
                    && (step.action == waybill_engine::Action::Compensate) == reply.undoes
            })?;
            let is_excused =
                self.judge.branched.contains(&row.id) || self.judge.was_unreadable(row.id);
            (is_ours && !is_excused).then_some((row.id, end, *reply))
        });
        if let Some((id, end, reply)) = awaited {
            self.fail(Rule::CheckpointAhead, id, || {
                format!("the checkpoint of replies, {end}, has passed {reply:?}")
            });
        }
    }
}
