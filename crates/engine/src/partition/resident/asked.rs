//! Requests about an existing operation: recoveries, cancels and reschedules. Each is noted in the
//! operation's history and applied once, however often it is read.

use std::sync::Arc;

use crate::advance::{Verdict, recover_without_workflow};
use crate::id::Offset;
use crate::operation::{Created, HistoryEntry, OperationState, ProcessState, RequestHash};
use crate::ownership::Ownership;
use crate::partition::messages;
use crate::partition::resident::{
    OPERATION_BYTES, OperationCx, Persisted, ResidentOperation, weight,
};
use crate::priority::{LogPosition, Position, Source};
use crate::record::{AmendRequest, Amendment, CreateRequest, Recovery, RecoveryVerb};
use crate::step::IllegalTransition;
use crate::time::Timestamp;
use crate::workflow::Workflows;

impl ResidentOperation {
    /// A placeholder for an operation that was cancelled before it was created.
    pub(in crate::partition) fn tombstone(
        request: &AmendRequest,
        workflow: &str,
        position: Position,
        ownership: &Ownership,
        now: Timestamp,
    ) -> Self {
        let created = Created {
            workflow: workflow.into(),
            workflow_version: 0,
            step_names: Vec::new(),
            tenant: request.tenant.as_str().into(),
            caller_id: request.caller_id.clone(),
            input: Arc::from(*b"{}"),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            request: position,
            requested_at: request.requested_at,
            created_at: now,
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        };
        let state = OperationState {
            state: ProcessState::Cancelled,
            cancelled: true,
            tombstone: true,
            ..OperationState::new(ownership, 0, now)
        };
        Self {
            bytes: OPERATION_BYTES,
            held: Some((position.priority, position.offset)),
            persisted: Persisted {
                state: ProcessState::Processing,
                failed_count: 0,
            },
            ..Self::of(request.operation, Arc::new(created), state, None, now)
        }
    }

    /// Applies a request of a supervisor or an operator once. `offset` is that of its record.
    pub(in crate::partition) fn recover(
        &mut self,
        offset: Offset,
        recovery: Recovery,
        cx: &mut OperationCx<'_>,
    ) -> Result<(), IllegalTransition> {
        if let Some(due) = recovery.due {
            self.index_entry_came_up(due, cx);
        }
        let partition = cx.ownership.partition;
        let record = LogPosition { partition, offset };
        let is_noted = !matches!(
            recovery.verb,
            RecoveryVerb::Wake | RecoveryVerb::Retry { .. }
        );
        if self.state.noted(recovery.id).is_some()
            || (is_noted && self.state.was_forgotten(Source::Recoveries, record))
        {
            cx.stats.recoveries_void += 1;
            return Ok(());
        }
        let patience = cx.patience();
        let verdict = match self.advance(cx) {
            Some(mut advance) => advance.recover(&recovery.verb, patience)?,
            None => recover_without_workflow(&mut self.state, &recovery.verb),
        };
        let refused = match verdict {
            Verdict::Applied => {
                cx.stats.recoveries += 1;
                None
            }
            Verdict::HeldBack => {
                self.held_back = true;
                return Ok(());
            }
            Verdict::Void => {
                cx.stats.recoveries_void += 1;
                return Ok(());
            }
            Verdict::Refused(code) => {
                cx.stats.recoveries_refused += 1;
                Some(code)
            }
        };
        if is_noted {
            let verb = match &recovery.verb {
                RecoveryVerb::Undone { step } => format!("undone {step}"),
                RecoveryVerb::Resubmitted { as_operation } => format!("resubmitted {as_operation}"),
                verb => verb.as_str().to_owned(),
            };
            let entry = HistoryEntry {
                id: recovery.id,
                at: cx.now,
                by: recovery.asked_by,
                verb,
                reason: recovery.reason,
                refused: refused.map(str::to_owned),
            };
            self.note(entry, Source::Recoveries, record);
        }
        self.changed(cx);
        Ok(())
    }

    /// Applies a cancel or a reschedule once, and answers a refused one.
    pub(in crate::partition) fn amend(
        &mut self,
        request: AmendRequest,
        position: Position,
        cx: &mut OperationCx<'_>,
    ) -> Result<(), IllegalTransition> {
        if let Some(entry) = self.state.noted(request.id) {
            cx.stats.duplicates += 1;
            // The answer may have been lost with the previous owner.
            let refused = entry.refused.as_deref();
            if refused.is_some() || matches!(request.amendment, Amendment::Reschedule { .. }) {
                let (created, state) = (&self.created, self.state.state);
                cx.answers.push(messages::answer(
                    &request, created, state, position, refused, entry.at,
                ));
            }
            return Ok(());
        }
        if self
            .state
            .was_forgotten(position.priority.source(), record_at(position))
        {
            // The earlier answer is no longer known.
            cx.stats.duplicates += 1;
            return Ok(());
        }
        // A reschedule from before the create gets the same answer again: the operation does not
        // exist. (A record from another partition arrived later, after a repartition. The order
        // between priorities is unknown.)
        let created_at = self.created.request;
        let came_too_early = matches!(request.amendment, Amendment::Reschedule { .. })
            && (position.priority, position.partition)
                == (created_at.priority, created_at.partition)
            && position.offset < created_at.offset;
        let verdict = if came_too_early || *request.tenant != *self.created.tenant {
            Verdict::Refused("unknown-operation")
        } else if let Some(mut advance) = self.advance(cx) {
            advance.amend(&request.amendment)?
        } else if self.state.state == ProcessState::Cancelled {
            match request.amendment {
                Amendment::Cancel { .. } => Verdict::Void,
                Amendment::Reschedule { .. } => Verdict::Refused("final"),
            }
        } else {
            Verdict::Refused("workflow-unknown")
        };
        let refused = match verdict {
            Verdict::Refused(code) => Some(code),
            Verdict::Void => return Ok(()),
            Verdict::Applied | Verdict::HeldBack => None,
        };
        let verb = match &request.amendment {
            Amendment::Cancel { .. } => "cancel",
            Amendment::Reschedule { .. } => "reschedule",
        };
        if refused.is_some() {
            cx.stats.amendments_refused += 1;
        }
        if refused.is_some() || verb == "reschedule" {
            cx.answers.push(messages::answer(
                &request,
                &self.created,
                self.state.state,
                position,
                refused,
                cx.now,
            ));
        }
        if refused != Some("unknown-operation") {
            self.note_amendment(request, position, verb, refused, cx);
            self.changed(cx);
        }
        Ok(())
    }

    /// Applies a create to the placeholder of a cancel: the operation is cancelled.
    pub(in crate::partition) fn adopt(
        &mut self,
        request: CreateRequest,
        position: Position,
        workflows: &Workflows,
        cx: &mut OperationCx<'_>,
    ) {
        let created = Self::create(request, position, 0, workflows, cx.ownership, cx.now);
        self.persisted.state = ProcessState::Processing;
        self.created = created.created;
        self.workflow = created.workflow;
        self.state.steps = created.state.steps;
        self.state.tombstone = false;
        self.changed(cx);
    }

    /// Writes the placeholder of an operation that was cancelled before it was created.
    pub(in crate::partition) fn reserve_id(
        &mut self,
        request: AmendRequest,
        cx: &mut OperationCx<'_>,
    ) {
        let position = self.created.request;
        self.note_amendment(request, position, "cancel", None, cx);
        self.changed(cx);
    }

    fn note_amendment(
        &mut self,
        request: AmendRequest,
        position: Position,
        verb: &str,
        refused: Option<&str>,
        cx: &OperationCx<'_>,
    ) {
        let by = match request.asked_by {
            nobody if nobody.is_empty() => "caller".to_owned(),
            somebody => somebody,
        };
        let entry = HistoryEntry {
            id: request.id,
            at: cx.now,
            by,
            verb: verb.to_owned(),
            reason: request.reason,
            refused: refused.map(str::to_owned),
        };
        self.note(entry, position.priority.source(), record_at(position));
    }

    fn note(&mut self, entry: HistoryEntry, topic: Source, record: LogPosition) {
        self.state.note(entry, topic, record);
        self.bytes = weight(&self.created, &self.state);
    }
}

fn record_at(position: Position) -> LogPosition {
    LogPosition {
        partition: position.partition,
        offset: position.offset,
    }
}
