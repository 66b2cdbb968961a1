//! The verbs of operators on a failed operation: each becomes a record on `recovery`.

use uuid::Uuid;
use waybill_api::form::Forms;
use waybill_api::request::resubmission;
use waybill_api::verb::Verb;
use waybill_api::view::VerbAcceptedView;
use waybill_clock::time_text;
use waybill_clock::wall_clock;
use waybill_engine::{
    CreateRequest, HistoryEntry, IdOrigin, OperationId, OperationRow, Recovery, RecoveryVerb,
    RequestHash, Timestamp,
};
use waybill_http::auth::{Caller, Scope};
use waybill_http::problem::{Kind, Problem};

use super::amend::unwritable;
use super::body::{Requester, VerbBody};
use super::{Key, accepted};
use crate::refusals;
use crate::route::{OPERATIONS, location};
use crate::service::{Api, Call, OF_ONE, Parameters, Reply, decoded, not_found};
use crate::status::Status;

impl Api {
    /// `POST /v1/operations/{id}:verb`; `part` is the last part of the path.
    pub async fn ask(&self, part: &str, call: Call<'_>) -> Result<Reply, Problem> {
        let Call {
            query,
            headers,
            body,
            caller,
        } = call;
        let (id, name) =
            Verb::split(part).ok_or_else(|| Problem::method_not_allowed("GET, HEAD"))?;
        let verb = Verb::of_path(name).ok_or_else(unknown_verb)?;
        let body = self.ask_body(headers, body, caller).await?;
        let verb_body = VerbBody::read(verb, headers, body.as_deref(), self.rules.json_depth_max)?;
        let parameters = Parameters::read(query, caller, &OF_ONE)?;
        let Some(recovery) = verb.recovery(&verb_body.step) else {
            return self
                .cancel(id, &parameters, headers, verb_body, None, caller)
                .await;
        };
        let id = decoded(id).ok_or_else(not_found)?;
        let key = Key::of(headers)?;
        let row = match self.asked_about(&id, &parameters, false).await? {
            Status::Row(row) => row,
            Status::Pending(_) => return Err(refusals::refused("pending")),
            Status::Rejected(_) => return Err(not_found()),
        };
        let as_new = verb_body.as_new;
        let requester = verb_body.requester(caller)?;
        if as_new {
            return self.resubmit_as_new(&row, requester, &key, caller).await;
        }
        if refusals::is_done(&row, &recovery) {
            return Ok(self.as_it_is(&row, None, caller));
        }
        refusals::of_recovery(&row, &self.rules.workflows, &recovery, wall_clock())?;
        let request_id = self.recover(row.id, recovery, requester, &key).await?;
        let view = VerbAcceptedView {
            id: row.id.0,
            verb: verb.in_path().into(),
            request_id,
            resubmitted_as: None,
        };
        Ok(accepted(&view, &location(OPERATIONS, row.id, None)))
    }

    /// Resubmits the operation as a new one, then records that in its history. The request comes
    /// first, so that the history names an operation that exists.
    ///
    /// The new ID derives from the old one alone. All requests until the first one is recorded
    /// therefore make one operation, and the scheduler treats the later ones as repeats. Later
    /// requests are refused, except repeats of the recorded one.
    async fn resubmit_as_new(
        &self,
        row: &OperationRow,
        requester: Requester,
        key: &Key,
        caller: &Caller,
    ) -> Result<Reply, Problem> {
        match (
            refusals::of_resubmission_as_new(row),
            refusals::resubmission(&row.state),
        ) {
            (None, _) => {}
            (Some("resubmitted-before"), Some((entry, new))) => {
                let noted = RecoveryVerb::Resubmitted { as_operation: new };
                let request_id = key.id(row.id, noted.as_str());
                let mut history = row.state.history.iter();
                let repeated = history.find(|it| it.id == request_id);
                return match repeated.and_then(refusals::resubmitted_as) {
                    Some(same) => Ok(resubmitted(row.id, same, request_id)),
                    None => Err(resubmitted_before(row.id, new, entry, caller)),
                };
            }
            (Some(code), _) => return Err(refusals::refused(code)),
        }
        let id = OperationId(row.id.event_id(Verb::ResubmitAsNew.as_str()));
        let again = again(row, id, &self.rules.forms, wall_clock())
            .ok_or_else(|| refusals::refused("input-invalid"))?;
        let new = again.operation;
        let mut value = Vec::with_capacity(again.input.len() + 256);
        let topics = self.intake.topics();
        topics
            .framing()
            .encode_create(&again, &mut value)
            .map_err(|_| unwritable())?;
        self.intake
            .send_verb(
                &requester.tenants,
                topics.of_priority(row.created.request.priority),
                new,
                &value,
                &key.0,
            )
            .await?;
        let noted = RecoveryVerb::Resubmitted { as_operation: new };
        let request_id = self.recover(row.id, noted, requester, key).await?;
        Ok(resubmitted(row.id, new, request_id))
    }

    /// Sends a recovery to the scheduler; returns its id.
    async fn recover(
        &self,
        operation: OperationId,
        verb: RecoveryVerb,
        requester: Requester,
        key: &Key,
    ) -> Result<Uuid, Problem> {
        let about = match &verb {
            RecoveryVerb::Undone { step } => format!("undone {step}"),
            other => other.as_str().to_owned(),
        };
        let recovery = Recovery {
            id: key.id(operation, &about),
            operation,
            asked_by: requester.by,
            reason: requester.reason,
            asked_at: wall_clock(),
            due: None,
            verb,
        };
        let mut value = Vec::with_capacity(256);
        let topics = self.intake.topics();
        topics
            .framing()
            .encode(&recovery, &mut value)
            .map_err(|_| unwritable())?;
        self.intake
            .send_verb(
                &requester.tenants,
                topics.recovery(),
                operation,
                &value,
                &key.0,
            )
            .await?;
        Ok(recovery.id)
    }
}

/// The answer that an operation was resubmitted as a new one.
fn resubmitted(id: OperationId, new: OperationId, request_id: Uuid) -> Reply {
    let view = VerbAcceptedView {
        id: id.0,
        verb: Verb::Resubmit.in_path().into(),
        request_id,
        resubmitted_as: Some(new.0),
    };
    accepted(&view, &location(OPERATIONS, new, None))
}

/// The refusal of a second resubmission. Says who resubmitted and when only to a caller with scope
/// `read`.
fn resubmitted_before(
    id: OperationId,
    new: OperationId,
    entry: &HistoryEntry,
    caller: &Caller,
) -> Problem {
    const CODE: &str = "resubmitted-before";
    let problem = match caller.may(Scope::Read) {
        false => refusals::refused(CODE),
        true => {
            let (by, at) = (&entry.by, time_text(entry.at));
            let detail = format!(
                "Cannot resubmit {id}: {by} already resubmitted it as {new} at {at}. To run it \
                 once more, resubmit {new}."
            );
            Problem::new(Kind::VerbRefused, detail).with_code(CODE)
        }
    };
    problem.with_id(new.to_string())
}

/// The request that runs an operation again, with its current input. `None` if a scheduler would
/// refuse it, as crossing reschedules may have left it. A deadline that has passed is left out: the
/// person who resubmits has decided to run it anyway.
fn again(
    row: &OperationRow,
    operation: OperationId,
    forms: &Forms,
    now: Timestamp,
) -> Option<CreateRequest> {
    let created = &row.created;
    let again = CreateRequest {
        operation,
        id_origin: IdOrigin::Caller,
        workflow: created.workflow.to_string(),
        tenant: created.tenant.to_string(),
        caller_id: None,
        input: row.input().to_vec(),
        deadline: row.deadline().filter(|deadline| *deadline > now),
        reply_to: created.reply_to.clone(),
        request_hash: RequestHash::default(),
        verify_hash: false,
        requested_at: now,
        traceparent: None,
        resubmission_of: Some(row.id),
        notify: created.notify.clone(),
    };
    resubmission(again, forms)
}

fn unknown_verb() -> Problem {
    let known: Vec<&str> = Verb::with_path().map(Verb::in_path).collect();
    let detail = format!("The verbs are {}.", known.join(", "));
    Problem::new(Kind::NotFound, detail)
}
