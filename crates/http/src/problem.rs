//! Error answers: RFC 9457 problem details.
//!
//! What must hold: `type` and `status` of a problem never change once published, and each type is a
//! relative reference to a page of this server that says what to do about the problem.

mod details;
mod field;
mod page;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::{Foreign, Refusal};
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

pub use self::details::ProblemDetails;
pub use self::field::FieldProblem;
pub use self::page::{STYLE, page};
use crate::json::{JsonError, JsonFault};
use crate::request_id::RequestId;

/// The media type of problems.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The kind of a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The request breaks HTTP's rules.
    MalformedRequest,
    /// Ambiguous request length.
    AmbiguousLength,
    /// The body ended early, or could not be read.
    IncompleteBody,
    /// The body is not JSON.
    MalformedJson,
    /// A key appears twice in one object.
    DuplicateKey,
    /// The JSON is nested too deeply.
    NestingTooDeep,
    /// The caller is not authenticated.
    Unauthenticated,
    /// The keys that verify the token have not been fetched.
    KeysUnavailable,
    /// The caller lacks the scope.
    InsufficientScope,
    /// The caller may access another tenant only.
    AnotherTenant,
    /// The request is for a host that this listener does not answer for.
    UnknownHost,
    /// A web page of another origin requests a change.
    ForeignOrigin,
    /// The path is unknown.
    NotFound,
    /// No operation has this id, or it has expired.
    UnknownOrExpired,
    /// The resource does not support this method.
    MethodNotAllowed,
    /// The client was too slow.
    RequestTimeout,
    /// The id belongs to another request.
    IdConflict,
    /// The operation is final.
    OperationFinal,
    /// A step that uses the fields to change has already been requested.
    StepSent,
    /// The operation is not in a state that allows this verb.
    VerbRefused,
    /// The body, or the line of a batch, is too long.
    BodyTooLarge,
    /// The body is of another media type.
    UnsupportedMediaType,
    /// Fields have wrong values.
    InvalidValues,
    /// The head is too long.
    HeadTooLarge,
    /// An error in this program.
    Internal,
    /// The stored row of the operation is damaged.
    RowUnreadable,
    /// The tenant of the request has reached its rate limit.
    TooManyRequests,
    /// The process has reached its limit on requests in progress.
    Overloaded,
    /// The broker does not accept the request.
    BrokerUnavailable,
    /// The disk has too little free space.
    InsufficientStorage,
    /// The state store does not answer.
    StoreUnavailable,
    /// The request may or may not have been accepted.
    OutcomeUnknown,
    /// This process does not drive the partition.
    PartitionNotHere,
    /// This process is still starting.
    Starting,
    /// This process is shutting down.
    ShuttingDown,
    /// A partition could not be stopped or started.
    PartitionFailed,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 36] = [
        Self::MalformedRequest,
        Self::AmbiguousLength,
        Self::IncompleteBody,
        Self::MalformedJson,
        Self::DuplicateKey,
        Self::NestingTooDeep,
        Self::Unauthenticated,
        Self::KeysUnavailable,
        Self::InsufficientScope,
        Self::AnotherTenant,
        Self::UnknownHost,
        Self::ForeignOrigin,
        Self::NotFound,
        Self::UnknownOrExpired,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::IdConflict,
        Self::OperationFinal,
        Self::StepSent,
        Self::VerbRefused,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidValues,
        Self::HeadTooLarge,
        Self::Internal,
        Self::RowUnreadable,
        Self::TooManyRequests,
        Self::Overloaded,
        Self::BrokerUnavailable,
        Self::InsufficientStorage,
        Self::StoreUnavailable,
        Self::OutcomeUnknown,
        Self::PartitionNotHere,
        Self::Starting,
        Self::ShuttingDown,
        Self::PartitionFailed,
    ];

    /// Its `type`: a relative reference that never changes.
    pub const fn uri(self) -> &'static str {
        self.facts().0
    }

    /// The name at the end of its `type`.
    pub fn name(self) -> &'static str {
        self.uri().trim_start_matches("/problems/")
    }

    /// Its status code.
    pub const fn status(self) -> StatusCode {
        self.facts().1
    }

    /// Its `title`, the same for every problem of the kind.
    pub const fn title(self) -> &'static str {
        self.facts().2
    }

    /// What to do about it, for the page that its `type` refers to.
    pub const fn advice(self) -> &'static str {
        self.facts().3
    }

    #[rustfmt::skip]
    const fn facts(self) -> (&'static str, StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::MalformedRequest => ("/problems/malformed-request", S::BAD_REQUEST,
                "The request is not valid HTTP",
                "The server closes the connection because it cannot find the start of the next \
                 request. Correct the client. Nothing was accepted."),
            Self::AmbiguousLength => ("/problems/ambiguous-length", S::BAD_REQUEST,
                "Ambiguous request length",
                "Give either Content-Length or Transfer-Encoding, once. A proxy could read such a \
                 request differently, so the server refuses it and closes the connection."),
            Self::IncompleteBody => ("/problems/incomplete-body", S::BAD_REQUEST,
                "The body ended early",
                "Send as many bytes as the request announces. Nothing was accepted."),
            Self::MalformedJson => ("/problems/malformed-json", S::BAD_REQUEST,
                "The body is malformed or ambiguous JSON",
                "The detail gives the line and column. The body must be exactly one JSON value in \
                 UTF-8, without integers of more than 64 bits."),
            Self::DuplicateKey => ("/problems/duplicate-key", S::BAD_REQUEST,
                "Duplicate key in object",
                "JSON parsers differ on which of the two values counts, so the request is refused. The errors point at the second key."),
            Self::NestingTooDeep => ("/problems/nesting-too-deep", S::BAD_REQUEST,
                "The JSON is nested too deeply",
                "Send flatter data, or raise http.jsonDepthMax."),
            Self::Unauthenticated => ("/problems/unauthenticated", S::UNAUTHORIZED,
                "Authentication required",
                "Send Authorization: Bearer TOKEN with a valid token that has not expired. The \
                 code gives the reason. Nothing was accepted."),
            Self::KeysUnavailable => ("/problems/keys-unavailable", S::SERVICE_UNAVAILABLE,
                "Keys of the issuer unavailable",
                "Nothing was accepted. Send the request again after the time in Retry-After. The \
                 server cannot fetch the keys that verify the token; its log and GET /readyz on \
                 the admin port give the cause."),
            Self::InsufficientScope => ("/problems/insufficient-scope", S::FORBIDDEN,
                "Insufficient scope",
                "The detail names the scope that the request needs, or says that the groups of the \
                 token give no rights. Ask an administrator for the scope, or for a group that has \
                 it. Nothing was accepted."),
            Self::AnotherTenant => ("/problems/another-tenant", S::FORBIDDEN,
                "The token is for another tenant",
                "Omit the tenant: the token determines it. Nothing was accepted."),
            Self::UnknownHost => ("/problems/unknown-host", S::MISDIRECTED_REQUEST,
                "Unknown host",
                "Use an IP address, localhost, or a name listed in http.hosts (admin.hosts on the \
                 admin port). A listener without authentication refuses all other names, so that \
                 a web page cannot reach it through its own host name (DNS rebinding). \
                 Nothing was accepted."),
            Self::ForeignOrigin => ("/problems/foreign-origin", S::FORBIDDEN,
                "Request from a web page of another origin",
                "A listener without authentication accepts changes only from web pages of its own \
                 origin. Enable auth, list the host of a proxy that terminates TLS in http.hosts \
                 (admin.hosts on the admin port), or omit Origin and Sec-Fetch-Site in a client \
                 that is not a browser. Nothing was accepted."),
            Self::NotFound => ("/problems/not-found", S::NOT_FOUND,
                "Not found",
                "See /openapi.json for available paths."),
            Self::UnknownOrExpired => ("/problems/unknown-or-expired", S::NOT_FOUND,
                "Operation unknown or expired",
                "No request with this id was accepted, or the retention of its operation has \
                 passed."),
            Self::MethodNotAllowed => ("/problems/method-not-allowed", S::METHOD_NOT_ALLOWED,
                "Method not allowed",
                "The Allow header lists the allowed methods."),
            Self::RequestTimeout => ("/problems/request-timeout", S::REQUEST_TIMEOUT,
                "The request did not arrive in time",
                "Send the request again, with shorter pauses. No part of it was accepted."),
            Self::IdConflict => ("/problems/id-conflict", S::CONFLICT,
                "Another request has this id",
                "An id always belongs to the same request. Repeat exactly the same request, or choose a new id."),
            Self::OperationFinal => ("/problems/operation-final", S::CONFLICT,
                "The operation is final",
                "It can no longer be cancelled or rescheduled. GET shows how it ended."),
            Self::StepSent => ("/problems/step-sent", S::CONFLICT,
                "A step that uses a changed field was already requested",
                "The input of a requested step cannot change. Cancel the operation and submit a \
                 new request."),
            Self::VerbRefused => ("/problems/verb-refused", S::CONFLICT,
                "The state of the operation does not allow this",
                "The code gives the reason. GET lists in `verbs` what the current state allows."),
            Self::BodyTooLarge => ("/problems/body-too-large", S::PAYLOAD_TOO_LARGE,
                "The body is too large",
                "The detail gives the limit. In a batch, it applies to each line."),
            Self::UnsupportedMediaType => ("/problems/unsupported-media-type", S::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type",
                "Send application/json (application/x-ndjson for a batch) in UTF-8, without Content-Encoding."),
            Self::InvalidValues => ("/problems/invalid-values", S::UNPROCESSABLE_ENTITY,
                "Invalid values",
                "The errors list each field with what was expected."),
            Self::HeadTooLarge => ("/problems/head-too-large", S::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "The request head is too large",
                "Send fewer or shorter header fields."),
            Self::Internal => ("/problems/internal", S::INTERNAL_SERVER_ERROR,
                "Internal error",
                "The server's log gives the cause. The request may have been accepted: repeat it \
                 with the same id."),
            Self::RowUnreadable => ("/problems/row-unreadable", S::INTERNAL_SERVER_ERROR,
                "The stored operation cannot be read",
                "Nothing was accepted. The server's log names the operation and the cause. Other \
                 operations are not affected. An operator must inspect the state store."),
            Self::TooManyRequests => ("/problems/too-many-requests", S::TOO_MANY_REQUESTS,
                "Too many requests from the tenant",
                "The request was not accepted. Send it again after the time in Retry-After. \
                 http.tenantLimits sets the limit."),
            Self::Overloaded => ("/problems/overloaded", S::SERVICE_UNAVAILABLE,
                "Server overloaded",
                "The request was not accepted. Send it again after the time in Retry-After."),
            Self::BrokerUnavailable => ("/problems/broker-unavailable", S::SERVICE_UNAVAILABLE,
                "Broker unavailable",
                "The request was not accepted. Send it again after the time in Retry-After."),
            Self::InsufficientStorage => ("/problems/insufficient-storage", S::SERVICE_UNAVAILABLE,
                "Insufficient disk space",
                "The request was not accepted. Send it again after the time in Retry-After. \
                 Accepted operations continue. Free disk space on the machine of the broker and \
                 the store; new requests are then accepted again (storage.freeMin, \
                 broker.requestsDiskBytesMax)."),
            Self::StoreUnavailable => ("/problems/store-unavailable", S::SERVICE_UNAVAILABLE,
                "State store unavailable",
                "Nothing was accepted. Send the request again after the time in Retry-After."),
            Self::OutcomeUnknown => ("/problems/outcome-unknown", S::GATEWAY_TIMEOUT,
                "Outcome unknown",
                "The request may have been accepted. Repeat exactly the same request with the \
                 problem's id as Idempotency-Key, or as the id in the body: it is accepted only \
                 once."),
            Self::PartitionNotHere => ("/problems/partition-not-here", S::NOT_FOUND,
                "This process does not own the partition",
                "GET /schedulers lists the partitions that it owns."),
            Self::Starting => ("/problems/starting", S::SERVICE_UNAVAILABLE,
                "Starting",
                "Send the request again when GET /readyz returns 200, or after the time in \
                 Retry-After."),
            Self::ShuttingDown => ("/problems/shutting-down", S::SERVICE_UNAVAILABLE,
                "Shutting down",
                "Send the request to the process that replaces this one, after the time in \
                 Retry-After."),
            Self::PartitionFailed => ("/problems/partition-failed", S::INTERNAL_SERVER_ERROR,
                "The partition could not be stopped or started",
                "The detail and the log give the cause. GET /schedulers shows the state of the \
                 partition. It is safe to try again."),
        }
    }
}

/// Why a request is refused. It becomes [`ProblemDetails`] with headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// What the type, the title and the status say.
    pub kind: Kind,
    detail: Cow<'static, str>,
    /// The invalid fields, query parameters and headers.
    pub errors: Vec<FieldProblem>,
    id: Option<Box<str>>,
    code: Option<&'static str>,
    /// The header value for its kind: the allowed methods, or the authentication challenge.
    header: Option<&'static str>,
    /// How long to wait before the next try, in seconds, if known.
    wait: Option<NonZeroU32>,
}

/// The limit on the errors of a problem, in bytes. A request can have a wrong value every few
/// bytes, and each error takes far more in the answer.
const ERRORS_BYTES_MAX: usize = 16 * 1024;

/// How long to wait if a dependency is unavailable or a limit is reached. Long enough for a restart
/// to begin, and short enough to return soon after it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Problem {
    /// Creates a problem of `kind` with the detail of this case.
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            errors: Vec::new(),
            id: None,
            code: None,
            header: None,
            wait: None,
        }
    }

    /// The problem of wrong fields, parameters or headers, of which there must be at least one.
    /// Lists as many of the first ones as fit in 16 KiB.
    pub fn invalid(mut errors: Vec<FieldProblem>) -> Self {
        let count = errors.len();
        errors.iter_mut().for_each(FieldProblem::shorten);
        let mut bytes = 0;
        let fit = errors.iter().take_while(|error| {
            bytes += error.bytes();
            bytes <= ERRORS_BYTES_MAX
        });
        let fit = fit.count();
        errors.truncate(fit);
        errors.shrink_to_fit();
        let detail = match count {
            1 => "1 value is invalid.".into(),
            _ if fit < count => format!("{count} values are invalid; the first {fit} are listed."),
            _ => format!("{count} values are invalid."),
        };
        Self {
            errors,
            ..Self::new(Kind::InvalidValues, detail)
        }
    }

    /// The problem of a method that the resource does not support.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let detail = format!("Allowed methods: {allow}.");
        Self {
            header: Some(allow),
            ..Self::new(Kind::MethodNotAllowed, detail)
        }
    }

    /// The approximate size in bytes.
    pub fn bytes(&self) -> usize {
        let errors: usize = self.errors.iter().map(FieldProblem::bytes).sum();
        size_of::<Self>() + self.detail.len() + errors
    }

    /// Sets the id: that of the operation, or the one to repeat the request with.
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Self {
            id: Some(id.into().into_boxed_str()),
            ..self
        }
    }

    /// Appends to the detail.
    pub fn with_more(self, more: &str) -> Self {
        Self {
            detail: (self.detail.into_owned() + more).into(),
            ..self
        }
    }

    /// Sets the stable code for the reason, for programs.
    pub fn with_code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    /// Sets how long to wait before the next try.
    pub fn with_wait(self, wait: Duration) -> Self {
        let seconds = u32::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
        Self {
            wait: NonZeroU32::new(seconds.max(1)),
            ..self
        }
    }

    /// Sets the challenge that says how to authenticate.
    pub fn with_challenge(self, challenge: &'static str) -> Self {
        Self {
            header: Some(challenge),
            ..self
        }
    }

    /// The code of a denied access; `None` for other problems.
    pub fn denial(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Unauthenticated => self.code,
            Kind::InsufficientScope | Kind::AnotherTenant | Kind::KeysUnavailable => {
                Some(self.kind.name())
            }
            _ => None,
        }
    }

    /// Its status code.
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The value of `Retry-After`, if the answer has one.
    pub fn retry_after(&self) -> Option<Duration> {
        let is_unavailable = self.status() == StatusCode::SERVICE_UNAVAILABLE;
        let known = self
            .wait
            .map(|seconds| Duration::from_secs(seconds.get().into()));
        known.or(is_unavailable.then_some(RETRY_AFTER))
    }

    /// Whether the connection must end after the answer, because the start of the next request is
    /// unknown.
    fn ends_connection(&self) -> bool {
        matches!(
            self.kind,
            Kind::MalformedRequest
                | Kind::AmbiguousLength
                | Kind::HeadTooLarge
                | Kind::IncompleteBody
                | Kind::RequestTimeout
        )
    }

    /// The answer for the problem. Its kind is an extension, by which the server counts it.
    pub fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.to_json().into());
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self.kind);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(after) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, after.as_secs().max(1).into());
        }
        if let Some(value) = self.header {
            let name = match self.kind {
                Kind::MethodNotAllowed => header::ALLOW,
                _ => header::WWW_AUTHENTICATE,
            };
            headers.insert(name, HeaderValue::from_static(value));
        }
        if self.ends_connection() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The body of the answer.
    pub fn details(&self) -> ProblemDetails<'_> {
        ProblemDetails {
            kind: self.kind.uri().into(),
            title: self.kind.title().into(),
            status: self.status().as_u16(),
            detail: (&*self.detail).into(),
            errors: (&*self.errors).into(),
            id: self.id.as_deref().map(Cow::from),
            code: self.code.map(Cow::from),
            request_id: None,
        }
    }

    /// The body of the answer to the current request, as JSON.
    fn to_json(&self) -> Vec<u8> {
        let request_id = RequestId::current();
        let details = ProblemDetails {
            request_id: request_id.as_ref().map(|id| id.as_str().into()),
            ..self.details()
        };
        serde_json::to_vec(&details).expect("strings and numbers always serialize")
    }
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Self {
        let detail = error.to_string();
        let (kind, pointer, expected) = match error.fault {
            JsonFault::Syntax(_) | JsonFault::Integer(_) => {
                return Self::new(Kind::MalformedJson, sentence(&detail));
            }
            JsonFault::DuplicateKey { pointer } => {
                (Kind::DuplicateKey, pointer, "must appear once".to_owned())
            }
            JsonFault::TooDeep { pointer, depth_max } => {
                let expected = format!("must not be nested deeper than {depth_max} levels");
                (Kind::NestingTooDeep, pointer, expected)
            }
        };
        let errors = vec![FieldProblem::new(pointer, expected)];
        Self {
            errors,
            ..Self::new(kind, sentence(&detail))
        }
    }
}

fn sentence(detail: &str) -> String {
    let mut chars = detail.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

impl From<Foreign> for Problem {
    fn from(foreign: Foreign) -> Self {
        let kind = match foreign {
            Foreign::Host(_) => Kind::UnknownHost,
            Foreign::Page(_) => Kind::ForeignOrigin,
        };
        let mut detail = foreign.to_string();
        detail.push('.');
        if let Some(first) = detail.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        Self::new(kind, detail)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::TwoFramings | Refusal::BadContentLength | Refusal::BadTransferEncoding => {
                Kind::AmbiguousLength
            }
            Refusal::TooLarge => Kind::HeadTooLarge,
            Refusal::HeadTimeout => Kind::RequestTimeout,
            Refusal::Malformed | Refusal::BareLineFeed | Refusal::BadHost => Kind::MalformedRequest,
        };
        Self::new(kind, refusal.detail())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.to_response().map(Body::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json::parse;

    fn shown(problem: &Problem) -> Value {
        serde_json::from_slice(&problem.to_json()).unwrap()
    }

    #[test]
    fn a_problem_has_the_members_of_rfc_9457_and_the_wrong_fields() {
        let problem = Problem::invalid(vec![FieldProblem::new("/a", "must be a string")]);
        assert_eq!(
            shown(&problem),
            json!({
                "type": "/problems/invalid-values",
                "title": "Invalid values",
                "status": 422,
                "detail": "1 value is invalid.",
                "errors": [{"pointer": "/a", "detail": "must be a string"}],
            })
        );
    }

    #[test]
    fn a_request_with_many_wrong_values_has_the_first_of_them_named() {
        let wrong = |count: usize| {
            let errors = (0..count).map(|nth| FieldProblem::new(format!("/{nth}"), "is not known"));
            Problem::invalid(errors.collect())
        };
        let few = wrong(20);
        assert_eq!(shown(&few)["detail"], "20 values are invalid.");
        let many = wrong(10_000);
        let named = many.errors.len();
        assert!(20 < named && named < 1_000, "{named}");
        let detail = format!("10000 values are invalid; the first {named} are listed.");
        assert_eq!(shown(&many)["detail"], detail);
        assert!(many.bytes() <= ERRORS_BYTES_MAX + 1_024, "{}", many.bytes());
    }

    #[test]
    fn json_errors_have_a_position() {
        let problem = Problem::from(parse(b"{\n\"a\": x}", 4).unwrap_err());
        assert_eq!(
            shown(&problem)["detail"],
            "Line 2, column 6: expected value."
        );
        assert_eq!(problem.status(), StatusCode::BAD_REQUEST);

        let problem = Problem::from(parse(br#"{"a": {"b": 1, "b": 2}}"#, 4).unwrap_err());
        assert_eq!(problem.kind, Kind::DuplicateKey);
        assert_eq!(problem.errors[0].pointer.as_deref(), Some("/a/b"));
    }

    #[test]
    fn only_transient_problems_have_a_retry_time() {
        for kind in Kind::ALL {
            let unavailable = kind.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(
                Problem::new(kind, "").retry_after().is_some(),
                unavailable,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn types_are_distinct() {
        let mut uris: Vec<_> = Kind::ALL.iter().map(|kind| kind.uri()).collect();
        uris.sort_unstable();
        uris.dedup();
        assert_eq!(uris.len(), Kind::ALL.len());
        assert!(Kind::ALL.iter().all(|kind| !kind.name().contains('/')));
    }
}
