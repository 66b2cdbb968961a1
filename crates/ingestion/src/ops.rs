//! What can be asked of an operation: by its caller to cancel or to reschedule it, by an operator to
//! repair it; and the list of those that need one.
//!
//! What must hold: nothing is answered 202 before the broker has acknowledged the record that asks,
//! and nothing is decided here. The scheduler judges what is asked against the operation as it is by
//! then; here it is refused only where the row says so when it is read, by the engine's own
//! judgement. Whatever is kept of what is asked is bounded.
//!
//! Every asking may be repeated: the record's id comes from the operation, the verb and the
//! `Idempotency-Key`, or from a fresh key, which the answer names where the outcome is unknown.
//!
//! Whoever may ask for one tenant only finds only its operations to ask about. In the history stands by which token
//! something was asked, beside the name that was given.

mod amend;
mod body;
pub mod judge;
pub mod list;
pub mod next;
mod recover;
pub mod verb;

use hyper::body::Body as _;
use hyper::{HeaderMap, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_api::request::Envelope;
use waybill_engine::{OperationId, OperationRow};
use waybill_http::RequestBody;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::payload::read_whole;
use waybill_http::problem::{Kind, Problem};

use super::service::{Api, Parameters, Reply, check_media_type_of_optional_json, json, set};
use super::status::{self, Query, Status, Whose};

/// The largest body of an asking, in bytes: a reason, a name and a few words.
const ASK_BYTES_MAX: usize = 4 * 1024;

/// What was asked, and is on its way to the operation's scheduler.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Asked)]
pub struct AskedView {
    /// The operation.
    #[schema(value_type = String, format = "uuid", example = "0192f0c1-2345-7abc-8def-0123456789ab")]
    pub id: OperationId,
    /// What was asked.
    #[schema(example = "cancel")]
    pub verb: &'static str,
    /// The asking's own id: the same for repeats with the same `Idempotency-Key`.
    #[schema(format = "uuid", example = "5f0e9c1a-7d4e-5b52-9a3c-2f1f6f2d9b10")]
    pub request_id: Uuid,
    /// The new operation that runs this one again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub resubmitted_as: Option<OperationId>,
}

impl AskedView {
    /// The answer to an asking whose status is asked for at `location`.
    fn accepted(&self, location: &str) -> Reply {
        let mut reply = json(StatusCode::ACCEPTED, self);
        set(&mut reply, header::LOCATION, location);
        reply
    }
}

/// What makes repeats of one asking the same.
#[derive(Debug)]
struct Key(String);

impl Key {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let given = Envelope::of(headers).checked()?.into_key();
        Ok(Self(given.map_or_else(
            || Uuid::new_v4().to_string(),
            waybill_api::id::CallerId::into_string,
        )))
    }

    /// The id of what is asked of an operation: the same for the same key.
    fn id(&self, operation: OperationId, verb: &str) -> Uuid {
        operation.event_id(&format!("{verb}/{}", self.0))
    }
}

impl Api {
    /// Reads the body of an asking; one that is absent is empty, and its media type is wanted all the same: a web page
    /// cannot send it to another origin without asking that first.
    async fn ask_body(
        &self,
        headers: &HeaderMap,
        body: RequestBody,
        caller: &Caller,
    ) -> Result<Option<bytes::Bytes>, Problem> {
        check_media_type_of_optional_json(headers)?;
        if body.is_end_stream() {
            return Ok(None);
        }
        let bytes_max = ASK_BYTES_MAX.min(self.request_bytes_max);
        let _held = self.hold(caller, bytes_max)?;
        Ok(Some(read_whole(body, bytes_max, self.patience).await?))
    }

    /// Looks up what is asked about, as GET does.
    async fn asked_about(
        &self,
        id: &str,
        parameters: &Parameters,
        wants_request: bool,
    ) -> Result<Status, Problem> {
        let query = Query {
            id,
            tenant: &parameters.tenant,
            tenants: &parameters.tenants,
            token: parameters.token,
            wants_request,
        };
        let found = status::find(&self.intake, query).await?;
        match &found {
            Status::Rejected(id) => {
                let detail = "Another request with this id came first, and is not this one.";
                Err(Problem::new(Kind::IdConflict, detail).with_id(id.to_string()))
            }
            Status::Row(row) => is_theirs(row, &parameters.tenant).map(|()| found),
            Status::Pending(pending) => match pending.is_of(&parameters.tenant, id) {
                Whose::Theirs => Ok(found),
                Whose::LooksTheirs if parameters.tenants == Tenants::All => Ok(found),
                Whose::LooksTheirs => {
                    let detail =
                        "The request could not be read from its topic now, to see whose it is.";
                    Err(Problem::new(Kind::Overloaded, detail))
                }
                Whose::Anothers => Err(of_another_tenant()),
            },
        }
    }
}

/// Whoever names a tenant gets that tenant's operations only.
fn is_theirs(row: &OperationRow, tenant: &str) -> Result<(), Problem> {
    if tenant.is_empty() || *row.created.tenant == *tenant {
        return Ok(());
    }
    Err(of_another_tenant())
}

fn of_another_tenant() -> Problem {
    let detail = "The operation is another tenant's, or its tenant has to be said: ?tenant=.";
    Problem::new(Kind::UnknownOrExpired, detail)
}
