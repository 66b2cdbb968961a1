//! The client of the HTTP API.
//!
//! What must hold: every request has a time-out, and every answer a maximum size. A request with an
//! unknown outcome is repeated with the same key, so that it has no second effect.

mod path;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;
use waybill_api::verb::VerbRequest;
use waybill_api::view::{OperationView, VerbAcceptedView};
use waybill_http::problem::{Kind, ProblemDetails};
use waybill_telemetry::VERSION;
use waybill_telemetry::visible::escaped;

use self::path::{OPERATIONS, path_of, query_of, tenant_pair};
use super::OpsError;
use crate::access::{AccessArgs, Silence};
use crate::address::ApiAddress;

/// How long the API may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer may take; longer than the API waits for the brokers.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// The same for interactive commands.
const SOON: Duration = Duration::from_secs(3);
/// The maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The maximum number of tries while the API is busy or does not answer.
const TRIES_MAX: u32 = 4;
/// The pause between tries, if the API names none.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum pause, even if the API names a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The maximum number of wrong fields in an error.
const FIELDS_SHOWN_MAX: usize = 10;

const JSON: &str = "application/json";

/// Why the API gave no usable answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The operation does not exist.
    Unknown,
    /// The operation's state forbids it.
    Refused,
    /// The stored state of this operation is damaged.
    Broken,
    /// The request is wrong for any operation.
    Wrong,
    /// The token lacks the permission.
    Forbidden,
    /// The server's certificate is not trusted.
    Distrusted,
    /// The API is overloaded.
    Overloaded,
    /// The API is unreachable or unavailable.
    Unavailable,
}

/// Why the API gave no usable answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    fault: Fault,
    text: String,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    /// Whether the error is about this one operation, so that others may succeed.
    pub(super) fn is_about_the_operation(&self) -> bool {
        match self.fault {
            Fault::Unknown | Fault::Refused | Fault::Broken => true,
            Fault::Wrong
            | Fault::Forbidden
            | Fault::Distrusted
            | Fault::Overloaded
            | Fault::Unavailable => false,
        }
    }

    /// Whether the API is unreachable or unavailable.
    pub(super) fn is_unavailable(&self) -> bool {
        matches!(self.fault, Fault::Unavailable | Fault::Overloaded)
    }

    /// Whether the API is overloaded.
    pub(super) fn is_overloaded(&self) -> bool {
        self.fault == Fault::Overloaded
    }

    /// Whether the token lacks the permission.
    pub(super) fn is_forbidden(&self) -> bool {
        self.fault == Fault::Forbidden
    }

    /// Whether the operation does not exist.
    pub(super) fn is_unknown(&self) -> bool {
        self.fault == Fault::Unknown
    }

    /// Adds a hint if an unknown ID was looked up without a tenant.
    fn of_id(mut self, tenant: Option<&str>) -> Self {
        if self.is_unknown() && tenant.is_none() {
            let hint = "; for a tenant's operation, add --tenant NAME or use the operation's id";
            // The text may be a sentence.
            let end = self.text.trim_end_matches('.').len();
            self.text.truncate(end);
            self.text.push_str(hint);
        }
        self
    }

    fn unavailable(text: String) -> Self {
        Self {
            fault: Fault::Unavailable,
            text,
        }
    }

    fn of_answer(status: StatusCode, body: &[u8], address: &ApiAddress) -> Self {
        let problem = ProblemDetails::read(body);
        let is = |kind: Kind| problem.kind == kind.uri();
        let fault = match status {
            // Any other 404 is about the address.
            StatusCode::NOT_FOUND if is(Kind::UnknownOrExpired) => Fault::Unknown,
            StatusCode::CONFLICT => Fault::Refused,
            StatusCode::FORBIDDEN => Fault::Forbidden,
            StatusCode::INTERNAL_SERVER_ERROR => Fault::Broken,
            StatusCode::SERVICE_UNAVAILABLE if is(Kind::Overloaded) => Fault::Overloaded,
            status if status.is_client_error() => Fault::Wrong,
            _ => Fault::Unavailable,
        };
        let mut text = problem_text(status, &problem);
        if status == StatusCode::UNAUTHORIZED {
            text.push_str(" (--token-file)");
        }
        // Another server may be at the address.
        if problem.explanation().is_none() || is(Kind::NotFound) {
            let origin = address.origin();
            text = format!(
                "{address} answers {status}: {text} Check that this is the API's address. {origin}"
            );
        }
        Self { fault, text }
    }
}

/// An operation that the API returned.
pub(super) struct Found {
    /// The JSON of the answer.
    pub(super) json: Bytes,
    pub(super) operation: OperationView,
}

/// A page of a list. Its items are shown as they are.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) items: Vec<Box<RawValue>>,
    pub(super) next: Option<String>,
}

/// The answer to a verb.
pub(super) enum Answer {
    /// The request is on its way to the operation's scheduler.
    Asked(VerbAcceptedView),
    /// The operation already was in the requested state.
    AsItIs(Box<OperationView>),
}

/// A client of the API.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    address: ApiAddress,
    patience: Duration,
    tries_max: u32,
}

impl Api {
    pub(super) fn new(address: ApiAddress, access: &AccessArgs) -> Result<Self, OpsError> {
        Self::with_tries(address, access, TRIES_MAX, ANSWER_PATIENCE)
    }

    /// A client for interactive commands: one try, with a short time-out.
    pub(super) fn asked_once(address: ApiAddress, access: &AccessArgs) -> Result<Self, OpsError> {
        Self::with_tries(address, access, 1, SOON)
    }

    fn with_tries(
        address: ApiAddress,
        access: &AccessArgs,
        tries_max: u32,
        answer_patience: Duration,
    ) -> Result<Self, OpsError> {
        let client = access
            .apply(Client::builder())
            .map_err(|error| OpsError::Usage(error.to_string()))?
            .user_agent(format!("waybill/{VERSION}"))
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_PATIENCE)
            .timeout(answer_patience)
            .build()
            .map_err(|error| OpsError::Client(error.to_string()))?;
        Ok(Self {
            client,
            address,
            patience: Duration::ZERO,
            tries_max,
        })
    }

    /// The same client, with retries for this long while the API is unavailable.
    pub(super) fn with_patience(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// Looks an operation up, by its ID or by that which `tenant` gave it.
    pub(super) async fn find(&self, id: &str, tenant: Option<&str>) -> Result<Found, ApiError> {
        let path = format!("{}{}", path_of(id), query_of(&tenant_pair(tenant)));
        let found = self.send(Method::GET, &path, None).await;
        let json = found.map_err(|error| error.of_id(tenant))?.1;
        let operation = self.read(&json)?;
        Ok(Found { json, operation })
    }

    /// Requests a page of a list.
    pub(super) async fn page(&self, query: &[(&str, String)]) -> Result<Page, ApiError> {
        let path = format!("{OPERATIONS}{}", query_of(query));
        self.read(&self.send(Method::GET, &path, None).await?.1)
    }

    /// Requests a verb. Requests with the same key have one effect.
    pub(super) async fn ask(
        &self,
        id: &str,
        tenant: Option<&str>,
        verb: &str,
        body: &VerbRequest,
        key: &str,
    ) -> Result<Answer, ApiError> {
        let query = query_of(&tenant_pair(tenant));
        let path = format!("{}:{verb}{query}", path_of(id));
        let body = Asking {
            body: serde_json::to_vec(body)
                .expect("texts and a flag serialize")
                .into(),
            key,
        };
        let (status, json) = self.send(Method::POST, &path, Some(body)).await?;
        match status {
            StatusCode::ACCEPTED => Ok(Answer::Asked(self.read(&json)?)),
            _ => Ok(Answer::AsItIs(self.read(&json)?)),
        }
    }

    /// Decodes an answer, or a part of one.
    pub(super) fn read<T: DeserializeOwned>(&self, json: &[u8]) -> Result<T, ApiError> {
        serde_json::from_slice(json).map_err(|error| self.unexpected(&error.to_string()))
    }

    /// The error for an answer of another server or another version.
    pub(super) fn unexpected(&self, why: &str) -> ApiError {
        let address = &self.address;
        let origin = address.origin();
        ApiError::unavailable(format!(
            "unexpected response from {address}: {why}. {origin}"
        ))
    }

    /// Sends a request until it has a final answer, or tries and patience are used up.
    async fn send(
        &self,
        method: Method,
        path: &str,
        asking: Option<Asking<'_>>,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let until = Instant::now() + self.patience;
        let mut tries = 1;
        loop {
            let (error, pause, tries_max) =
                match self.try_once(&method, path, asking.as_ref()).await {
                    Ok(answer) => return Ok(answer),
                    Err(Failed::ForGood(error)) => return Err(error),
                    Err(Failed::ForNow(error, pause)) => (error, pause, self.tries_max),
                    Err(Failed::Unreachable(error)) => (error, PAUSE, 1),
                };
            // If the API is unreachable, pauses grow.
            let pause = pause.max(PAUSE * (tries / TRIES_MAX)).min(PAUSE_MAX);
            if tries >= tries_max && Instant::now() + pause > until {
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_once(
        &self,
        method: &Method,
        path: &str,
        asking: Option<&Asking<'_>>,
    ) -> Result<(StatusCode, Bytes), Failed> {
        let url = format!("{}{path}", self.address);
        let mut request = self
            .client
            .request(method.clone(), url)
            .header(ACCEPT, JSON);
        if let Some(asking) = asking {
            request = request
                .header(CONTENT_TYPE, JSON)
                .header("idempotency-key", asking.key)
                .body(asking.body.clone());
        }
        let answered = match request.send().await {
            Ok(response) => self.read_whole(response).await,
            Err(error) => Err(self.not_answered(&error)),
        };
        let (status, pause, body) = answered?;
        if status.is_success() {
            return Ok((status, body));
        }
        let error = ApiError::of_answer(status, &body, &self.address);
        let is_passing = matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        );
        Err(match is_passing {
            true => Failed::ForNow(error, pause),
            false => Failed::ForGood(error),
        })
    }

    async fn read_whole(
        &self,
        mut response: Response,
    ) -> Result<(StatusCode, Duration, Bytes), Failed> {
        let status = response.status();
        let pause = pause_of(&response);
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => return Ok((status, pause, body.into())),
                Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => {
                    let why = format!("it is longer than {ANSWER_BYTES_MAX} bytes");
                    return Err(Failed::ForGood(self.unexpected(&why)));
                }
                Err(error) => return Err(self.not_answered(&error)),
            }
        }
    }

    /// A refused connection is a permanent fault unless `patience` allows for it. A lost connection
    /// may be temporary.
    fn not_answered(&self, error: &reqwest::Error) -> Failed {
        let address = &self.address;
        let why = match Silence::of(error) {
            Silence::Unreachable(why) => why,
            Silence::Distrusted(why) => {
                return Failed::ForGood(ApiError {
                    fault: Fault::Distrusted,
                    text: format!("the API at {address} answers, but {why}"),
                });
            }
        };
        if error.is_connect() {
            let origin = address.origin();
            let text = format!("the API at {address} is unreachable: {why}. {origin}");
            return Failed::Unreachable(ApiError::unavailable(text));
        }
        let origin = address.origin();
        let text = format!("the API at {address} did not answer: {why}. {origin}");
        Failed::ForNow(ApiError::unavailable(text), PAUSE)
    }
}

/// A request that changes something.
struct Asking<'a> {
    body: Bytes,
    key: &'a str,
}

/// Why one try failed.
enum Failed {
    /// A retry would fail too.
    ForGood(ApiError),
    /// A retry may succeed after this time.
    ForNow(ApiError, Duration),
    /// The API is unreachable, and surely did not receive the request.
    Unreachable(ApiError),
}

fn pause_of(response: &Response) -> Duration {
    let asked = response.headers().get(RETRY_AFTER);
    asked
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map_or(PAUSE, Duration::from_secs)
        .min(PAUSE_MAX)
}

fn problem_text(status: StatusCode, problem: &ProblemDetails<'_>) -> String {
    let text = problem.explanation().unwrap_or("No reason given.");
    // The problem's type is enough for a missing permission.
    let by_type = || {
        let name = problem.kind.strip_prefix("/problems/");
        name.filter(|_| status == StatusCode::FORBIDDEN)
    };
    let mut text = match problem.code.as_deref().or_else(by_type) {
        Some(code) => format!("{code}: {text}"),
        None => text.to_owned(),
    };
    for field in problem.errors.iter().take(FIELDS_SHOWN_MAX) {
        let message = format!("{} {}", field.place(), field.detail);
        text.push_str("; ");
        text.push_str(message.trim_start());
    }
    escaped(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_code_the_detail_and_every_wrong_field() {
        let error = |status: u16, body: &str| {
            let address = "http://a:1".parse().unwrap();
            ApiError::of_answer(
                StatusCode::from_u16(status).unwrap(),
                body.as_bytes(),
                &address,
            )
        };
        let refused = error(
            409,
            r#"{"type": "/x", "title": "t", "detail": "It is final.", "code": "final"}"#,
        );
        assert_eq!(refused.to_string(), "final: It is final.");
        let forbidden = r#"{"type": "/problems/insufficient-scope", "detail": "No."}"#;
        assert_eq!(error(403, forbidden).to_string(), "insufficient-scope: No.");
        let wrong = error(
            422,
            r#"{"detail": "2 fields.", "errors": [{"parameter": "limit", "detail": "is bad"},
                {"pointer": "/by", "detail": "is\u001b bad"}]}"#,
        );
        assert_eq!(
            wrong.to_string(),
            "2 fields.; limit is bad; /by is\\u{1b} bad"
        );
        assert_eq!(
            error(502, "<html>").to_string(),
            "http://a:1 answers 502 Bad Gateway: No reason given. Check that this is the API's address. The address comes from --api"
        );
    }

    #[test]
    fn only_errors_of_one_operation_let_a_run_continue() {
        let unknown = format!(r#"{{"type": "{}"}}"#, Kind::UnknownOrExpired.uri());
        for (status, body, about_one) in [
            (404, &*unknown, true),
            (404, "", false),
            (409, "", true),
            (500, "", true),
            (400, "", false),
            (422, "", false),
            (503, "", false),
            (504, "", false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let address = "http://a:1".parse().unwrap();
            let error = ApiError::of_answer(status, body.as_bytes(), &address);
            assert_eq!(error.is_about_the_operation(), about_one, "{status} {body}");
            assert_eq!(error.is_unknown(), body == unknown, "{status} {body}");
        }
    }
}
