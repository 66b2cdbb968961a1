//! Checks requests again with the rules of ingestion.
//!
//! Any Kafka client may write a request straight to its topic, bypassing ingestion. Such a request
//! is equally valid: the same code checks it against the same rules and completes it in the same
//! way.
//!
//! What must hold: every request that ingestion accepted passes here, even after a change of the
//! configuration or long after it was accepted. So these checks depend on the record alone, and
//! know every form of requests that the program has, also those of workflows that are not
//! configured.
//!
//! Deliberately absent are the checks that depend on settings or on the time, which other parts
//! make: whether the workflow is known and the deadline still ahead (the engine), where copies may
//! go (`dispatcher`), and whom a contact reaches (the alerts' role).

use serde_json::Value;
use waybill_api::form::{Form, Forms};
use waybill_api::id::{CallerId, is_ours};
use waybill_api::request::{check_asked_by, named, record_hash};
use waybill_engine::{
    AmendRequest, Amendment, CreateRequest, INPUT_BYTES_MAX, IdOrigin, NAME_LENGTH_MAX,
    OperationId, OperationRequest, RequestHash,
};
use waybill_http::auth::check_tenant;
use waybill_http::json;
use waybill_messages::is_topic_name;

/// The hash in a request whose writer leaves hashing to the scheduler.
const NO_HASH: RequestHash = RequestHash([0; 16]);

/// Maximum number of faults that are listed for one request.
const FAULTS_MAX: usize = 8;
/// Maximum length of the description of one fault, in bytes.
const FAULT_BYTES_MAX: usize = 512;

/// Why a request is refused: each invalid field, with the expected value. It never contains a
/// contact.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the request is refused: {}", .0.join("; "))]
pub(super) struct Refused(Vec<String>);

/// Checks a decoded request. Fields that its writer may leave out, such as the hash, are filled in.
///
/// # Errors
///
/// If ingestion would have refused it, at any time and with any settings.
pub(super) fn admit(request: OperationRequest, forms: &Forms) -> Result<OperationRequest, Refused> {
    let mut faults = Faults(Vec::new());
    let admitted = match request {
        OperationRequest::Create(create) => OperationRequest::Create(faults.create(create, forms)),
        OperationRequest::Amend(amend) => {
            faults.amend(&amend);
            OperationRequest::Amend(amend)
        }
    };
    match faults.0.as_slice() {
        [] => Ok(admitted),
        _ => Err(Refused(faults.0)),
    }
}

/// The faults of a request.
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, field: &str, detail: impl std::fmt::Display) {
        if self.0.len() < FAULTS_MAX {
            let mut fault = format!("{field}: {detail}");
            fault.truncate(fault.floor_char_boundary(FAULT_BYTES_MAX));
            self.0.push(fault);
        }
    }

    fn create(&mut self, mut create: CreateRequest, forms: &Forms) -> CreateRequest {
        self.check_id(
            create.operation,
            &create.tenant,
            create.caller_id.as_deref(),
        );
        self.workflow(&create.workflow);
        if let Some(topic) = &create.reply_to
            && !is_topic_name(topic)
        {
            self.add("reply_to", "must be the name of a topic");
        }
        // An id that ingestion generated counts as new without a look-up in the store. No other
        // writer can guarantee that: a relay that restarts sends its record again.
        if !is_ours(create.operation, &create.tenant) {
            if create.verify_hash && create.id_origin == IdOrigin::Server {
                self.add(
                    "operation",
                    "is not an ID that ingestion made for this tenant",
                );
            }
            create.id_origin = IdOrigin::Caller;
        }
        if create.input.len() > INPUT_BYTES_MAX {
            let detail = format!("must be at most {INPUT_BYTES_MAX} bytes long");
            self.add("input", detail);
            return create;
        }
        let form = forms.of(&create.workflow);
        match (json::parse(&create.input, json::DEPTH_LIMIT_MAX), form) {
            (Ok(input), Some(form)) => self.formed(&mut create, form, &input),
            (Ok(input @ Value::Object(_)), None) => {
                if create.verify_hash {
                    self.hashed(create.request_hash, record_hash(&create, &create.input));
                } else if create.request_hash == NO_HASH {
                    create.request_hash = record_hash(&create, input.to_string().as_bytes());
                }
            }
            (Ok(_), None) => self.add("input", "must be a JSON object"),
            (Err(error), _) => self.add("input", error),
        }
        if create
            .deadline
            .is_some_and(|deadline| deadline <= create.requested_at)
        {
            self.add("deadline", "must be later than requested_at");
        }
        create
    }

    /// Replaces an input in a form of its own by its canonical JSON, with its id, as ingestion
    /// writes it.
    fn formed(&mut self, create: &mut CreateRequest, form: Form, input: &Value) {
        let input = match form.rules.read(input) {
            Ok(input) => input,
            Err(errors) => {
                for error in errors {
                    self.add(&format!("input{}", error.place()), error.detail);
                }
                return;
            }
        };
        if let Some(id) = &input.id
            && !is_id_of(create, id)
        {
            let field = format!("input/{}", form.names.id_field);
            self.add(&field, "differs from the id of the request");
        }
        // A person who resubmits an operation has accepted that its deadline has passed.
        if create.deadline.is_none() && create.resubmission_of.is_none() {
            create.deadline = input.deadline;
        }
        let given = create.request_hash;
        let hash = |input: &[u8]| match create.verify_hash || given == NO_HASH {
            true => record_hash(create, input),
            false => given,
        };
        let caller_id = create.caller_id.as_deref();
        let (request_hash, input) = named(&input.json, create.operation, caller_id, hash);
        if create.verify_hash {
            self.hashed(given, request_hash);
        }
        create.request_hash = request_hash;
        create.input = input;
    }

    /// Compares the hash that ingestion computed, and marked as such, with that of the record. A
    /// different one means that a byte has changed since.
    fn hashed(&mut self, given: RequestHash, found: RequestHash) {
        if given != found {
            let detail = format!(
                "is {given}, but the hash of the request is {found}: the request was changed after \
                 it was accepted"
            );
            self.add("request_hash", detail);
        }
    }

    fn amend(&mut self, amend: &AmendRequest) {
        self.check_id(amend.operation, &amend.tenant, amend.caller_id.as_deref());
        if let Err(detail) = check_asked_by(&amend.asked_by) {
            self.add("amendment/asked_by", detail);
        }
        match &amend.amendment {
            Amendment::Cancel { workflow } => self.workflow(workflow),
            Amendment::Reschedule { fields, .. } => {
                match json::parse(fields, json::DEPTH_LIMIT_MAX) {
                    Ok(Value::Object(_)) => {}
                    Ok(_) => self.add("amendment/fields", "must be a JSON object"),
                    Err(error) => self.add("amendment/fields", error),
                }
            }
        }
    }

    /// Checks that the id belongs to the tenant: two tenants that choose the same id must not
    /// collide.
    fn check_id(&mut self, operation: OperationId, tenant: &str, caller_id: Option<&str>) {
        if let Err(detail) = check_tenant(tenant) {
            self.add("tenant", detail);
        }
        match caller_id.map(CallerId::new) {
            None => {}
            Some(Err(error)) => self.add("caller_id", error),
            Some(Ok(caller_id)) => {
                let expected = caller_id.operation(tenant);
                if operation != expected {
                    let detail =
                        format!("must be {expected}, which is derived from tenant and caller_id");
                    self.add("operation", detail);
                }
            }
        }
    }

    fn workflow(&mut self, name: &str) {
        if name.chars().count() > NAME_LENGTH_MAX {
            let detail = format!("must be at most {NAME_LENGTH_MAX} characters");
            self.add("workflow", detail);
        }
    }
}

/// Whether a text is the caller's own id of the operation.
fn is_id_of(create: &CreateRequest, text: &str) -> bool {
    match &create.caller_id {
        Some(caller_id) => caller_id == text,
        None => create.operation.key() == text.as_bytes(),
    }
}

#[cfg(test)]
mod tests;
