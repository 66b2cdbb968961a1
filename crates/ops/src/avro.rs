//! Decodes a record of any schema to JSON.
//!
//! A record is read with the schema that wrote it and shown in that schema, not in the current one.
//! A fingerprint selects the schema among those of all Waybill releases. A registry ID selects it
//! among the given ones or in the schema registry. People read the result, so generic values are
//! fast enough and a call to the registry is acceptable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Context as _;
use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value;
use serde::ser::{Error as _, SerializeMap as _};
use serde::{Serialize, Serializer};
use waybill_messages::{RECORD_SCHEMAS, SchemaId, VALUE_BYTES_MAX, WriterSchema};
use waybill_registry::{Registry, RegistryConfig, StoredSchema};
use waybill_telemetry::chain;
use waybill_terminal::Bytes;

use crate::runtime::{Runtime, runtime};

/// How much the Avro library may allocate for one length prefix. Generic values are larger than
/// their encoding, which is at most [`VALUE_BYTES_MAX`] long.
const ALLOCATION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The maximum length in bytes of an error text of the Avro library, which often prints whole
/// schemas.
const CAUSE_BYTES_MAX: usize = 200;

/// A schema of a registry, given on the command line as `ID=FILE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistrySchema {
    id: u32,
    file: PathBuf,
}

impl std::str::FromStr for RegistrySchema {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a schema's id in the registry, =, and its file";
        let (id, file) = text.split_once('=').ok_or(EXPECTED)?;
        let id = id.parse().map_err(|_| EXPECTED)?;
        if file.is_empty() {
            return Err(EXPECTED);
        }
        let file = PathBuf::from(file);
        Ok(Self { id, file })
    }
}

/// Why a value was not decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecoded {
    #[error("the value of {bytes} bytes is larger than {VALUE_BYTES_MAX} bytes")]
    TooLarge { bytes: usize },
    #[error(
        "the value of {bytes} bytes has neither Avro single-object encoding nor the Confluent wire \
         format"
    )]
    NotFramed { bytes: usize },
    #[error("the value was written with an unknown schema, fingerprint {fingerprint:016x}")]
    UnknownFingerprint { fingerprint: u64 },
    #[error("the value has schema id {id}: give its file with --schema {id}=FILE")]
    UnknownSchemaId { id: u32 },
    #[error("the value has schema id {id}: {cause}")]
    NotInRegistry { id: u32, cause: String },
    #[error("the {schema} is malformed: {cause}")]
    Malformed { schema: String, cause: String },
    #[error("the {schema} is followed by {bytes} bytes that are not part of it")]
    TrailingBytes { schema: String, bytes: usize },
}

/// A decoded value, as JSON.
pub(crate) struct Decoded {
    /// The name of its schema.
    pub(crate) schema: String,
    /// The value.
    pub(crate) value: Json,
}

/// The known schemas.
pub(crate) struct Schemas {
    by_fingerprint: BTreeMap<u64, Rc<Known>>,
    /// The given schemas, and the answers of the registry so far.
    by_id: RefCell<BTreeMap<u32, Result<Rc<Known>, String>>>,
    registry: Option<Asked>,
}

/// The registry, and the runtime that waits for its answers.
struct Asked {
    registry: Registry,
    runtime: Runtime,
}

struct Known {
    name: String,
    schema: Schema,
}

impl Schemas {
    /// Loads Waybill's own schemas of all releases, the `given` ones, and those of the configured
    /// registry.
    pub(crate) fn load(given: &[RegistrySchema], config: &RegistryConfig) -> anyhow::Result<Self> {
        apache_avro::util::max_allocation_bytes(ALLOCATION_BYTES_MAX);
        let mut by_fingerprint = BTreeMap::new();
        for record in RECORD_SCHEMAS {
            for json in record.released.iter().chain([&record.json]) {
                let fingerprint = WriterSchema::parse(json)?.fingerprint();
                let schema = Schema::parse_str(json)?;
                let name = record.name.to_owned();
                by_fingerprint.insert(fingerprint, Rc::new(Known { name, schema }));
            }
        }
        let mut by_id = BTreeMap::new();
        for RegistrySchema { id, file } in given {
            let path = file.display();
            let json =
                std::fs::read_to_string(file).with_context(|| format!("cannot read {path}"))?;
            let known = Known::parse(&json, || path.to_string());
            by_id.insert(*id, Ok(Rc::new(known.with_context(|| path.to_string())?)));
        }
        let registry = match config.client()? {
            None => None,
            Some(registry) => Some(Asked {
                registry,
                runtime: runtime()?,
            }),
        };
        Ok(Self {
            by_fingerprint,
            by_id: RefCell::new(by_id),
            registry,
        })
    }

    /// Decodes a record's value.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<Decoded, Undecoded> {
        if bytes.len() > VALUE_BYTES_MAX {
            let bytes = bytes.len();
            return Err(Undecoded::TooLarge { bytes });
        }
        let (known, rest) = self.unframe(bytes)?;
        let schema = || known.name.clone();
        let malformed = |cause| Undecoded::Malformed {
            schema: schema(),
            cause,
        };
        let mut datum = Datum {
            rest,
            is_overrun: false,
        };
        let value = GenericDatumReader::builder(&known.schema)
            .build()
            .and_then(|reader| reader.read_value(&mut datum))
            .map_err(|error| malformed(shortened(error.to_string())))?;
        if datum.is_overrun {
            return Err(malformed("unexpected end of data".to_owned()));
        }
        if !datum.rest.is_empty() {
            return Err(Undecoded::TrailingBytes {
                schema: schema(),
                bytes: datum.rest.len(),
            });
        }
        Ok(Decoded {
            schema: schema(),
            value: Json(value),
        })
    }

    /// The schema that wrote a value, and the bytes after its framing: the marker `C3 01` and a
    /// little-endian fingerprint, or a zero byte and a big-endian ID.
    fn unframe<'a>(&self, bytes: &'a [u8]) -> Result<(Rc<Known>, &'a [u8]), Undecoded> {
        let single_object = bytes
            .strip_prefix(&[0xc3, 0x01])
            .and_then(<[u8]>::split_first_chunk);
        if let Some((fingerprint, datum)) = single_object {
            let fingerprint = u64::from_le_bytes(*fingerprint);
            let known = self.by_fingerprint.get(&fingerprint);
            return known
                .map(|known| (Rc::clone(known), datum))
                .ok_or(Undecoded::UnknownFingerprint { fingerprint });
        }
        let confluent = bytes
            .strip_prefix(&[0x00])
            .and_then(<[u8]>::split_first_chunk);
        if let Some((id, datum)) = confluent {
            let id = u32::from_be_bytes(*id);
            return Ok((self.by_id(id)?, datum));
        }
        let bytes = bytes.len();
        Err(Undecoded::NotFramed { bytes })
    }

    /// The schema with this ID: a given one, or that of the registry, which is called once per ID.
    fn by_id(&self, id: u32) -> Result<Rc<Known>, Undecoded> {
        let mut by_id = self.by_id.borrow_mut();
        if let (None, None) = (by_id.get(&id), &self.registry) {
            return Err(Undecoded::UnknownSchemaId { id });
        }
        let known = by_id.entry(id).or_insert_with(|| match &self.registry {
            Some(asked) => asked.schema(id).map(Rc::new),
            None => Err("no schema registry is configured".to_owned()),
        });
        known
            .clone()
            .map_err(|cause| Undecoded::NotInRegistry { id, cause })
    }
}

impl Asked {
    fn schema(&self, id: u32) -> Result<Known, String> {
        let asked = self.registry.schema(SchemaId(id));
        match self.runtime.block_on(asked) {
            Ok(Some(StoredSchema {
                schema,
                schema_type,
            })) if schema_type == StoredSchema::AVRO => {
                Known::parse(&schema, || format!("schema {id}")).map_err(|error| error.to_string())
            }
            Ok(Some(stored)) => Err(format!("it is of type {}", stored.schema_type)),
            Ok(None) => Err("the schema registry does not have it".to_owned()),
            Err(error) => Err(chain(&error)),
        }
    }
}

impl Known {
    /// Parses a schema. Its name is the one in the schema, or else `otherwise`.
    fn parse(json: &str, otherwise: impl FnOnce() -> String) -> anyhow::Result<Self> {
        // `WriterSchema` parses it first, because its errors are short.
        WriterSchema::parse(json)?;
        let schema = Schema::parse_str(json)?;
        let name = schema.name().map(|name| name.name().to_owned());
        Ok(Self {
            name: name.unwrap_or_else(otherwise),
            schema,
        })
    }
}

/// The bytes of a datum. At their end the Avro library reads a union as null; production consumers
/// fail.
struct Datum<'a> {
    rest: &'a [u8],
    is_overrun: bool,
}

impl Read for Datum<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_overrun |= self.rest.len() < buffer.len();
        self.rest.read(buffer)
    }
}

fn shortened(mut cause: String) -> String {
    if cause.len() > CAUSE_BYTES_MAX {
        cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
        cause.push('…');
    }
    cause
}

/// An Avro value in the JSON that people expect: fields in the schema's order, a union as its
/// value, times as RFC 3339, fixed bytes in hexadecimal, and other bytes as [`Bytes`].
pub(crate) struct Json(Value);

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Shown(&self.0).serialize(serializer)
    }
}

struct Shown<'a>(&'a Value);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Record(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, &Shown(value))?;
                }
                map.end()
            }
            Value::Map(entries) => {
                let sorted: BTreeMap<&String, Shown<'_>> = entries
                    .iter()
                    .map(|(name, value)| (name, Shown(value)))
                    .collect();
                serializer.collect_map(sorted)
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Shown)),
            Value::Union(_, value) => Shown(value).serialize(serializer),
            Value::Bytes(bytes) => Bytes(bytes).serialize(serializer),
            Value::Fixed(_, bytes) => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                serializer.serialize_str(&digits)
            }
            Value::TimestampMicros(micros) => {
                time(*micros, jiff::Timestamp::from_microsecond, serializer)
            }
            Value::TimestampMillis(millis) => {
                time(*millis, jiff::Timestamp::from_millisecond, serializer)
            }
            other => serde_json::Value::try_from(other.clone())
                .map_err(S::Error::custom)?
                .serialize(serializer),
        }
    }
}

/// A time as RFC 3339, or as the plain number if it is outside the calendar's range.
fn time<S: Serializer>(
    number: i64,
    timestamp: impl Fn(i64) -> Result<jiff::Timestamp, jiff::Error>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match timestamp(number) {
        Ok(timestamp) => serializer.collect_str(&timestamp),
        Err(_) => serializer.serialize_i64(number),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write as _;

    use waybill_engine::{Action, Attempt, Epoch, OperationId, Outcome, StepReply};
    use waybill_messages::Record as _;

    use super::*;

    fn reply() -> Vec<u8> {
        let reply = StepReply {
            operation: OperationId::of_caller("", "a"),
            step: "drone".to_owned(),
            attempt: Attempt(2),
            epoch: Epoch(3),
            action: Action::Run,
            nonce: None,
            outcome: Outcome::Success {
                outputs: vec![("b".to_owned(), "2".to_owned())],
            },
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes).unwrap();
        bytes
    }

    fn load(given: &[RegistrySchema]) -> Schemas {
        Schemas::load(given, &RegistryConfig::default()).unwrap()
    }

    fn json_of(schemas: &Schemas, bytes: &[u8]) -> String {
        serde_json::to_string(&schemas.decode(bytes).unwrap().value).unwrap()
    }

    #[test]
    fn a_single_object_is_read_with_the_schema_of_its_fingerprint() {
        let schemas = load(&[]);
        let bytes = reply();
        assert_eq!(schemas.decode(&bytes).unwrap().schema, "step-reply");
        let json = json_of(&schemas, &bytes);
        let fields = r#""step":"drone","attempt":2,"epoch":3,"action":"Run","nonce":null"#;
        assert!(json.contains(fields), "{json}");
    }

    #[test]
    fn a_confluent_record_is_read_with_the_file_that_was_given_for_its_id() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let step_reply = RECORD_SCHEMAS
            .iter()
            .find(|record| record.name == "step-reply")
            .unwrap();
        file.write_all(step_reply.json.as_bytes()).unwrap();
        let argument = format!("7={}", file.path().display());
        let schemas = load(&[argument.parse().unwrap()]);
        let single_object = reply();
        let confluent = [&[0, 0, 0, 0, 7], &single_object[10..]].concat();
        assert_eq!(
            json_of(&schemas, &confluent),
            json_of(&schemas, &single_object)
        );
        let error = load(&[]).decode(&confluent).err();
        assert_eq!(
            error.unwrap().to_string(),
            "the value has schema id 7: give its file with --schema 7=FILE"
        );
    }

    #[test]
    fn every_kind_of_undecodable_record_has_a_reason() {
        let schemas = load(&[]);
        let good = reply();
        let too_long = [&good[..], b"xy"].concat();
        for end in 10..good.len() {
            let error = schemas.decode(&good[..end]).err().unwrap().to_string();
            assert!(error.contains("the step-reply is malformed"), "{error}");
        }
        let cases: [(&[u8], &str); 5] = [
            (b"", "has neither Avro"),
            (b"{}", "has neither Avro"),
            (&too_long, "followed by 2 bytes"),
            (
                b"\xc3\x01\x01\x02\x03\x04\x05\x06\x07\x08",
                "unknown schema, fingerprint 0807060504030201",
            ),
            (&vec![0; VALUE_BYTES_MAX + 1], "larger than"),
        ];
        for (bytes, expected) in cases {
            let error = schemas.decode(bytes).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn generic_values_become_plain_json() {
        let map = HashMap::from([
            ("b".to_owned(), Value::Long(2)),
            ("a".to_owned(), Value::Null),
        ]);
        let fields = [
            ("z", Value::Bytes(b"{\"a\":1}".to_vec())),
            ("bytes", Value::Bytes(vec![0xff])),
            ("fixed", Value::Fixed(2, vec![0x0a, 0xff])),
            ("at", Value::TimestampMicros(1)),
            ("never", Value::TimestampMicros(i64::MAX)),
            (
                "union",
                Value::Union(1, Box::new(Value::String("x".to_owned()))),
            ),
            ("array", Value::Array(vec![Value::Boolean(true)])),
            ("map", Value::Map(map)),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let json = serde_json::to_string(&Json(Value::Record(fields.into()))).unwrap();
        let expected = concat!(
            r#"{"z":"{\"a\":1}","bytes":{"base64":"/w=="},"fixed":"0aff","#,
            r#""at":"1970-01-01T00:00:00.000001Z","never":9223372036854775807,"#,
            r#""union":"x","array":[true],"map":{"a":null,"b":2}}"#
        );
        assert_eq!(json, expected);
    }

    #[test]
    fn a_schema_argument_is_an_id_and_a_file() {
        for bad in ["7", "=f", "x=f", "7=", "-1=f"] {
            assert!(bad.parse::<RegistrySchema>().is_err(), "{bad}");
        }
    }
}
