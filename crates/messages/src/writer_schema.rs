//! Schemas that records were written with, and the limits on them.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::rabin::Rabin;
use apache_avro::schema::{
    ArraySchema, DecimalSchema, InnerDecimalSchema, MapSchema, Name, UuidSchema,
};

use crate::error::{SchemaError, cause_of};
use crate::kind::VALUE_BYTES_MAX;

/// A schema that records were written with.
#[derive(Clone, Debug)]
pub struct WriterSchema {
    pub(crate) schema: Schema,
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
