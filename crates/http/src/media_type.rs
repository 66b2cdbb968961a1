//! The accepted media types of bodies, and those of answers.

use hyper::header::{self, HeaderMap, HeaderValue};

use crate::problem::{Kind, Problem};

/// The media type of requests and answers.
pub const JSON: &str = "application/json";
/// The media type of batches.
pub const NDJSON: &str = "application/x-ndjson";
/// The media type of event streams.
pub const EVENT_STREAM: &str = "text/event-stream";

/// Refuses a body of another media type, or with a content encoding.
///
/// # Errors
///
/// [`Kind::UnsupportedMediaType`].
pub fn check_media_type(headers: &HeaderMap, expected: &'static str) -> Result<(), Problem> {
    match is_accepted(headers, expected) {
        true => Ok(()),
        false => Err(refusal(requirement(expected))),
    }
}

/// Checks optional JSON in the same way: a request without a body needs the header, too, so that a
/// page of another site cannot send it without a CORS preflight.
///
/// # Errors
///
/// [`Kind::UnsupportedMediaType`].
pub fn check_media_type_of_optional_json(headers: &HeaderMap) -> Result<(), Problem> {
    match is_accepted(headers, JSON) {
        true => Ok(()),
        false => {
            let note = "The header is required even without a body.";
            Err(refusal(format!("{} {note}", requirement(JSON))))
        }
    }
}

fn refusal(detail: String) -> Problem {
    Problem::new(Kind::UnsupportedMediaType, detail)
}

fn requirement(expected: &str) -> String {
    format!("Send Content-Type: {expected}, in UTF-8 and without Content-Encoding.")
}

fn is_accepted(headers: &HeaderMap, expected: &str) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(given), None) = (types.next(), types.next()) else {
        return false;
    };
    let Ok(given) = given.to_str() else {
        return false;
    };
    let mut parts = given.split(';').map(str::trim);
    if !parts
        .next()
        .is_some_and(|name| name.eq_ignore_ascii_case(expected))
    {
        return false;
    }
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    parts.all(is_utf8) && encodings.all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_mentions_empty_bodies_only_if_they_are_allowed() {
        let detail =
            |checked: Result<(), Problem>| checked.unwrap_err().details().detail.into_owned();
        let headers = HeaderMap::new();
        assert_eq!(
            detail(check_media_type(&headers, NDJSON)),
            "Send Content-Type: application/x-ndjson, in UTF-8 and without Content-Encoding."
        );
        let detail = detail(check_media_type_of_optional_json(&headers));
        assert!(detail.ends_with("The header is required even without a body."));
    }

    #[test]
    fn only_utf8_json_is_accepted() {
        let check = |types: &[&'static str], encoding: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            for given in types {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_static(given));
            }
            if let Some(encoding) = encoding {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
            check_media_type(&headers, JSON).is_ok()
        };
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
        ] {
            assert!(check(&[good], None), "{good}");
        }
        assert!(check(&["application/json"], Some("identity")));
        for bad in [
            "",
            "text/plain",
            "application/jsonp",
            "application/json; charset=latin1",
        ] {
            assert!(!check(&[bad], None), "{bad}");
        }
        assert!(!check(&[], None));
        assert!(!check(&["application/json", "application/json"], None));
        assert!(!check(&["application/json"], Some("gzip")));
    }
}
