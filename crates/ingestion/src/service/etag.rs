//! Entity tags: a client that already has the current state does not receive it again.
//!
//! What must hold: two answers have the same tag only if their bytes are the same. So the tag is a
//! hash of the body, and needs no list of everything that the body depends on, such as the rights
//! of the caller and the configured workflows.

use std::fmt::Write as _;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use sha2::{Digest as _, Sha256};
use waybill_http::payload::Payload;

use super::reply::Reply;

/// How many bytes of the hash a tag has.
const TAG_BYTES: usize = 16;

/// Gives an answer the tag of its body, or replaces it with 304 if the client has that body.
pub(super) fn tagged(mut reply: Reply, request: &HeaderMap) -> Reply {
    let Payload::Whole(Some(body)) = reply.body() else {
        return reply;
    };
    let tag = tag_of(body);
    if matches(request, &tag) {
        let headers = std::mem::take(reply.headers_mut());
        reply = Response::new(Payload::Whole(None));
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        *reply.headers_mut() = headers;
        reply.headers_mut().remove(header::CONTENT_TYPE);
    }
    let value = HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes are visible");
    reply.headers_mut().insert(header::ETAG, value);
    reply
}

fn tag_of(body: &[u8]) -> String {
    let hash = Sha256::digest(body);
    let mut tag = String::with_capacity(2 * TAG_BYTES + 2);
    tag.push('"');
    for byte in &hash[..TAG_BYTES] {
        // Writing to a string cannot fail.
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    tag
}

/// Whether the client names this tag, or any (RFC 9110, section 13.1.2: tags are compared weakly).
fn matches(request: &HeaderMap, tag: &str) -> bool {
    let given = request.get_all(header::IF_NONE_MATCH).iter();
    let mut tags = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    tags.any(|given| given == "*" || given.strip_prefix("W/").unwrap_or(given) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::reply::json;

    fn answered(if_none_match: &[&str]) -> Reply {
        let mut request = HeaderMap::new();
        for value in if_none_match {
            request.append(header::IF_NONE_MATCH, value.parse().unwrap());
        }
        tagged(json(StatusCode::OK, &"state"), &request)
    }

    #[test]
    fn a_client_that_names_the_tag_gets_304_without_a_body() {
        let fresh = answered(&[]);
        assert_eq!(fresh.status(), StatusCode::OK);
        let tag = fresh.headers()[header::ETAG].to_str().unwrap().to_owned();
        let (weak, listed) = (format!("W/{tag}"), format!("\"other\" , {tag}"));
        for known in [
            &[&*tag][..],
            &[&*weak],
            &[&*listed],
            &["*"],
            &["\"x\"", &*tag],
        ] {
            let reply = answered(known);
            assert_eq!(reply.status(), StatusCode::NOT_MODIFIED, "{known:?}");
            assert!(matches!(reply.body(), Payload::Whole(None)));
            assert_eq!(reply.headers()[header::ETAG], *tag);
            assert!(!reply.headers().contains_key(header::CONTENT_TYPE));
        }
        let unquoted = tag.trim_matches('"');
        for other in [&["\"other\""][..], &[unquoted], &[""]] {
            assert_eq!(answered(other).status(), StatusCode::OK, "{other:?}");
        }
    }
}
