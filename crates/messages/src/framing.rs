//! How the records of one installation are framed: the bytes that writers put before a datum, and
//! where readers find its writer schema.
//!
//! Without a schema registry, writers frame an Avro single object. With one, they use the Confluent
//! wire format, with the IDs that the registry gave their schemas at start. Readers accept both; a
//! [`Framing`] without a registry knows no IDs.
//!
//! What must hold: **a record costs no request**. Writers know their IDs before the first record,
//! and a frame with a writer's own ID is read without a lookup. Any other ID is looked up in
//! [`Schemas`], which caches its schemas.
//!
//! Deliberately absent: any I/O. The registry client implements [`Schemas`].

use std::fmt;
use std::sync::Arc;

use crate::error::EncodeError;
use crate::frame::{Frame, SchemaId};
use crate::kind::{RECORD_KINDS, RecordKind};
use crate::writer_schema::WriterSchema;

/// The result of looking up an ID in a registry.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// A schema.
    Found(Arc<WriterSchema>),
    /// The registry does not have the ID.
    Unknown,
    /// It is not an Avro schema, or an unusable one.
    Unusable {
        /// The defect, for people.
        cause: Arc<str>,
    },
    /// The registry has not answered yet. Ask again.
    NotYet,
}

/// A source of the schemas that Confluent-framed records name: a schema registry.
///
/// Threads that read records call it. So it caches its schemas, and never blocks: it returns
/// [`Lookup::NotYet`] until a schema is fetched.
pub trait Schemas: Send + Sync {
    /// The schema of this ID.
    fn writer_schema(&self, id: SchemaId) -> Lookup;
}

/// The registry IDs of the schemas that a process writes with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SchemaIds([Option<SchemaId>; RECORD_KINDS]);

impl SchemaIds {
    /// Sets the id of a record's schema.
    pub fn set(&mut self, kind: RecordKind, id: SchemaId) {
        self.0[kind as usize] = Some(id);
    }

    /// The id of a record's schema, if it was set.
    #[must_use]
    pub fn get(&self, kind: RecordKind) -> Option<SchemaId> {
        self.0[kind as usize]
    }
}

/// How records are framed. Clones share the registry. The default uses no registry.
#[derive(Clone, Default)]
pub struct Framing {
    /// `None`: single objects.
    written_with: Option<SchemaIds>,
    schemas: Option<Arc<dyn Schemas>>,
}

impl Framing {
    /// Writes and reads single objects only.
    #[must_use]
    pub fn single_object() -> Self {
        Self::default()
    }

    /// Writes single objects, and reads records with registry schemas as well.
    #[must_use]
    pub fn reading(schemas: Arc<dyn Schemas>) -> Self {
        Self {
            written_with: None,
            schemas: Some(schemas),
        }
    }

    /// Writes and reads the Confluent wire format, and reads single objects as well. Refuses to
    /// write records whose schema has no ID here.
    #[must_use]
    pub fn confluent(ids: SchemaIds, schemas: Arc<dyn Schemas>) -> Self {
        Self {
            written_with: Some(ids),
            schemas: Some(schemas),
        }
    }

    /// Looks up an ID in the registry; `None` without a registry.
    #[must_use]
    pub fn look_up(&self, id: SchemaId) -> Option<Lookup> {
        Some(self.schemas.as_ref()?.writer_schema(id))
    }

    /// Whether the writer uses this ID for the current schema of a record.
    pub(crate) fn is_current(&self, kind: RecordKind, id: SchemaId) -> bool {
        let ids = self.written_with.as_ref();
        ids.is_some_and(|ids| ids.get(kind) == Some(id))
    }

    /// The frame that the writer uses for a record.
    pub(crate) fn frame(&self, kind: RecordKind) -> Result<Frame, EncodeError> {
        let Some(ids) = &self.written_with else {
            return Ok(Frame::SingleObject);
        };
        let id = ids.get(kind).ok_or(EncodeError::NoSchemaId {
            record: kind.name(),
        })?;
        Ok(Frame::Confluent(id))
    }
}

impl fmt::Debug for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framing")
            .field("written_with", &self.written_with)
            .field("reads_confluent", &self.schemas.is_some())
            .finish()
    }
}
