//! Verbs on operations: a caller can cancel or reschedule one, and an operator can repair it. Also
//! the list of operations that need attention.
//!
//! What must hold: no 202 before the broker has acknowledged the record of the verb, and no
//! decision here. The scheduler judges the verb against the state of the operation when it reads
//! the record. Ingestion refuses a verb only if the row forbids it now, by the engine's own rules.
//! Everything that is kept of a verb is bounded.
//!
//! Every verb can be repeated: the id of its record derives from the operation, the verb and the
//! `Idempotency-Key`. Without one a fresh key is made, and the answer names it if the outcome is
//! unknown.
//!
//! A caller restricted to one tenant finds only that tenant's operations. The history records the
//! name of the token next to the name that the caller gave.

mod amend;
mod body;
mod list;
mod recover;

use hyper::body::Body as _;
use hyper::{HeaderMap, StatusCode, header};
use uuid::Uuid;
use waybill_api::request::Envelope;
use waybill_api::view::VerbAcceptedView;
use waybill_engine::{OperationId, OperationRow};
use waybill_http::RequestBody;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::media_type::check_media_type_of_optional_json;
use waybill_http::problem::{Kind, Problem};

use super::{Api, Parameters, Reply, json, set};
use crate::status::{self, Query, Status, TenantMatch};

pub use self::body::OPERATOR;
pub use self::list::ListAdmission;

/// The largest body of a verb, in bytes: a reason, a name and a few words.
const ASK_BYTES_MAX: usize = 4 * 1024;

/// The answer to an accepted verb, with the status at `location`.
fn accepted(view: &VerbAcceptedView, location: &str) -> Reply {
    let mut reply = json(StatusCode::ACCEPTED, view);
    set(&mut reply, header::LOCATION, location);
    reply
}

/// The idempotency key: repeats of a verb with the same key are the same.
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

    /// The id of a verb on an operation: the same for the same key.
    fn id(&self, operation: OperationId, verb: &str) -> Uuid {
        operation.event_id(&format!("{verb}/{}", self.0))
    }
}

impl Api {
    /// Reads the body of a verb. An absent body is empty, but its media type is still required: a
    /// web page cannot send it to another origin without a preflight request.
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
        let (_, body) = self.receive(body, bytes_max, caller, bytes_max).await?;
        Ok(Some(body))
    }

    /// Looks up the operation of a verb, as GET does.
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
                let detail = "An earlier, different request has this id.";
                Err(Problem::new(Kind::IdConflict, detail).with_id(id.to_string()))
            }
            Status::Row(row) => is_theirs(row, &parameters.tenant).map(|()| found),
            Status::Pending(pending) => match pending.is_of(&parameters.tenant, id) {
                TenantMatch::Same => Ok(found),
                TenantMatch::Probable if parameters.tenants == Tenants::All => Ok(found),
                TenantMatch::Probable => {
                    let detail = "The request could not be read from its topic to determine its \
                                  tenant. Try again.";
                    Err(Problem::new(Kind::Overloaded, detail))
                }
                TenantMatch::Other => Err(of_another_tenant()),
            },
        }
    }
}

/// Refuses an operation of another tenant, if the request names a tenant.
fn is_theirs(row: &OperationRow, tenant: &str) -> Result<(), Problem> {
    if tenant.is_empty() || *row.created.tenant == *tenant {
        return Ok(());
    }
    Err(of_another_tenant())
}

fn of_another_tenant() -> Problem {
    let detail = "The operation belongs to another tenant, or the request must name its tenant: \
                  ?tenant=NAME.";
    Problem::new(Kind::UnknownOrExpired, detail)
}
