//! Strict JSON: one parse serves validation, hash and canonical form.
//!
//! What must hold: two readers of one accepted text cannot understand different things. A key that
//! appears twice in an object is refused, because readers differ on which one counts. Also refused
//! are nesting deeper than the limit, invalid UTF-8, text after the value, and integers of more
//! than 64 bits, of which many readers keep only the first digits (RFC 8259, section 6). Every
//! refusal gives its position. Other numbers become the nearest binary64 value.
//!
//! The canonical form is the tree written back: `serde_json`'s map is sorted by key, and only the
//! values are written.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The highest limit on nesting: below `serde_json`'s own limit of 128.
pub const DEPTH_LIMIT_MAX: usize = 100;

/// Why, and at which position, a text is not one JSON value that all readers understand alike.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}column {column}: {fault}", line_of(*line))]
pub struct JsonError {
    /// What is wrong.
    pub fault: JsonFault,
    /// The line of the error, from 1.
    pub line: usize,
    /// The byte in that line up to which the text was read.
    pub column: usize,
}

/// Names the line, unless it is the first: most texts have only one line.
fn line_of(line: usize) -> String {
    match line {
        ..=1 => String::new(),
        _ => format!("line {line}, "),
    }
}

/// What is wrong with a JSON text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JsonFault {
    /// It breaks JSON's grammar.
    Syntax(String),
    /// An integer needs more than 64 bits.
    Integer(String),
    /// A key appears twice in one object.
    DuplicateKey {
        /// The JSON pointer of the repeated member.
        pointer: String,
    },
    /// It is nested deeper than the limit.
    TooDeep {
        /// The JSON pointer of the value that is too deep.
        pointer: String,
        /// How many levels are allowed.
        depth_max: usize,
    },
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(cause) => f.write_str(cause),
            Self::Integer(digits) => write!(
                f,
                "the integer {digits} needs more than 64 bits, and some JSON parsers lose digits \
                 of it: send it as a string"
            ),
            Self::DuplicateKey { pointer } => write!(f, "the key at {pointer} appears twice"),
            Self::TooDeep { pointer, depth_max } => {
                write!(
                    f,
                    "the value at {pointer} is nested deeper than {depth_max} levels"
                )
            }
        }
    }
}

/// Parses `text` strictly, with at most `depth_max` nested arrays and objects.
pub fn parse(text: &[u8], depth_max: usize) -> Result<Value, JsonError> {
    let (mut finding, mut is_large) = (None, false);
    let mut reader = serde_json::Deserializer::from_slice(text);
    let node = Node {
        finding: &mut finding,
        is_large: &mut is_large,
        depth: 0,
        depth_max: depth_max.min(DEPTH_LIMIT_MAX),
    };
    let read = node.deserialize(&mut reader);
    let value = read
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| JsonError {
            line: error.line(),
            column: error.column(),
            fault: match finding {
                Some(found) => found.into_fault(depth_max),
                None => JsonFault::Syntax(without_position(&error)),
            },
        })?;
    match is_large.then(|| large_integer(text)).flatten() {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// The first integer of a JSON text that does not fit in 64 bits.
fn large_integer(text: &[u8]) -> Option<JsonError> {
    let (mut line, mut line_start, mut at) = (1, 0, 0);
    while at < text.len() {
        match text[at] {
            b'\n' => {
                (line, line_start) = (line + 1, at + 1);
                at += 1;
            }
            b'"' => {
                at += 1;
                while text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let number = text[at..].iter();
                let number = number.take_while(|byte| b"+-.eE0123456789".contains(byte));
                let end = at + number.count();
                let number = std::str::from_utf8(&text[at..end]).unwrap_or_default();
                let is_integer = !number.contains(['.', 'e', 'E']);
                if is_integer && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
                    return Some(JsonError {
                        fault: JsonFault::Integer(number.to_owned()),
                        line,
                        column: end - line_start,
                    });
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// Appends `segment` to a JSON pointer (RFC 6901).
pub fn push_segment(pointer: &mut String, segment: &str) {
    pointer.push('/');
    for c in segment.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

/// The message alone: `serde_json` appends the position, which has its own fields here.
fn without_position(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    if let Some(end) = message.rfind(" at line ") {
        message.truncate(end);
    }
    match message.as_str() {
        "expected ident" => "expected null, true or false".to_owned(),
        _ => message,
    }
}

/// A fault that JSON's grammar allows, with its path, innermost segment first. Segments are added
/// while the parse unwinds, so that a valid text does not pay for them.
struct Finding {
    kind: FindingKind,
    way: Vec<String>,
}

enum FindingKind {
    DuplicateKey,
    TooDeep,
}

impl Finding {
    fn into_fault(self, depth_max: usize) -> JsonFault {
        let mut pointer = String::new();
        for segment in self.way.iter().rev() {
            push_segment(&mut pointer, segment);
        }
        match self.kind {
            FindingKind::DuplicateKey => JsonFault::DuplicateKey { pointer },
            FindingKind::TooDeep => JsonFault::TooDeep { pointer, depth_max },
        }
    }
}

/// A float from this size on has no fraction, and may come from an integer of more than 64 bits.
const LARGE: f64 = 9_223_372_036_854_775_808.0;

struct Node<'a> {
    finding: &'a mut Option<Finding>,
    /// Whether the text has a float of at least [`LARGE`].
    is_large: &'a mut bool,
    depth: usize,
    depth_max: usize,
}

impl Node<'_> {
    /// The node of a member, one level down. Fails if that is too deep.
    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > self.depth_max {
            *self.finding = Some(Finding {
                kind: FindingKind::TooDeep,
                way: Vec::new(),
            });
            return Err(E::custom("nested too deeply"));
        }
        Ok(())
    }

    fn child(&mut self) -> Node<'_> {
        Node {
            finding: self.finding,
            is_large: self.is_large,
            depth: self.depth,
            depth_max: self.depth_max,
        }
    }

    fn passed(&mut self, segment: impl FnOnce() -> String) {
        if let Some(finding) = self.finding {
            finding.way.push(segment());
        }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        *self.is_large |= value.abs() >= LARGE;
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut array = Vec::new();
        loop {
            match items.next_element_seed(self.child()) {
                Ok(Some(item)) => array.push(item),
                Ok(None) => return Ok(Value::Array(array)),
                Err(error) => {
                    self.passed(|| array.len().to_string());
                    return Err(error);
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if object.contains_key(&key) {
                *self.finding = Some(Finding {
                    kind: FindingKind::DuplicateKey,
                    way: vec![key],
                });
                return Err(A::Error::custom("duplicate key"));
            }
            match members.next_value_seed(self.child()) {
                Ok(value) => object.insert(key, value),
                Err(error) => {
                    self.passed(|| key);
                    return Err(error);
                }
            };
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> JsonFault {
        parse(text.as_bytes(), 8).expect_err(text).fault
    }

    #[test]
    fn valid_json_is_read_as_serde_json_reads_it() {
        let text = r#"{"b": [1, -2, 2.5, true, null, "x\u00e9"], "a": {"c": {}}}"#;
        let value = parse(text.as_bytes(), 8).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(
            value.to_string(),
            r#"{"a":{"c":{}},"b":[1,-2,2.5,true,null,"xé"]}"#
        );
    }

    #[test]
    fn a_duplicate_key_is_named_by_its_pointer() {
        let duplicate = |pointer: &str| JsonFault::DuplicateKey {
            pointer: pointer.into(),
        };
        assert_eq!(fault(r#"{"a": 1, "a": 1}"#), duplicate("/a"));
        assert_eq!(fault(r#"{"a": 1, "\u0061": 2}"#), duplicate("/a"));
        assert_eq!(
            fault(r#"{"x": [0, {"y/z": {"~": 1, "~": 2}}]}"#),
            duplicate("/x/1/y~1z/~0")
        );
    }

    #[test]
    fn nesting_beyond_the_limit_is_named_by_its_pointer() {
        assert!(parse(br#"[[[[[[[[]]]]]]]]"#, 8).is_ok());
        let too_deep = JsonFault::TooDeep {
            pointer: "/0/0/0/0/0/0/0/k".into(),
            depth_max: 8,
        };
        assert_eq!(fault(r#"[[[[[[[{"k":{}}]]]]]]]"#), too_deep);
        let hostile = "[".repeat(60_000);
        assert!(matches!(fault(&hostile), JsonFault::TooDeep { .. }));
        assert!(matches!(
            parse(hostile.as_bytes(), usize::MAX).unwrap_err().fault,
            JsonFault::TooDeep { .. }
        ));
    }

    #[test]
    fn an_integer_of_more_than_64_bits_is_named_by_its_pointer() {
        for (text, digits, line, column) in [
            ("18446744073709551616", "18446744073709551616", 1, 20),
            ("[-9223372036854775809]", "-9223372036854775809", 1, 21),
            (
                "{\"a\": 1e300,\n  \"b\\\"1\": [1e20, 100000000000000000000, 1]}",
                "100000000000000000000",
                2,
                38,
            ),
        ] {
            let error = parse(text.as_bytes(), 8).unwrap_err();
            assert_eq!(error.fault, JsonFault::Integer(digits.to_owned()), "{text}");
            assert_eq!((error.line, error.column), (line, column), "{text}");
        }
        for text in [
            "[18446744073709551615,-9223372036854775808,-0]",
            r#"{"100000000000000000000":[1e300,100000000000000000000.0,1E20,"\\",
            "100000000000000000000\""]}"#,
        ] {
            let value = parse(text.as_bytes(), 8).unwrap();
            assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        }
    }

    #[test]
    fn a_syntax_error_has_line_and_column() {
        let error = parse(b"{\n  \"a\": 1,\n  \"b\": oops\n}", 8).unwrap_err();
        assert_eq!((error.line, error.column), (3, 8));
        assert_eq!(error.fault, JsonFault::Syntax("expected value".into()));
    }

    #[test]
    fn a_text_that_is_not_exactly_one_value_is_refused() {
        let cases: [&[u8]; 12] = [
            b"",
            b"{",
            b"{} {}",
            b"{}x",
            b"{'a': 1}",
            b"[1,]",
            b"NaN",
            b"01",
            b"1e999",
            b"\xef\xbb\xbf{}",
            b"{\"a\": \"\xff\"}",
            b"{\"a\": \"\\ud800\"}",
        ];
        for case in cases {
            let error = parse(case, 8).expect_err("must be refused");
            assert!(
                matches!(error.fault, JsonFault::Syntax(_)),
                "{case:?}: {error}"
            );
        }
    }
}
