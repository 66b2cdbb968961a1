//! Requests in a form of their own.
//!
//! The input of most workflows is any JSON object. A workflow may instead have a form: rules for
//! the fields of its requests, and a collection of its own in the HTTP API, next to the operations.
//! The program hands in the forms that it has. So ingestion and scheduler know no workflow by name.
//!
//! What must hold: the same input has the same canonical JSON, whatever its own JSON looks like.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use waybill_engine::{Priority, Timestamp, Workflows};
use waybill_http::problem::FieldProblem;

/// The id of the operation in the examples of the API's description.
pub const EXAMPLE_ID: &str = "0192f0c1-2345-7abc-8def-0123456789ab";

/// The operation [`EXAMPLE_ID`] while the second of three steps waits for its next attempt.
#[must_use]
pub fn example_view(workflow: &str, [first, second, third]: [&str; 3]) -> Value {
    json!({
        "id": EXAMPLE_ID,
        "workflow": workflow,
        "callerId": "order-17",
        "state": "Processing",
        "steps": [
            {"name": first, "state": "Completed", "attempt": 1, "action": "Run",
             "changedAt": "2030-05-08T20:00:00.134567Z", "agent": first,
             "outputs": {"reservation": "r-7"}},
            {"name": second, "state": "Failed", "attempt": 2, "action": "Run",
             "failureCount": 2, "retryAt": "2030-05-08T20:00:00.634567Z",
             "changedAt": "2030-05-08T20:00:00.234567Z",
             "error": {"code": "unavailable", "message": "the service answered 503"}},
            {"name": third, "state": "NotStarted", "attempt": 0},
        ],
        "whatNext": format!("Step {second} will be retried at 2030-05-08T20:00:00.634567Z."),
        "verbs": ["cancel", "compensate"],
        "failureCount": 2,
        "nextDue": "2030-05-08T20:00:00.634567Z",
        "lockedBy": "7b1f6f0e-53a7-4c57-9a5e-1f0c6f2d9b10",
        "epoch": 3,
        "createdAt": "2030-05-08T20:00:00.123456Z",
        "updatedAt": "2030-05-08T20:00:00.234567Z",
    })
}

/// The JSON in place of an absent id.
const NULL: &[u8] = b"null";

/// The rules for the requests of one workflow.
pub trait RequestForm: fmt::Debug + Send + Sync {
    /// The names that the API uses.
    fn names(&self) -> &'static FormNames;

    /// Checks an input.
    ///
    /// # Errors
    ///
    /// Every wrong field, by its pointer in the input.
    fn read(&self, input: &Value) -> Result<FormInput, Vec<FieldProblem>>;

    /// Checks the body of a request to change an input.
    ///
    /// # Errors
    ///
    /// Every wrong field.
    fn read_change(&self, change: &Value) -> Result<FormChange, Vec<FieldProblem>>;

    /// Checks the changed fields against the unchanged ones of `input`, the stored JSON. An input
    /// that cannot be read passes: the scheduler decides about it.
    ///
    /// # Errors
    ///
    /// The changed field that does not fit the others.
    fn check_change(&self, change: &FormChange, input: &str) -> Result<(), FieldProblem>;

    /// The part of the API's description about the form.
    fn description(&self) -> FormDescription;
}

/// The names of a form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormNames {
    /// The workflow.
    pub workflow: &'static str,
    /// What one request is about, as in `create-…`, the label of its route in metrics.
    pub noun: &'static str,
    /// The path of the collection.
    pub collection: &'static str,
    /// The pattern of the paths in it: `collection`, followed by `/{id}`.
    pub item: &'static str,
    /// The field of the input with the caller's own id.
    pub id_field: &'static str,
    /// The field of the input with the deadline.
    pub deadline_field: &'static str,
}

/// An input that its form has checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormInput {
    /// The caller's own id, if the input has one.
    pub id: Option<String>,
    /// The time by which the operation should be final, if the input has one.
    pub deadline: Option<Timestamp>,
    /// The priority that the input asks for.
    pub priority: Priority,
    /// The input itself.
    pub json: CanonicalInput,
}

/// The canonical JSON of an input whose id is set last: the caller's id may come from elsewhere in
/// the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CanonicalInput {
    json: Vec<u8>,
    id_at: usize,
}

impl CanonicalInput {
    /// `json` has `null` in place of its id, at index `id_at`.
    ///
    /// # Panics
    ///
    /// If there is no `null`.
    #[must_use]
    pub fn new(json: Vec<u8>, id_at: usize) -> Self {
        let is_null = json.get(id_at..).is_some_and(|rest| rest.starts_with(NULL));
        assert!(is_null, "the id must be null, at index {id_at}");
        Self { json, id_at }
    }

    /// The JSON without an id.
    #[must_use]
    pub fn without_id(&self) -> &[u8] {
        &self.json
    }

    /// The JSON with this id.
    #[must_use]
    pub fn with_id(&self, id: &str) -> Vec<u8> {
        const QUOTES: usize = 2;
        let (before, rest) = self.json.split_at(self.id_at);
        let mut json = Vec::with_capacity(self.json.len() + id.len() + QUOTES);
        json.extend_from_slice(before);
        serde_json::to_writer(&mut json, id).expect("a string always serializes");
        json.extend_from_slice(&rest[NULL.len()..]);
        json
    }
}

/// A checked change of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormChange {
    /// The changed fields with their new values, as in the canonical JSON.
    pub fields: Map<String, Value>,
    /// The new deadline, if it changes.
    pub deadline: Option<Timestamp>,
}

/// The part of the API's description about one form.
#[derive(Clone)]
pub struct FormDescription {
    /// The tag of its operations.
    pub tag: &'static str,
    /// The description of the tag.
    pub about: &'static str,
    /// How requests are created.
    pub create: OperationText,
    /// How one is read.
    pub get: OperationText,
    /// How one is cancelled.
    pub cancel: OperationText,
    /// How one is changed.
    pub change: OperationText,
    /// The schemas of a request and of a change, with all that they refer to.
    pub schemas: Vec<(String, RefOr<Schema>)>,
    /// The name of the schema of a request among them.
    pub request_schema: &'static str,
    /// The name of the schema of a change among them.
    pub change_schema: &'static str,
    /// The name for the schema of a new request, which may name contacts, too.
    pub new_request_schema: &'static str,
    /// The name for the schema of an operation with its request.
    pub view_schema: &'static str,
    /// The description of that schema.
    pub view_about: &'static str,
    /// The description of the operation in it.
    pub view_operation_about: &'static str,
    /// What the input is, for the description of the general form.
    pub general_input: &'static str,
    /// What the deadline of the general form defaults to: a clause.
    pub general_deadline: &'static str,
    /// What the priority of the general form defaults to.
    pub general_priority: &'static str,
    /// A request, without an id.
    pub request_example: Value,
    /// A change.
    pub change_example: Value,
    /// The operation [`EXAMPLE_ID`] while a step waits for its next attempt.
    pub view_example: Value,
}

/// The description of one operation of the API.
#[derive(Clone, Copy, Debug)]
pub struct OperationText {
    /// Its unique name.
    pub id: &'static str,
    /// What it does, in a few words.
    pub summary: &'static str,
    /// What holds for this form alone. May be empty.
    pub description: &'static str,
}

/// A form: its rules, and its names, looked up once.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Its names.
    pub names: &'static FormNames,
    /// Its rules.
    pub rules: &'static dyn RequestForm,
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        self.names.workflow == other.names.workflow
    }
}

impl Eq for Form {}

/// Forms, at most one for each workflow.
#[derive(Clone, Debug, Default)]
pub struct Forms(Arc<[Form]>);

impl Forms {
    /// A set of these forms.
    #[must_use]
    pub fn new(forms: impl IntoIterator<Item = &'static dyn RequestForm>) -> Self {
        let forms = forms.into_iter().map(|rules| Form {
            names: rules.names(),
            rules,
        });
        Self(forms.collect())
    }

    /// The form of a workflow, if it has one.
    #[must_use]
    pub fn of(&self, workflow: &str) -> Option<Form> {
        self.iter().find(|form| form.names.workflow == workflow)
    }

    /// The forms whose workflow is configured.
    #[must_use]
    pub fn configured(&self, workflows: &Workflows) -> Self {
        let is_configured = |form: &Form| workflows.newest(form.names.workflow).is_some();
        Self(self.iter().filter(is_configured).collect())
    }

    /// Each form.
    pub fn iter(&self) -> impl Iterator<Item = Form> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_replaces_the_null_and_nothing_else() {
        let (json, id_at) = (br#"{"id":null,"of":null}"#, br#"{"id":"#.len());
        let input = CanonicalInput::new(json.to_vec(), id_at);
        assert_eq!(input.without_id(), json);
        let named = input.with_id("a\"b");
        assert_eq!(named, br#"{"id":"a\"b","of":null}"#);
    }

    #[test]
    #[should_panic(expected = "the id must be null")]
    fn an_id_that_is_set_already_is_refused() {
        let _ = CanonicalInput::new(br#"{"id":"a"}"#.to_vec(), 6);
    }
}
