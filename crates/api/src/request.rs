//! Turns a request body into the record that requests an operation.
//!
//! What must hold: the same request makes the same record and the same hash, whatever its JSON
//! looks like and in whichever form it arrives. An invalid request makes none, and its wrong fields
//! are reported together.

mod envelope;
mod general;

use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use waybill_contacts::ContactRules;
use waybill_engine::{
    Contact, CreateRequest, INPUT_BYTES_MAX, IdOrigin, OperationId, Priority, RequestHash,
    Timestamp, Workflows,
};
use waybill_http::auth::{AnotherTenant, Tenants, check_tenant};
use waybill_http::json;
use waybill_http::problem::{FieldProblem, Kind, Problem};
use waybill_messages::is_topic_name;
use waybill_telemetry::visible::is_name;

pub use self::envelope::{Envelope, IDEMPOTENCY_KEY, TRACEPARENT};
pub use self::general::{OperationRequest, notify};
use super::form::{CanonicalInput, Form, FormInput, Forms};
use super::id::{self, CallerId};
use super::tenant_limits::TenantLimits;

/// The field with the contacts to notify when an operation ends.
const NOTIFY: &str = "notify";

/// The rules that requests are checked against.
#[derive(Debug)]
pub struct Rules {
    /// The workflows that can be requested.
    pub workflows: Arc<Workflows>,
    /// The forms that requests may have, including those of workflows that cannot be requested.
    pub forms: Forms,
    /// The deepest nesting of a body.
    pub json_depth_max: usize,
    /// The prefixes that the name of a `replyTo` topic may have.
    pub reply_to_prefixes: Vec<String>,
    /// Which contacts a request may name.
    pub contacts: ContactRules,
    /// The rate limits of tenants.
    pub tenant_limits: TenantLimits,
    /// Whether high-priority requests have their own topic.
    pub has_high_priority_topic: bool,
}

/// A checked request.
#[derive(Clone, PartialEq, Debug)]
pub struct Submission {
    /// The record.
    pub record: CreateRequest,
    /// The priority, which determines the topic.
    pub priority: Priority,
    /// Its workflow.
    pub workflow: Arc<str>,
    /// The tenants that the sender may act for.
    pub sender: Tenants,
    /// The deadlines that have already passed.
    overdue: Vec<FieldProblem>,
}

impl Submission {
    /// Refuses a request that arrived after its own deadline. Call it only once the request is
    /// known to be no repeat: a repeat gets its answer even after the deadline.
    pub fn check_deadlines(&self) -> Result<(), Problem> {
        match self.overdue.as_slice() {
            [] => Ok(()),
            overdue => Err(Problem::invalid(overdue.to_vec())),
        }
    }

    /// The id to repeat the request with: it leads to the same operation.
    pub fn repeat_with(&self) -> String {
        match &self.record.caller_id {
            Some(id) => id.clone(),
            None => self.record.operation.to_string(),
        }
    }
}

/// Reads the body of a request in a form of its own.
///
/// # Errors
///
/// If the body is not valid JSON, is invalid, or the workflow of the form is not configured.
pub fn in_form(
    form: Form,
    body: &[u8],
    envelope: &Envelope,
    rules: &Rules,
    now: Timestamp,
) -> Result<Submission, Problem> {
    let mut value = json::parse(body, rules.json_depth_max)?;
    let workflow = form.names.workflow;
    let Some(known) = rules.workflows.newest(workflow) else {
        let detail = format!("The workflow {workflow} is not configured.");
        return Err(Problem::new(Kind::NotFound, detail));
    };
    let mut draft = Draft::new(envelope, rules, now);
    // Contacts are not part of the input, and steps must not see them.
    let notify = value
        .as_object_mut()
        .and_then(|fields| fields.remove(NOTIFY));
    draft.notify(notify.as_ref());
    draft.workflow = Some(Arc::clone(known.name()));
    draft.formed(form, &value, "");
    draft.finish()
}

/// Reads the body of an operation in the general form.
pub fn operation(
    body: &[u8],
    envelope: &Envelope,
    rules: &Rules,
    now: Timestamp,
) -> Result<Submission, Problem> {
    let mut value = json::parse(body, rules.json_depth_max)?;
    let mut draft = Draft::new(envelope, rules, now);
    match &mut value {
        Value::Object(fields) => draft.operation(fields),
        _ => draft.wrong("", "must be an object"),
    }
    draft.finish()
}

/// A request that is being read.
struct Draft<'a> {
    envelope: &'a Envelope,
    rules: &'a Rules,
    now: Timestamp,
    errors: Vec<FieldProblem>,
    overdue: Vec<FieldProblem>,
    workflow: Option<Arc<str>>,
    tenant: Result<String, AnotherTenant>,
    caller_id: Option<CallerId>,
    deadline: Option<Timestamp>,
    reply_to: Option<String>,
    priority: Option<Priority>,
    notify: Vec<Contact>,
    input: Option<Input>,
}

enum Input {
    /// In a form of its own, with the priority that it asks for.
    Formed(CanonicalInput, Priority),
    /// Canonical JSON of any other input.
    Free(Vec<u8>),
}

impl<'a> Draft<'a> {
    fn new(envelope: &'a Envelope, rules: &'a Rules, now: Timestamp) -> Self {
        Self {
            envelope,
            rules,
            now,
            errors: envelope.wrong.clone(),
            overdue: Vec::new(),
            workflow: None,
            tenant: envelope.tenants.meant(String::new()),
            caller_id: envelope.idempotency_key.clone(),
            deadline: None,
            reply_to: None,
            priority: None,
            notify: Vec::new(),
            input: None,
        }
    }

    fn wrong(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.errors.push(FieldProblem::new(pointer, detail));
    }

    fn formed(&mut self, form: Form, value: &Value, at: &str) {
        match form.rules.read(value) {
            Ok(input) => {
                let FormInput {
                    id,
                    deadline,
                    priority,
                    json,
                } = input;
                if let Some(id) = id {
                    self.caller_id(&id, &format!("{at}/{}", form.names.id_field));
                }
                // The deadline of the input is also the deadline of the operation, unless the
                // general form has another.
                if let Some(deadline) = deadline {
                    self.check_deadline(deadline, format!("{at}/{}", form.names.deadline_field));
                    self.deadline = self.deadline.or(Some(deadline));
                }
                self.input = Some(Input::Formed(json, priority));
            }
            Err(errors) => {
                self.beside_wrong_fields(form, value, at, &errors);
                self.errors.extend(errors.into_iter().map(|error| {
                    FieldProblem::new(format!("{at}{}", error.place()), error.detail)
                }));
            }
        }
    }

    /// Checks the fields that the form's own check did not reach because others were wrong.
    fn beside_wrong_fields(
        &mut self,
        form: Form,
        value: &Value,
        at: &str,
        errors: &[FieldProblem],
    ) {
        let right = |name: &str| {
            let is_named = errors
                .iter()
                .any(|error| error.place().strip_prefix('/') == Some(name));
            value.get(name)?.as_str().filter(|_| !is_named)
        };
        let (id_field, deadline_field) = (form.names.id_field, form.names.deadline_field);
        if let Some(id) = right(id_field) {
            self.caller_id(id, &format!("{at}/{id_field}"));
        }
        if let Some(deadline) = right(deadline_field).and_then(date_and_time) {
            self.check_deadline(deadline, format!("{at}/{deadline_field}"));
        }
    }

    fn operation(&mut self, fields: &mut Map<String, Value>) {
        const KNOWN: [&str; 8] = [
            "workflow", "id", "input", "deadline", "priority", "tenant", "replyTo", NOTIFY,
        ];
        match self.text(fields, "workflow") {
            Some(name) => {
                self.workflow = self
                    .rules
                    .workflows
                    .newest(&name)
                    .map(|known| Arc::clone(known.name()));
                if self.workflow.is_none() {
                    let known = self.known_workflows();
                    self.wrong("/workflow", format!("must be one of {known}, not {name:?}"));
                }
            }
            None if is_absent(fields, "workflow") => {
                let known = self.known_workflows();
                self.wrong(
                    "/workflow",
                    format!("is required, and must be one of {known}"),
                );
            }
            None => {}
        }
        if let Some(tenant) = self.text(fields, "tenant") {
            self.tenant(tenant);
        }
        if let Some(id) = self.text(fields, "id") {
            self.caller_id(&id, "/id");
        }
        if let Some(text) = self.text(fields, "deadline") {
            self.deadline = date_and_time(&text);
            match self.deadline {
                Some(deadline) => self.check_deadline(deadline, "/deadline"),
                None => self.wrong(
                    "/deadline",
                    "must be an ISO 8601 date and time such as 2030-05-08T20:00:00Z",
                ),
            }
        }
        if let Some(topic) = self.text(fields, "replyTo") {
            self.reply_to(topic);
        }
        if let Some(text) = self.text(fields, "priority") {
            let mut priorities = Priority::ALL.into_iter();
            self.priority = priorities.find(|priority| priority.name() == text);
            if self.priority.is_none() {
                self.wrong("/priority", format!("must be normal or high, not {text:?}"));
            }
        }
        self.notify(fields.get(NOTIFY));
        let workflow = self.workflow.as_deref();
        let form = workflow.and_then(|name| self.rules.forms.of(name));
        match (fields.remove("input"), form) {
            (Some(input), Some(form)) => self.formed(form, &input, "/input"),
            (Some(Value::Object(input)), None) => {
                self.input = Some(Input::Free(Value::Object(input).to_string().into_bytes()));
            }
            (Some(_), None) => self.wrong("/input", "must be an object"),
            (None, _) => self.wrong("/input", "is required"),
        }
        for name in fields.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
            let mut pointer = String::new();
            json::push_segment(&mut pointer, name);
            let detail = format!("is unknown; the fields are {}", KNOWN.join(", "));
            self.errors.push(FieldProblem::new(pointer, detail));
        }
    }

    /// An optional text; `null` counts as absent.
    fn text(&mut self, fields: &Map<String, Value>, name: &'static str) -> Option<String> {
        match fields.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.wrong(format!("/{name}"), "must be a string");
                None
            }
        }
    }

    fn check_deadline(&mut self, deadline: Timestamp, pointer: impl Into<String>) {
        if deadline <= self.now {
            let detail = "must be in the future";
            self.overdue.push(FieldProblem::new(pointer, detail));
        }
    }

    fn known_workflows(&self) -> String {
        let mut names: Vec<&str> = self
            .rules
            .workflows
            .iter()
            .map(|workflow| &**workflow.name())
            .collect();
        names.dedup();
        names.join(", ")
    }

    fn tenant(&mut self, tenant: String) {
        match check_tenant(&tenant) {
            Ok(()) => self.tenant = self.envelope.tenants.meant(tenant),
            Err(detail) => self.wrong("/tenant", detail),
        }
    }

    /// Sets the caller's id from a field; all places that give one must agree.
    fn caller_id(&mut self, text: &str, pointer: &str) {
        match CallerId::new(text) {
            Err(error) => self.wrong(pointer, error.to_string()),
            Ok(id) => match &self.caller_id {
                Some(other) if *other != id => {
                    let detail =
                        format!("differs from the id {other} given elsewhere in the request");
                    self.wrong(pointer, detail);
                }
                _ => self.caller_id = Some(id),
            },
        }
    }

    fn reply_to(&mut self, topic: String) {
        let prefixes = &self.rules.reply_to_prefixes;
        if !is_topic_name(&topic) {
            let detail = "must be the name of a topic: 1 to 249 of a-z, A-Z, 0-9, ., _ and -";
            self.wrong("/replyTo", detail);
        } else if prefixes.is_empty() {
            self.wrong(
                "/replyTo",
                "is not allowed: http.replyToPrefixes lists no topics",
            );
        } else if !prefixes.iter().any(|prefix| topic.starts_with(prefix)) {
            let detail = format!("must begin with one of {}", prefixes.join(", "));
            self.wrong("/replyTo", detail);
        } else {
            self.reply_to = Some(topic);
        }
    }

    /// Sets the contacts to notify; `null` counts as absent. No error repeats a contact.
    fn notify(&mut self, value: Option<&Value>) {
        let uris = match value {
            None | Some(Value::Null) => return,
            Some(Value::Array(uris)) if uris.len() <= Contact::COUNT_MAX => uris,
            Some(Value::Array(_)) => {
                let detail = format!("must name at most {} contacts", Contact::COUNT_MAX);
                return self.wrong("/notify", detail);
            }
            Some(_) => return self.wrong("/notify", "must be a list of URIs"),
        };
        for (place, uri) in uris.iter().enumerate() {
            let pointer = format!("/notify/{place}");
            let Value::String(uri) = uri else {
                self.wrong(pointer, "must be a string");
                continue;
            };
            match self.rules.contacts.read(uri) {
                Ok(reachable) if self.notify.contains(&reachable.contact) => {
                    self.wrong(pointer, "is a duplicate");
                }
                Ok(reachable) => self.notify.push(reachable.contact),
                Err(error) => self.wrong(pointer, error.to_string()),
            }
        }
    }

    fn finish(mut self) -> Result<Submission, Problem> {
        let tenant = self.tenant?;
        let (true, Some(workflow), Some(input)) =
            (self.errors.is_empty(), self.workflow, self.input)
        else {
            self.errors.append(&mut self.overdue);
            return Err(Problem::invalid(self.errors));
        };
        let (operation, id_origin, caller_id) = match self.caller_id {
            None => (id::fresh(&tenant), IdOrigin::Server, None),
            Some(caller_id) => match caller_id.as_ours(&tenant) {
                // A repeat with an id that ingestion made: the same record, except for the origin.
                Some(id) => (id, IdOrigin::Caller, None),
                None => (
                    caller_id.operation(&tenant),
                    IdOrigin::Caller,
                    Some(caller_id),
                ),
            },
        };
        let caller_id = caller_id.map(CallerId::into_string);
        // An input may ask for a priority, unless the general form has another.
        let of_input = match &input {
            Input::Formed(_, priority) => *priority,
            Input::Free(_) => Priority::Normal,
        };
        let priority = match self.rules.has_high_priority_topic {
            true => self.priority.unwrap_or(of_input),
            false => Priority::Normal,
        };
        let hash = |input: &[u8]| {
            request_hash(
                &workflow,
                &tenant,
                self.deadline,
                self.reply_to.as_deref(),
                input,
                &self.notify,
            )
        };
        let (request_hash, input) = match input {
            Input::Free(input) => (hash(&input), input),
            Input::Formed(input, _) => named(&input, operation, caller_id.as_deref(), hash),
        };
        // Numbers may be longer after they are written out again.
        if input.len() > INPUT_BYTES_MAX {
            let detail = format!(
                "The input has {} bytes; the limit is {INPUT_BYTES_MAX}.",
                input.len()
            );
            return Err(Problem::new(Kind::BodyTooLarge, detail));
        }
        Ok(Submission {
            record: CreateRequest {
                operation,
                id_origin,
                workflow: workflow.to_string(),
                tenant,
                caller_id,
                input,
                deadline: self.deadline,
                reply_to: self.reply_to,
                request_hash,
                verify_hash: true,
                requested_at: self.now,
                traceparent: self.envelope.traceparent.clone(),
                resubmission_of: None,
                notify: self.notify,
            },
            priority,
            workflow,
            sender: self.envelope.tenants.clone(),
            overdue: self.overdue,
        })
    }
}

/// Checks the name of a verb's sender. The error says what is wrong with it. The records define the
/// longest name.
pub fn check_asked_by(name: &str) -> Result<(), &'static str> {
    match is_name(name) {
        true => Ok(()),
        false => Err(
            "must be visible characters, with single spaces between words, and no word may begin with a combining mark",
        ),
    }
}

/// The hash of an input in a form of its own, over everything but its id, and the input itself,
/// which always has an id. The hash leaves out the id because it may come from the body, from a
/// header or from here: it names the operation that the hash is compared within.
pub fn named(
    input: &CanonicalInput,
    operation: OperationId,
    caller_id: Option<&str>,
    hash: impl Fn(&[u8]) -> RequestHash,
) -> (RequestHash, Vec<u8>) {
    let hash = hash(input.without_id());
    let input = match caller_id {
        Some(id) => input.with_id(id),
        None => input.with_id(&operation.to_string()),
    };
    (hash, input)
}

/// The hash of a request's canonical form: its parts in this order, each after its length. Rows
/// keep it, so neither order nor parts may change. Contacts are additional parts: a request without
/// contacts keeps the hash that it had before contacts existed.
pub fn request_hash(
    workflow: &str,
    tenant: &str,
    deadline: Option<Timestamp>,
    reply_to: Option<&str>,
    input: &[u8],
    notify: &[Contact],
) -> RequestHash {
    let deadline = deadline.map(|deadline| deadline.as_micros().to_be_bytes());
    let parts: [&[u8]; 5] = [
        workflow.as_bytes(),
        tenant.as_bytes(),
        deadline.as_ref().map_or(&[], |bytes| bytes.as_slice()),
        reply_to.unwrap_or_default().as_bytes(),
        input,
    ];
    let mut sha = Sha256::new();
    let contacts = notify.iter().map(|contact| contact.reveal().as_bytes());
    for part in parts.into_iter().chain(contacts) {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&sha.finalize()[..16]);
    RequestHash(hash)
}

/// The hash that ingestion computes for a record with this input. That of a resubmission leaves out
/// the deadline: a repeat after the deadline has none, and is still a repeat.
pub fn record_hash(create: &CreateRequest, input: &[u8]) -> RequestHash {
    request_hash(
        &create.workflow,
        &create.tenant,
        create.deadline.filter(|_| create.resubmission_of.is_none()),
        create.reply_to.as_deref(),
        input,
        &create.notify,
    )
}

/// A resubmission with its hash, and with an input that has the id of the new operation. `None` if
/// a scheduler would refuse the input.
pub fn resubmission(mut create: CreateRequest, forms: &Forms) -> Option<CreateRequest> {
    create.request_hash = match forms.of(&create.workflow) {
        Some(form) => {
            let input = serde_json::from_slice(&create.input).ok()?;
            let input = form.rules.read(&input).ok()?.json;
            let hash = |input: &[u8]| record_hash(&create, input);
            let (hash, input) = named(&input, create.operation, None, hash);
            create.input = input;
            hash
        }
        None => record_hash(&create, &create.input),
    };
    create.verify_hash = true;
    Some(create)
}

fn is_absent(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).is_none_or(Value::is_null)
}

/// Reads an ISO 8601 date and time; without an offset it is UTC.
pub fn date_and_time(text: &str) -> Option<Timestamp> {
    let time = match text.parse::<jiff::Timestamp>() {
        Ok(time) => time,
        Err(_) if text.contains(['T', 't', ' ']) => {
            let civil: jiff::civil::DateTime = text.parse().ok()?;
            civil.to_zoned(TimeZone::UTC).ok()?.timestamp()
        }
        Err(_) => return None,
    };
    Some(Timestamp(time.as_microsecond()))
}
