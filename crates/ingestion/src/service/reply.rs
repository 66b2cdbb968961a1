//! Answers: their bodies and their headers.

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use waybill_http::media_type::JSON;
use waybill_http::payload::Payload;
use waybill_http::problem::{Kind, Problem};

use crate::docs::Docs;

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
pub fn page(html: Bytes) -> Reply {
    let mut reply = whole(StatusCode::OK, HTML, html);
    set_static(
        &mut reply,
        header::CONTENT_SECURITY_POLICY,
        Docs::CONTENT_SECURITY_POLICY,
    );
    set_static(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
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
