//! The client of a schema registry that speaks the [Confluent REST API]: ids for writers, schemas for
//! readers.
//!
//! Two parts. [`Registry`] asks one question at a time, and [`schema_ids`] asks those that a writer
//! has before its first record. [`SchemaCache`] is what readers ask about each foreign record: it
//! answers at once, and fetches what it does not have on the side.
//!
//! What must hold:
//!
//! * **Away is not unknown.** Only the registry itself, by the error code of its API, says that it
//!   does not have a schema. A registry that is away, overloaded or behind a confused proxy is asked
//!   again, and what reads records waits meanwhile.
//! * **One question at a time for one id**, with growing pauses while it is not answered.
//! * **Memory is bounded**: so many schemas, so many ids without one.
//! * **No secret is shown** by `Debug` or in an error.
//!
//! Why no library: `schema_registry_converter` 6 has one kind of error, a text with a hint whether to
//! try again, so that it cannot tell a schema that does not exist from a login that was refused; it
//! does not look a schema up without registering it, and says of an incompatible one nothing but that
//! it is; and it encodes and decodes record by record, asynchronously and through generic values.
//! What is left to use is half of the few calls below.
//!
//! [Confluent REST API]: https://docs.confluent.io/platform/current/schema-registry/develop/api.html

mod cache;
mod client;
mod subjects;

pub use cache::SchemaCache;
pub use client::{
    Compatibility, Login, Registry, RegistryError, RegistrySettings, SettingsError, StoredSchema,
};
pub use subjects::{Subject, SubjectError, schema_ids, subjects};
