//! Answers: their bodies and their headers.

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use waybill_http::Cors;
use waybill_http::media_type::JSON;
use waybill_http::payload::Payload;
use waybill_http::problem::{Kind, Problem};

use crate::docs::{Page, PageFile};

const HTML: &str = "text/html; charset=utf-8";

/// An answer.
pub type Reply = Response<Payload>;

/// The problem of an unknown path.
pub fn not_found() -> Problem {
    Problem::new(Kind::NotFound, "See /openapi.json for available paths.")
}

/// An error answer.
pub fn problem(problem: &Problem) -> Reply {
    problem.to_response().map(|body| Payload::Whole(Some(body)))
}

/// A JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("views have string keys and finite numbers");
    whole(status, JSON, body.into())
}

/// An HTML page.
pub fn page(page: Page) -> Reply {
    let mut reply = whole(StatusCode::OK, HTML, page.html);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, page.policy);
    set_static(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    reply
}

/// A file of a page, compressed if the client takes gzip.
pub fn file(file: &PageFile, request: &HeaderMap) -> Reply {
    let gzip = file.gzip();
    let is_compressed = gzip.is_some();
    let gzip = gzip.filter(|_| takes_gzip(request));
    let is_gzip = gzip.is_some();
    let body = gzip.unwrap_or_else(|| file.plain());
    let mut reply = whole(StatusCode::OK, file.media_type, body);
    if is_gzip {
        set_static(&mut reply, header::CONTENT_ENCODING, "gzip");
    }
    if is_compressed {
        set_static(&mut reply, header::VARY, "Accept-Encoding");
    }
    let caching = match file.is_immutable {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    set_static(&mut reply, header::CACHE_CONTROL, caching);
    set_static(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    reply
}

/// Whether a client names gzip among the encodings that it takes, and does not exclude it.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let given = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut encodings = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    encodings.any(|encoding| {
        let (name, weight) = encoding.split_once(';').unwrap_or((encoding, ""));
        let weight = weight.trim().strip_prefix("q=").map(str::parse::<f32>);
        name.trim().eq_ignore_ascii_case("gzip") && weight != Some(Ok(0.0))
    })
}

/// The answer to a preflight request that has permission.
pub fn preflight() -> Reply {
    let mut reply = Response::new(Payload::Whole(None));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    Cors::answer_preflight(reply.headers_mut());
    reply
}

/// A redirect.
pub fn redirect(to: &'static str) -> Reply {
    let mut reply = Response::new(Payload::Whole(None));
    *reply.status_mut() = StatusCode::FOUND;
    set_static(&mut reply, header::LOCATION, to);
    reply
}

/// An answer with this whole body.
pub fn whole(status: StatusCode, media_type: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Payload::Whole(Some(body)));
    *reply.status_mut() = status;
    set_static(&mut reply, header::CONTENT_TYPE, media_type);
    reply
}

/// Sets a header.
pub fn set(reply: &mut Reply, name: header::HeaderName, value: impl AsRef<str>) {
    let value = HeaderValue::from_str(value.as_ref()).expect("ids, numbers and dashes are visible");
    reply.headers_mut().insert(name, value);
}

/// Sets a header.
pub fn set_static(reply: &mut Reply, name: header::HeaderName, value: &'static str) {
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::Docs;

    #[test]
    fn a_file_is_compressed_only_for_clients_that_take_gzip() {
        let encoding = |accepted: &'static str| {
            let accepted = HeaderValue::from_static(accepted);
            let request = [(header::ACCEPT_ENCODING, accepted)].into_iter().collect();
            let script = Docs::file("swagger-ui-5.35.0.js").unwrap();
            let reply = file(&script, &request);
            let encoding = reply.headers().get(header::CONTENT_ENCODING).cloned();
            encoding.map(|encoding| encoding.to_str().unwrap().to_owned())
        };
        for accepted in ["gzip", "br, GZIP;q=0.5", "gzip;q=1.0"] {
            assert_eq!(encoding(accepted).as_deref(), Some("gzip"), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "gzip; q=0.000"] {
            assert_eq!(encoding(accepted), None, "{accepted}");
        }
    }
}
