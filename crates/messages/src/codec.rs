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
//! [Confluent wire format]: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::error::Details;
use apache_avro::rabin::Rabin;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::schema::{
    ArraySchema, DecimalSchema, InnerDecimalSchema, MapSchema, Name, UuidSchema,
};
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{DecodeError, EncodeError, SchemaError};
use crate::framing::{Frame, Framing, Lookup, SchemaId};
use crate::record::{RecordKind, RecordSchema};

/// The largest record, framing included, in bytes: 1 MiB, Kafka's default limit. Larger values are
/// neither written nor read.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// How much the Avro library may allocate for one length prefix. The limit is global to the
/// process, and higher than [`VALUE_BYTES_MAX`]: generic values are larger than their encoding.
const ALLOCATION_BYTES_MAX: usize = 16 * 1024 * 1024;

const SINGLE_OBJECT_MARKER: [u8; 2] = [0xc3, 0x01];
const CONFLUENT_MARKER: u8 = 0x00;

/// The longest reason of the Avro library to pass on, in bytes: reasons often contain whole
/// schemas.
const CAUSE_BYTES_MAX: usize = 200;

/// A schema that records were written with.
#[derive(Clone, Debug)]
pub struct WriterSchema {
    schema: Schema,
    fingerprint: u64,
}

impl WriterSchema {
    /// Parses a schema.
    pub fn parse(json: &str) -> Result<Self, SchemaError> {
        let refused = |error| SchemaError {
            cause: cause_of(error),
        };
        let schema = Schema::parse_str(json).map_err(refused)?;
        Walk::default().weigh(&schema)?;
        let fingerprint = fingerprint_of(&schema).map_err(refused)?;
        Ok(Self {
            schema,
            fingerprint,
        })
    }

    /// Its CRC-64-AVRO fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

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
            .filter(|released| released.fingerprint != current.fingerprint)
            .map(|released| {
                let reader = GenericDatumReader::builder(&released.schema)
                    .reader_schema(&current.schema)
                    .build()
                    .expect(COMMITTED);
                (released.fingerprint, reader)
            })
            .collect();
        Self {
            record: record.name,
            kind: record.kind,
            schema: &current.schema,
            fingerprint: current.fingerprint,
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
        if writer.fingerprint == self.fingerprint {
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

/// The CRC-64-AVRO fingerprint of a schema's parsing canonical form.
///
/// In the canonical form, the library writes a primitive type with a logical type as
/// `{"type":"long"}`, where the specification's [PRIMITIVES] rule requires `"long"`. Its
/// fingerprints then differ from those of every other implementation, so this function applies the
/// rule.
fn fingerprint_of(schema: &Schema) -> Result<u64, apache_avro::Error> {
    let mut canonical = schema.canonical_form();
    for primitive in [
        "null", "boolean", "int", "long", "float", "double", "bytes", "string",
    ] {
        let simple = format!("\"{primitive}\"");
        canonical = canonical.replace(&format!("{{\"type\":{simple}}}"), &simple);
    }
    // The digest is the hash in little-endian order, eight bytes long.
    let digest = Schema::parse_str(&canonical)?.fingerprint::<Rabin>().bytes;
    Ok(digest
        .iter()
        .rev()
        .fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
}

/// The minimal datum of a type, with empty lists.
#[derive(Clone, Copy)]
struct Weight {
    /// Minimum bytes on the wire.
    bytes: u64,
    /// Maximum values in memory.
    values: u64,
}

/// The most values that a type may expand to, with empty lists: far more than any handwritten
/// schema has.
const VALUES_MAX: u64 = 10_000;
/// The most values that one byte of a list may expand to: a record may have as many list items as
/// bytes.
const VALUES_PER_BYTE_MAX: u64 = 8;

/// Walks a schema and refuses it if a small datum could exhaust the stack or the memory: types that
/// contain themselves, huge values of a fixed size, lists of empty items, and types that expand to
/// very many values. Waybill's own schemas have none of these.
#[derive(Default)]
struct Walk<'a> {
    /// The types that enclose the current one.
    around: Vec<&'a Name>,
    /// Named types that were already checked.
    known: HashMap<&'a Name, Weight>,
}

impl<'a> Walk<'a> {
    fn weigh(&mut self, schema: &'a Schema) -> Result<Weight, SchemaError> {
        let refuse = |cause: String| Err(SchemaError { cause });
        let weight = match schema {
            Schema::Ref { name } if self.around.contains(&name) => {
                return refuse(format!("{name} contains itself"));
            }
            Schema::Ref { name } => match self.known.get(name) {
                Some(&weight) => weight,
                None => return refuse(format!("{name} is not defined before it is used")),
            },
            Schema::Null => Weight {
                bytes: 0,
                values: 1,
            },
            Schema::Fixed(fixed)
            | Schema::Duration(fixed)
            | Schema::Uuid(UuidSchema::Fixed(fixed))
            | Schema::Decimal(DecimalSchema {
                inner: InnerDecimalSchema::Fixed(fixed),
                ..
            }) => {
                if fixed.size > VALUE_BYTES_MAX {
                    return refuse(format!("{} is larger than the largest record", fixed.name));
                }
                let weight = Weight {
                    bytes: fixed.size as u64,
                    values: 1,
                };
                self.known.insert(&fixed.name, weight);
                weight
            }
            Schema::Enum(symbols) => {
                let weight = Weight {
                    bytes: 1,
                    values: 1,
                };
                self.known.insert(&symbols.name, weight);
                weight
            }
            Schema::Record(record) => {
                self.around.push(&record.name);
                let mut weight = Weight {
                    bytes: 0,
                    values: 1,
                };
                for field in &record.fields {
                    let of_field = self.weigh(&field.schema)?;
                    weight.bytes = weight.bytes.saturating_add(of_field.bytes);
                    weight.values = weight.values.saturating_add(of_field.values);
                }
                self.around.pop();
                self.known.insert(&record.name, weight);
                weight
            }
            Schema::Array(ArraySchema { items, .. })
            | Schema::Map(MapSchema { types: items, .. }) => {
                let of_item = self.weigh(items)?;
                // The items of a map have keys.
                let key = u64::from(matches!(schema, Schema::Map(_)));
                let bytes = of_item.bytes.saturating_add(key);
                if of_item.values > bytes.saturating_mul(VALUES_PER_BYTE_MAX) {
                    return refuse(
                        "the items of a list take too few bytes for the number of values in them"
                            .to_owned(),
                    );
                }
                Weight {
                    bytes: 1,
                    values: 1,
                }
            }
            Schema::Union(union) => {
                let mut weight = Weight {
                    bytes: u64::MAX,
                    values: 0,
                };
                for variant in union.variants() {
                    let of_variant = self.weigh(variant)?;
                    weight.bytes = weight.bytes.min(of_variant.bytes);
                    weight.values = weight.values.max(of_variant.values);
                }
                // The branch index.
                Weight {
                    bytes: weight.bytes.saturating_add(1),
                    values: weight.values.saturating_add(1),
                }
            }
            _ => Weight {
                bytes: 1,
                values: 1,
            },
        };
        match weight.values {
            ..=VALUES_MAX => Ok(weight),
            _ => refuse(format!(
                "one of its types expands to more than {VALUES_MAX} values"
            )),
        }
    }
}

/// The library's reason without the schemas in it, shortened.
fn cause_of(error: apache_avro::Error) -> String {
    let mut cause = match error.into_details() {
        Details::DeserializeSchemaAware {
            value_type, value, ..
        }
        | Details::SerializeValueWithSchema {
            value_type, value, ..
        } => {
            format!("{value_type}: {value}")
        }
        Details::SerializeRecordFieldWithSchema {
            field_name, error, ..
        } => {
            format!("{field_name}: {error}")
        }
        details => details.to_string(),
    };
    if cause.len() > CAUSE_BYTES_MAX {
        cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
        cause.push('…');
    }
    cause
}
