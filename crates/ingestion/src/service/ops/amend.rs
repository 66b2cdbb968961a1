//! The verbs of callers: cancel and reschedule.

use hyper::{HeaderMap, StatusCode};
use serde_json::Value;
use waybill_api::form::{Form, FormChange};
use waybill_api::id::CallerId;
use waybill_api::request::date_and_time;
use waybill_api::verb::Verb;
use waybill_api::view::{OperationIdsView, VerbAcceptedView};
use waybill_clock::wall_clock;
use waybill_engine::{
    AmendRequest, Amendment, OperationId, OperationRequest, OperationRow, Position, Priority,
    Timestamp, Workflows,
};
use waybill_http::auth::{Caller, Scope};
use waybill_http::json;
use waybill_http::media_type::{JSON, check_media_type};
use waybill_http::problem::{FieldProblem, Kind, Problem};

use super::body::{self, Requester, VerbBody};
use super::{Key, accepted};
use crate::refusals::{self, CancelWouldBe};
use crate::route::{base, location};
use crate::service::{
    Api, Call, OF_CANCEL, OF_ONE, Parameters, Reply, decoded, json, not_found, set,
};
use crate::status::{Pending, Status, request_of};
use crate::token::StatusToken;
use crate::view::{self, RequestView, of_row};
use crate::what_next;

/// What is known of the operation to amend.
struct Amended {
    id: OperationId,
    tenant: String,
    caller_id: Option<String>,
    /// The priority of its request, if known: a verb takes the same topic, and does not overtake
    /// it.
    priority: Priority,
    /// The token for its `Location`.
    token: Option<StatusToken>,
    /// The operation does not exist yet.
    is_absent: bool,
}

impl Api {
    /// `DELETE` of a request in a form of its own.
    pub async fn cancel_in_form(
        &self,
        form: Form,
        id: &str,
        call: Call<'_>,
    ) -> Result<Reply, Problem> {
        let Call {
            query,
            headers,
            caller,
            ..
        } = call;
        let parameters = Parameters::read(query, caller, &OF_CANCEL)?;
        let verb_body = VerbBody {
            reason: body::reason(&parameters.reason)?,
            workflow: form.names.workflow.to_owned(),
            ..VerbBody::default()
        };
        self.cancel(id, &parameters, headers, verb_body, Some(form), caller)
            .await
    }

    /// Cancels an operation with a request in `form`; `None` is the general form. With an id of the
    /// caller's own it need not exist yet.
    pub(super) async fn cancel(
        &self,
        id: &str,
        parameters: &Parameters,
        headers: &HeaderMap,
        verb_body: VerbBody,
        form: Option<Form>,
        caller: &Caller,
    ) -> Result<Reply, Problem> {
        let id = decoded(id).ok_or_else(not_found)?;
        let key = Key::of(headers)?;
        let workflow = verb_body.workflow.clone();
        let requester = verb_body.requester(caller)?;
        let amended = match self.asked_about(&id, parameters, false).await {
            Ok(found) => {
                if let Some(form) = form {
                    found.in_form(form, &self.rules.workflows, false)?;
                }
                match found {
                    Status::Row(row) => {
                        match refusals::of_cancel(&row, &self.rules.workflows, wall_clock()) {
                            CancelWouldBe::Asked => Amended::of_row(&row),
                            CancelWouldBe::Done => return Ok(self.as_it_is(&row, form, caller)),
                            CancelWouldBe::Late => return Err(late(&row, caller)),
                            CancelWouldBe::Parked => {
                                return Err(parked(&row, &self.rules.workflows, caller));
                            }
                            CancelWouldBe::PastPivot => return Err(past_pivot(&row, caller)),
                        }
                    }
                    Status::Pending(pending) => Amended::of_pending(&pending, &id, parameters),
                    Status::Rejected(_) => return Err(not_found()),
                }
            }
            Err(problem) if problem.kind == Kind::UnknownOrExpired => {
                Amended::absent(&id, &parameters.tenant).ok_or(problem)?
            }
            Err(problem) => return Err(problem),
        };
        let amendment = Amendment::Cancel { workflow };
        self.amend(
            amended,
            amendment,
            Verb::Cancel.as_str(),
            requester,
            &key,
            form,
        )
        .await
    }

    /// `PATCH` of a request in a form of its own.
    pub async fn reschedule(&self, form: Form, id: &str, call: Call<'_>) -> Result<Reply, Problem> {
        const VERB: &str = "reschedule";
        let Call {
            query,
            headers,
            body,
            caller,
        } = call;
        let id = decoded(id).ok_or_else(not_found)?;
        let parameters = Parameters::read(query, caller, &OF_ONE)?;
        let key = Key::of(headers)?;
        check_media_type(headers, JSON)?;
        let (held, change) = self
            .receive(body, super::ASK_BYTES_MAX, caller, super::ASK_BYTES_MAX)
            .await?;
        drop(held);
        let change = read_change(form, &change, self.rules.json_depth_max, wall_clock())?;
        let amendment = Amendment::Reschedule {
            fields: serde_json::to_vec(&change.fields).map_err(|_| unwritable())?,
            deadline: change.deadline,
        };

        let found = self.asked_about(&id, &parameters, true).await?;
        found.in_form(form, &self.rules.workflows, false)?;
        let amended = match found {
            Status::Row(row) => {
                let workflows = &self.rules.workflows;
                refusals::of_reschedule(&row, workflows, &amendment, wall_clock()).map_err(
                    |refused| match row.state.state.is_parked() && caller.may(Scope::Read) {
                        true => refused.with_more(&allowed(&row, workflows)),
                        false => refused,
                    },
                )?;
                check_against(form, &change, request_of(&row).as_deref().map(|r| r.get()))?;
                Amended::of_row(&row)
            }
            Status::Pending(pending) => {
                let request = pending.request().map(|request| &*request.input);
                let text = request.and_then(|input| std::str::from_utf8(input).ok());
                check_against(form, &change, text)?;
                Amended::of_pending(&pending, &id, &parameters)
            }
            Status::Rejected(_) => return Err(not_found()),
        };
        self.amend(
            amended,
            amendment,
            VERB,
            VerbBody::default().requester(caller)?,
            &key,
            Some(form),
        )
        .await
    }

    async fn amend(
        &self,
        amended: Amended,
        amendment: Amendment,
        verb: &'static str,
        requester: Requester,
        key: &Key,
        form: Option<Form>,
    ) -> Result<Reply, Problem> {
        self.rules.tenant_limits.take(&amended.tenant)?;
        let id = amended.id;
        let request = AmendRequest {
            id: key.id(id, verb),
            operation: id,
            tenant: amended.tenant,
            caller_id: amended.caller_id,
            amendment,
            reason: requester.reason,
            asked_by: requester.by,
            requested_at: wall_clock(),
        };
        let request_id = request.id;
        let mut value = Vec::with_capacity(256);
        let topics = self.intake.topics();
        topics
            .framing()
            .encode(&OperationRequest::Amend(request), &mut value)
            .map_err(|_| unwritable())?;
        let priority = amended.priority;
        let topic = topics.of_priority(priority);
        let (partition, offset) = self
            .intake
            .send_verb(&requester.tenants, topic, id, &value, &key.0)
            .await?;
        let token = match (amended.is_absent, offset) {
            (true, Some(offset)) => Some(StatusToken::of_any(Position {
                priority,
                partition,
                offset,
            })),
            (true, None) | (false, _) => amended.token,
        };
        let view = VerbAcceptedView {
            id: id.0,
            verb: verb.into(),
            request_id,
            resubmitted_as: None,
        };
        Ok(accepted(&view, &location(base(form), id, token)))
    }

    /// The operation as GET shows it, or only its IDs if the caller has no scope `read`.
    pub(crate) fn as_it_is(
        &self,
        row: &OperationRow,
        form: Option<Form>,
        caller: &Caller,
    ) -> Reply {
        let mut reply = if caller.may(Scope::Read) {
            let (workflows, has_payload) = (&self.rules.workflows, caller.may(Scope::Payload));
            let mut operation = of_row(row, workflows, has_payload);
            match form {
                None => json(StatusCode::OK, &operation),
                Some(_) => {
                    operation.input = None;
                    let request = view::request_of(row, workflows, has_payload);
                    json(StatusCode::OK, &RequestView { operation, request })
                }
            }
        } else {
            json(StatusCode::OK, &OperationIdsView::of_row(row))
        };
        set(
            &mut reply,
            hyper::header::LOCATION,
            location(base(form), row.id, None),
        );
        reply
    }
}

impl Amended {
    fn of_row(row: &OperationRow) -> Self {
        Self {
            id: row.id,
            tenant: row.created.tenant.to_string(),
            caller_id: row.created.caller_id.clone(),
            priority: row.created.request.priority,
            token: None,
            is_absent: false,
        }
    }

    /// The verb acts for the request's own tenant, even if the caller did not name it. The
    /// scheduler refuses another tenant.
    fn of_pending(pending: &Pending, text: &str, parameters: &Parameters) -> Self {
        let tenant = pending.tenant().unwrap_or(&parameters.tenant);
        Self {
            id: pending.id(),
            tenant: tenant.to_owned(),
            caller_id: callers_own(text, tenant)
                .filter(|own| OperationId::of_caller(tenant, own) == pending.id()),
            priority: parameters
                .token
                .map(|token| token.position.priority)
                .or(pending.priority())
                .unwrap_or_default(),
            token: parameters.token.or(pending.token()),
            is_absent: false,
        }
    }

    /// An operation that was not requested yet, whose place the cancel reserves. Only an id of the
    /// caller's own can arrive later: an id in the form of an operation's cannot.
    fn absent(text: &str, tenant: &str) -> Option<Self> {
        let caller_id = callers_own(text, tenant)?;
        let is_operations = text
            .parse::<OperationId>()
            .is_ok_and(|id| matches!(id.0.get_version_num(), 5 | 7));
        (!is_operations).then(|| Self {
            id: OperationId::of_caller(tenant, &caller_id),
            tenant: tenant.to_owned(),
            caller_id: Some(caller_id),
            priority: Priority::default(),
            token: None,
            is_absent: true,
        })
    }
}

/// The text as an id of the caller's own, if it has that form.
fn callers_own(text: &str, tenant: &str) -> Option<String> {
    let id = CallerId::new(text).ok()?;
    id.as_ours(tenant).is_none().then(|| id.into_string())
}

fn read_change(
    form: Form,
    body: &[u8],
    depth_max: usize,
    now: Timestamp,
) -> Result<FormChange, Problem> {
    let value = json::parse(body, depth_max)?;
    let (change, mut errors) = match form.rules.read_change(&value) {
        Ok(change) => (Some(change), Vec::new()),
        Err(errors) => (None, errors),
    };
    let field = form.names.deadline_field;
    let is_named_wrong = errors
        .iter()
        .any(|error| error.place().strip_prefix('/') == Some(field));
    let named = value.get(field).and_then(Value::as_str);
    let deadline = named.filter(|_| !is_named_wrong).and_then(date_and_time);
    if deadline.is_some_and(|deadline| deadline <= now) {
        let detail = "must be in the future";
        errors.push(FieldProblem::new(format!("/{field}"), detail));
    }
    match change.filter(|_| errors.is_empty()) {
        Some(change) => Ok(change),
        None => Err(Problem::invalid(errors)),
    }
}

/// Checks the changed fields against the unchanged ones.
fn check_against(form: Form, change: &FormChange, request: Option<&str>) -> Result<(), Problem> {
    let checked = request.map_or(Ok(()), |request| form.rules.check_change(change, request));
    checked.map_err(|wrong| Problem::invalid(vec![wrong]))
}

/// The refusal of a cancel that arrives too late: the operation has ended, or was abandoned. Names
/// the state only to a caller with scope `read`.
fn late(row: &OperationRow, caller: &Caller) -> Problem {
    let (id, state) = (row.id, row.state.state.as_str());
    let detail = match (caller.may(Scope::Read), row.state.state.is_parked()) {
        (false, _) => format!("Cannot cancel {id}: it is already final."),
        (true, false) => format!("Cannot cancel {id}: it is already {state}."),
        (true, true) => format!("Cannot cancel {id}: it was abandoned in {state}."),
    };
    Problem::new(Kind::OperationFinal, detail)
        .with_id(id.to_string())
        .with_code("final")
}

/// The refusal of a cancel of an operation that could not be undone. Names the state only to a
/// caller with scope `read`.
fn parked(row: &OperationRow, workflows: &Workflows, caller: &Caller) -> Problem {
    let (id, state) = (row.id, row.state.state.as_str());
    let detail = match caller.may(Scope::Read) {
        false => format!("Cannot cancel {id} in its current state."),
        true => {
            let allowed = allowed(row, workflows);
            format!("Cannot cancel {id}: it is parked in {state}.{allowed}")
        }
    };
    Problem::new(Kind::VerbRefused, detail)
        .with_id(id.to_string())
        .with_code("compensation-failed")
}

/// The refusal of a cancel after the pivot. Says so only to a caller with scope `read`.
fn past_pivot(row: &OperationRow, caller: &Caller) -> Problem {
    let id = row.id;
    let detail = match caller.may(Scope::Read) {
        false => format!("Cannot cancel {id} in its current state."),
        true => format!("Cannot cancel {id}: a completed step cannot be undone."),
    };
    Problem::new(Kind::VerbRefused, detail)
        .with_id(id.to_string())
        .with_code(refusals::PAST_PIVOT)
}

/// The sentence about the verbs that an operation accepts, with a leading space; empty if there are
/// none.
fn allowed(row: &OperationRow, workflows: &Workflows) -> String {
    let verbs = what_next::of(row, workflows).verbs;
    let verbs: Vec<&str> = verbs.into_iter().map(Verb::as_str).collect();
    match &verbs[..] {
        [] => String::new(),
        verbs => format!(" Allowed: {}.", verbs.join(", ")),
    }
}

pub(super) fn unwritable() -> Problem {
    Problem::new(Kind::Internal, "The request could not be encoded.")
}

#[cfg(test)]
mod tests {
    use waybill_api::form::Forms;
    use waybill_drone_delivery::DroneDelivery;

    use super::*;

    fn form() -> Form {
        let forms = Forms::new([&DroneDelivery as _]);
        forms.of(DroneDelivery::WORKFLOW).unwrap()
    }

    #[test]
    fn only_a_callers_own_id_can_be_cancelled_before_its_create() {
        let place = Amended::absent("order-17", "acme").unwrap();
        assert_eq!(place.id, OperationId::of_caller("acme", "order-17"));
        assert_eq!(place.caller_id.as_deref(), Some("order-17"));
        let v4 = uuid::Uuid::new_v4().to_string();
        assert!(Amended::absent(&v4, "").is_some(), "a UUID of the caller's");
        let ours = waybill_api::id::fresh("").to_string();
        let of_caller = OperationId::of_caller("", "order-17").to_string();
        for none in [ours.as_str(), &of_caller, "a b", ""] {
            assert!(Amended::absent(none, "").is_none(), "{none}");
        }
    }

    #[test]
    fn a_changed_time_must_be_consistent_with_the_other() {
        let request = r#"{"ownerId": "o", "pickupLocation": "a", "dropOffLocation": "b",
            "pickupTime": "2030-05-08T20:00:00Z", "deadline": "2030-05-08T22:00:00Z",
            "packageInfo": {"packageId": "p", "size": "Small"}}"#;
        let check = |change: &str| {
            let change = read_change(form(), change.as_bytes(), 4, Timestamp(0)).unwrap();
            check_against(form(), &change, Some(request))
                .map_err(|problem| problem.errors[0].pointer.clone())
        };
        assert_eq!(check(r#"{"pickupTime": "2030-05-08T22:00:00Z"}"#), Ok(()));
        assert_eq!(
            check(r#"{"pickupTime": "2030-05-08T22:00:01Z"}"#),
            Err(Some("/pickupTime".to_owned()))
        );
        assert_eq!(
            check(r#"{"deadline": "2030-05-08T19:59:59Z"}"#),
            Err(Some("/deadline".to_owned()))
        );
        let both = r#"{"pickupTime": "2031-05-08T20:00:00Z", "deadline": "2031-05-08T21:00:00Z"}"#;
        assert_eq!(check(both), Ok(()));
    }

    #[test]
    fn a_deadline_that_has_passed_is_refused() {
        let change = br#"{"deadline": "2030-05-08T20:00:00Z"}"#;
        let at = |micros| read_change(form(), change, 4, Timestamp(micros)).is_ok();
        let deadline: jiff::Timestamp = "2030-05-08T20:00:00Z".parse().unwrap();
        let both = br#"{"deadline": "2030-05-08T20:00:00Z", "ownerId": "o"}"#;
        let refused = read_change(form(), both, 4, Timestamp(i64::MAX)).unwrap_err();
        let named = refused.errors.into_iter();
        let named: Vec<_> = named.filter_map(|error| error.pointer).collect();
        assert_eq!(named, ["/ownerId", "/deadline"]);
        assert!(at(deadline.as_microsecond() - 1));
        assert!(!at(deadline.as_microsecond()));
    }
}
