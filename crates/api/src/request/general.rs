//! The general form of a request, as the API's description shows it.

use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::{ArrayBuilder, Object, ObjectBuilder, RefOr, Schema};
use waybill_engine::{Contact, Priority};

/// A request for an operation of any workflow.
///
/// It is not read with serde, but field by field, so that a refusal lists every wrong field.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(description = "A request for an operation of any workflow.")]
pub struct OperationRequest {
    /// The workflow to run.
    #[schema(example = "order-fulfilment")]
    pub workflow: String,
    /// The caller's own id, of visible characters. It makes repeating the request safe.
    #[schema(max_length = 256)]
    pub id: Option<String>,
    /// The input of the workflow.
    #[schema(value_type = Object)]
    pub input: Value,
    /// The time by which the operation should be final: an ISO 8601 date and time in the future.
    #[schema(format = DateTime)]
    pub deadline: Option<String>,
    /// How urgent the request is.
    #[schema(schema_with = priority)]
    pub priority: Option<String>,
    /// The tenant of the operation. Tenants do not share ids.
    #[schema(max_length = 256)]
    pub tenant: Option<String>,
    /// A topic for the operation's status records, if this server allows it.
    #[schema(max_length = 249)]
    pub reply_to: Option<String>,
    /// The contacts to notify.
    #[schema(schema_with = notify)]
    pub notify: Option<Vec<String>>,
}

fn priority() -> Object {
    let names = Priority::ALL.map(|priority| Some(priority.name()));
    ObjectBuilder::new()
        .schema_type(SchemaType::Array(vec![Type::String, Type::Null]))
        .enum_values(Some(names.into_iter().chain([None])))
        .description(Some(
            "Schedulers admit requests of priority `high` ahead of waiting `normal` ones. The \
             default is `normal`.",
        ))
        .build()
}

/// The schema of the contacts to notify, which every request may have.
#[must_use]
pub fn notify() -> RefOr<Schema> {
    let contact = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(Contact::BYTES_MAX))
        .examples(["mailto:anna@example.org", "tel:+491701234567"]);
    ArrayBuilder::new()
        .schema_type(SchemaType::Array(vec![Type::Array, Type::Null]))
        .items(contact)
        .max_items(Some(Contact::COUNT_MAX))
        .description(Some(
            "The contacts to notify when the operation ends or is delayed: mailto: with one \
             address, or tel: with one global number, for channels that this server has \
             configured. Responses omit them.",
        ))
        .into()
}
