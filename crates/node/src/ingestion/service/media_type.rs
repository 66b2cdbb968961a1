//! Which bodies are taken, and what answers are.

use hyper::header::{self, HeaderMap, HeaderValue};

use crate::ingestion::problem::{Kind, Problem};

/// The media type of requests and answers.
pub const JSON: &str = "application/json";
/// The media type of batches.
pub const NDJSON: &str = "application/x-ndjson";
/// Refuses a body of another media type, or one that is encoded further.
pub fn check_media_type(headers: &HeaderMap, expected: &'static str) -> Result<(), Problem> {
    let refuse = || {
        let detail = format!(
            "Send Content-Type: {expected}, in UTF-8 and without Content-Encoding. A request that may come without a \
             body needs it, too."
        );
        Err(Problem::new(Kind::UnsupportedMediaType, detail))
    };
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(given), None) = (types.next(), types.next()) else {
        return refuse();
    };
    let Ok(given) = given.to_str() else {
        return refuse();
    };
    let mut parts = given.split(';').map(str::trim);
    if !parts
        .next()
        .is_some_and(|name| name.eq_ignore_ascii_case(expected))
    {
        return refuse();
    }
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !parts.all(is_utf8)
        || !headers
            .get_all(header::CONTENT_ENCODING)
            .iter()
            .all(is_plain)
    {
        return refuse();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_in_utf_8_is_taken() {
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
