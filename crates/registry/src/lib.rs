//! The client of a schema registry that speaks the [Confluent REST API]: IDs for writers, schemas
//! for readers.
//!
//! It has two parts, and its section of the configuration, [`RegistryConfig`]. [`Registry`] sends
//! one request at a time; [`schema_ids`] sends those that a writer needs before its first record.
//! [`SchemaCache`] serves readers, which look up the schema of each foreign record: it answers
//! immediately, and fetches missing schemas in the background.
//!
//! What must hold:
//!
//! * **Unavailable is not unknown.** Only the registry itself, by the error code of its API, says
//!   that it does not have a schema. A registry that is unreachable, overloaded or behind a
//!   misconfigured proxy is asked again, and readers of records wait in the meantime.
//! * **One request at a time per ID**, with growing pauses while it is not answered.
//! * **Memory is bounded**: by a number of schemas, and a number of IDs without one.
//! * **No secret is shown** by `Debug` or in an error.
//!
//! Why no library: `schema_registry_converter` 6 has one kind of error, a text with a retry hint,
//! so it does not distinguish a missing schema from a refused login. It cannot look up a schema
//! without registering it, and gives no reason for an incompatible one. It encodes and decodes
//! record by record, asynchronously and through generic values. Only half of the few calls below
//! would remain to use.
//!
//! [Confluent REST API]:
//! https://docs.confluent.io/platform/current/schema-registry/develop/api.html

mod cache;
mod client;
mod config;
mod subjects;

pub use cache::SchemaCache;
pub use client::{
    Compatibility, Login, Registry, RegistryError, RegistrySettings, SettingsError, StoredSchema,
};
pub use config::{FramingChoice, RegistryConfig};
pub use subjects::{Subject, SubjectError, schema_ids, subjects};
