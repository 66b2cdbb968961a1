//! JSON values as unmodified text.
//!
//! What must hold: **a value is passed on exactly as it was written**. A number in JSON may have
//! more digits than 64 bits hold. It may identify a resource of a service, and a rounded one would
//! identify another. So values are located in the text, and their own text is passed on.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Error;
use serde_json::value::RawValue;

/// The names and indices in a JSON pointer (RFC 6901).
pub(crate) fn way_of(pointer: &str) -> Vec<Box<str>> {
    let segments = pointer.split('/').skip(1);
    let segment = |segment: &str| segment.replace("~1", "/").replace("~0", "~").into();
    segments.map(segment).collect()
}

/// The value at a path, unless it is `null`.
pub(crate) fn find<'a>(value: &'a RawValue, way: &[Box<str>]) -> Option<&'a RawValue> {
    let found = way.iter().try_fold(value, |value, key| at(value, key))?;
    (found.get() != "null").then_some(found)
}

/// An object's member, or a list's item by its index. Of members with the same name it is the last.
fn at<'a>(value: &'a RawValue, key: &str) -> Option<&'a RawValue> {
    let text = value.get();
    let found = match text.as_bytes().first() {
        Some(b'{') => Member(key).deserialize(&mut serde_json::Deserializer::from_str(text)),
        Some(b'[') => {
            let index: usize = key.parse().ok()?;
            serde_json::from_str::<Vec<&RawValue>>(text).map(|items| items.get(index).copied())
        }
        _ => return None,
    };
    found.ok().flatten()
}

/// The text of a string; `None` for another value.
///
/// # Errors
///
/// If it has an escape that encodes no character.
pub(crate) fn string(value: &RawValue) -> Result<Option<Cow<'_, str>>, Error> {
    let Some(inner) = value.get().strip_prefix('"') else {
        return Ok(None);
    };
    Ok(Some(match inner.strip_suffix('"') {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        _ => Cow::Owned(serde_json::from_str(value.get())?),
    }))
}

/// Finds the member of this name.
struct Member<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = members.next_key_seed(Name(self.0))? {
            if is_it {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a member has this name.
struct Name<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#" {"a": {"b/c": [7, {"~": 18446744073709551617}], "a": null}, "a\u0062": "x\"y", "n": 1.50,
        "n": -0.12345678901234567890123} "#;

    fn found<'a>(value: &'a RawValue, at: &str) -> Option<&'a str> {
        find(value, &way_of(at)).map(RawValue::get)
    }

    #[test]
    fn a_pointer_yields_the_original_text_of_its_value() {
        let value: &RawValue = serde_json::from_str(TEXT).unwrap();
        for (at, expected) in [
            ("/a/b~1c/0", "7"),
            ("/a/b~1c/1/~0", "18446744073709551617"),
            ("/ab", r#""x\"y""#),
            ("/n", "-0.12345678901234567890123"),
            ("", TEXT.trim()),
        ] {
            assert_eq!(found(value, at), Some(expected), "{at}");
        }
        for at in [
            "/a/a",
            "/b",
            "/a/b~1c/2",
            "/a/b~1c/x",
            "/n/0",
            "/ab/0",
            "/a/b",
        ] {
            assert_eq!(found(value, at), None, "{at}");
        }
    }

    #[test]
    fn strings_are_read_and_others_are_none() {
        let read = |text: &str| {
            let value: &RawValue = serde_json::from_str(text).unwrap();
            string(value).map(|text| text.map(Cow::into_owned))
        };
        assert_eq!(read(r#""""#).unwrap().as_deref(), Some(""));
        assert_eq!(read(r#""é""#).unwrap().as_deref(), Some("é"));
        assert_eq!(read(r#""\u00e9\n\\""#).unwrap().as_deref(), Some("é\n\\"));
        assert_eq!(read("12").unwrap(), None);
        read(r#""\ud800""#).unwrap_err();
    }
}
