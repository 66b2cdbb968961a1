//! Responses: small JSON documents, problems, and one stream.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;
use waybill_http::ArrivingBody;
use waybill_http::problem::{FieldProblem, PROBLEM_JSON, ProblemDetails};

use crate::field::FieldError;

/// The maximum size of a request's body.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;

pub(super) type Answer = Response<AnswerBody>;

/// A request that gets no response: its connection (HTTP/1.1) or stream (HTTP/2) is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the request got no response")]
pub struct Unanswered;

/// The body of a response.
pub(super) enum AnswerBody {
    /// The whole body; `None` if it was sent or is empty.
    Whole(Option<Bytes>),
    /// In pieces, as fast as the client reads.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => pieces
                .poll_recv(cx)
                .map(|piece| piece.map(|bytes| bytes.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// A JSON response from serialized text.
pub(super) fn json_text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    with_body(
        status,
        "application/json",
        AnswerBody::Whole(Some(text.into())),
    )
}

/// A JSON response.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    json_text(status, to_json(value))
}

/// A stream of lines of JSON.
pub(super) fn ndjson(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Answer {
    with_body(
        StatusCode::OK,
        "application/x-ndjson",
        AnswerBody::Pieces(pieces),
    )
}

/// `204 No Content`.
pub(super) fn no_content() -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(None));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// Why a request is refused: an RFC 9457 problem with a stable `code`.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: Cow<'static, str>,
    errors: Vec<FieldError>,
    allow: Option<&'static str>,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            errors: Vec::new(),
            allow: None,
        }
    }

    /// Adds the wrong fields.
    pub(super) fn with_errors(self, errors: Vec<FieldError>) -> Self {
        Self { errors, ..self }
    }

    /// `404 Not Found`.
    pub(super) fn not_found(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            format!("{path} does not exist"),
        )
    }

    /// `405 Method Not Allowed`.
    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                format!("the allowed methods are {allow}"),
            )
        }
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let named = problem.errors.into_iter();
        let body = to_json(&ProblemDetails {
            kind: format!("urn:waybill:services:{}", problem.code).into(),
            title: problem
                .status
                .canonical_reason()
                .unwrap_or("Problem")
                .into(),
            status: problem.status.as_u16(),
            detail: problem.detail,
            errors: named
                .map(|error| FieldProblem::new(error.pointer, error.detail))
                .collect(),
            code: Some(problem.code.into()),
            ..ProblemDetails::default()
        });
        let mut answer = with_body(
            problem.status,
            PROBLEM_JSON,
            AnswerBody::Whole(Some(body.into())),
        );
        if let Some(allow) = problem.allow {
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static(allow));
        }
        answer
    }
}

/// Reads a request's whole body.
///
/// # Errors
///
/// If the body is too large or incomplete.
pub(super) async fn read_body(body: ArrivingBody) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body-too-large",
            format!("a body must have at most {BODY_BYTES_MAX} bytes"),
        )),
        Err(error) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "body-unreadable",
            format!("cannot read the body: {error}"),
        )),
    }
}

fn with_body(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("answers have string keys and finite numbers")
}
