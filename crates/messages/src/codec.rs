//! Framing, and the conversion between wire structs and bytes.
//!
//! A datum is framed as an [Avro single object]: the marker `C3 01`, then the schema's CRC-64-AVRO
//! fingerprint, little-endian. Or it has the [Confluent wire format]: a zero byte, then the
//! schema's registry ID, big-endian. The framing determines which one the writer uses; the reader
//! accepts both.
//!
//! Registries number their schemas with signed integers, from 1. A negative ID is not a valid
//! frame: a registry would not even answer that it does not have the schema, and readers would wait
//! forever.
//!
//! A datum with the current writer schema is deserialized directly into its wire struct through
//! serde. Any other is resolved by the Avro library's rules: read as a generic value, resolved to
//! the current schema, written with it, and read like a current one. That is many times slower, and
//! only needed for records of an older or newer version.
//!
//! [Avro single object]: https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding
//! [Confluent wire format]:
//! https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{DecodeError, EncodeError, cause_of};
use crate::frame::{Frame, SchemaId};
use crate::framing::{Framing, Lookup};
use crate::kind::{RecordKind, RecordSchema, VALUE_BYTES_MAX};
use crate::writer_schema::WriterSchema;

/// How much the Avro library may allocate for one length prefix. The limit is global to the
/// process, and higher than [`VALUE_BYTES_MAX`]: generic values are larger than their encoding.
const ALLOCATION_BYTES_MAX: usize = 16 * 1024 * 1024;

const SINGLE_OBJECT_MARKER: [u8; 2] = [0xc3, 0x01];
const CONFLUENT_MARKER: u8 = 0x00;

/// The writer and readers of one record, built once.
pub(crate) struct Codec {
    record: &'static str,
    kind: RecordKind,
    schema: &'static Schema,
    fingerprint: u64,
    writer: GenericDatumWriter<'static>,
    reader: GenericDatumReader<'static>,
    /// Older versions, each resolved to the current schema.
    released: Vec<(u64, GenericDatumReader<'static>)>,
}

impl Codec {
    /// Builds the codec of a committed schema.
    ///
    /// # Panics
    ///
    /// If a committed schema does not parse; a test builds every codec.
    pub(crate) fn new(record: &RecordSchema) -> Self {
        const COMMITTED: &str = "committed schemas parse";
        apache_avro::util::max_allocation_bytes(ALLOCATION_BYTES_MAX);
        // Kept for the life of the process, like the codec itself.
        let keep = |json: &str| -> &'static WriterSchema {
            Box::leak(Box::new(WriterSchema::parse(json).expect(COMMITTED)))
        };
        let current = keep(record.json);
        let released = record
            .released
            .iter()
            .map(|json| keep(json))
            .filter(|released| released.fingerprint() != current.fingerprint())
            .map(|released| {
                let reader = GenericDatumReader::builder(&released.schema)
                    .reader_schema(&current.schema)
                    .build()
                    .expect(COMMITTED);
                (released.fingerprint(), reader)
            })
            .collect();
        Self {
            record: record.name,
            kind: record.kind,
            schema: &current.schema,
            fingerprint: current.fingerprint(),
            writer: GenericDatumWriter::builder(&current.schema)
                .build()
                .expect(COMMITTED),
            reader: GenericDatumReader::builder(&current.schema)
                .build()
                .expect(COMMITTED),
            released,
        }
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Appends the framed datum to `out`.
    pub(crate) fn encode(
        &self,
        wire: &impl Serialize,
        frame: Frame,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        match frame {
            Frame::SingleObject => {
                out.extend_from_slice(&SINGLE_OBJECT_MARKER);
                out.extend_from_slice(&self.fingerprint.to_le_bytes());
            }
            Frame::Confluent(SchemaId(id)) => {
                out.push(CONFLUENT_MARKER);
                out.extend_from_slice(&id.to_be_bytes());
            }
        }
        let written = self.writer.write_ser(out, wire);
        let bytes = out.len() - start;
        let result = match written {
            Err(error) => Err(EncodeError::Avro {
                record: self.record,
                cause: cause_of(error),
            }),
            Ok(_) if bytes > VALUE_BYTES_MAX => Err(EncodeError::TooLarge {
                record: self.record,
                bytes,
            }),
            Ok(_) => Ok(()),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Reads a framed datum.
    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        framing: &Framing,
    ) -> Result<T, DecodeError> {
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(DecodeError::TooLarge { bytes: bytes.len() });
        }
        if let Some((fingerprint, datum)) = single_object(bytes) {
            if fingerprint == self.fingerprint {
                return self.read_current(datum);
            }
            let released = self
                .released
                .iter()
                .find(|(known, _)| *known == fingerprint);
            return match released {
                Some((_, reader)) => self.read_resolved(reader, datum),
                None => Err(DecodeError::UnknownFingerprint {
                    record: self.record,
                    fingerprint,
                }),
            };
        }
        if let Some((id, datum)) = confluent(bytes) {
            if framing.is_current(self.kind, id) {
                return self.read_current(datum);
            }
            return self.read_foreign(id, datum, framing);
        }
        Err(DecodeError::NotFramed { bytes: bytes.len() })
    }

    /// Reads a datum whose schema, from the registry, is not known to be the current one.
    fn read_foreign<T: DeserializeOwned>(
        &self,
        id: SchemaId,
        datum: &[u8],
        framing: &Framing,
    ) -> Result<T, DecodeError> {
        let record = self.record;
        let writer = match framing.look_up(id) {
            None => return Err(DecodeError::NoRegistry { record, id }),
            Some(Lookup::Found(writer)) => writer,
            Some(Lookup::Unknown) => return Err(DecodeError::UnknownSchemaId { record, id }),
            Some(Lookup::Unusable { cause }) => {
                let cause = cause.to_string();
                return Err(DecodeError::UnusableSchema { record, id, cause });
            }
            Some(Lookup::NotYet) => return Err(DecodeError::NotYet { record, id }),
        };
        if writer.fingerprint() == self.fingerprint {
            return self.read_current(datum);
        }
        let reader = GenericDatumReader::builder(&writer.schema)
            .reader_schema(self.schema)
            .build()
            .map_err(|error| self.malformed(error))?;
        self.read_resolved(&reader, datum)
    }

    fn read_current<T: DeserializeOwned>(&self, mut datum: &[u8]) -> Result<T, DecodeError> {
        let wire = self
            .reader
            .read_deser(&mut datum)
            .map_err(|error| self.malformed(error))?;
        self.at_end(datum)?;
        Ok(wire)
    }

    fn read_resolved<T: DeserializeOwned>(
        &self,
        reader: &GenericDatumReader<'_>,
        mut datum: &[u8],
    ) -> Result<T, DecodeError> {
        let value = reader
            .read_value(&mut datum)
            .map_err(|error| self.unresolved(error))?;
        self.at_end(datum)?;
        let mut current = Vec::new();
        self.writer
            .write_value_ref(&mut current, &value)
            .map_err(|error| self.unresolved(error))?;
        self.read_current(&current)
    }

    fn at_end(&self, rest: &[u8]) -> Result<(), DecodeError> {
        if rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TrailingBytes {
                record: self.record,
                bytes: rest.len(),
            })
        }
    }

    fn malformed(&self, error: apache_avro::Error) -> DecodeError {
        DecodeError::Malformed {
            record: self.record,
            cause: cause_of(error),
        }
    }

    /// The error for a generic value, which the library's text would reveal. The error's kind is
    /// sufficient, and contains no contact.
    fn unresolved(&self, error: apache_avro::Error) -> DecodeError {
        let details = format!("{:?}", error.into_details());
        let name = details.split(|c: char| !c.is_alphanumeric()).next();
        DecodeError::Malformed {
            record: self.record,
            cause: format!(
                "the value does not match the current schema ({})",
                name.unwrap_or_default()
            ),
        }
    }
}

fn single_object(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (fingerprint, datum) = bytes
        .strip_prefix(&SINGLE_OBJECT_MARKER)?
        .split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*fingerprint), datum))
}

fn confluent(bytes: &[u8]) -> Option<(SchemaId, &[u8])> {
    let (id, datum) = bytes
        .strip_prefix(&[CONFLUENT_MARKER])?
        .split_first_chunk::<4>()?;
    let id = u32::try_from(i32::from_be_bytes(*id)).ok()?;
    Some((SchemaId(id), datum))
}
