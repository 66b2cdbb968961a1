//! Access tokens of an OAuth 2.0 server, by the client credentials grant (RFC 6749, section 4.4).
//!
//! What must hold:
//!
//! * At most one request for a token is in progress. It continues when the attempts that wait for
//!   it end.
//! * A token is renewed before it expires, while calls use it. Calls wait only if there is none.
//! * A failing token endpoint is called at most once a second. Attempts fail in the meantime.
//! * If a service refuses new tokens as well, not every call requests another token.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, ready};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};
use waybill_config::Secret;
use waybill_tls::{ClientTls, SecretFile};

use super::{ClientAuth, Oauth2Config, forms_of, redact, sensitive};
use crate::http::LoadError;
use crate::http::client::{OneShot, SendError};
use crate::http::plan::is_this_machine;
use crate::metrics::TokenMetrics;
use crate::template::percent_encoded;

/// How long the token endpoint is not called again after a failure.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(1);
/// The shortest time between two tokens that replace refused ones.
const RENEWAL_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// The lifetime of a token without `expires_in`.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// The shortest lifetime of a token, so that not every call requests one.
const LIFETIME_MIN: Duration = Duration::from_secs(1);
/// The longest lifetime of a token.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest time between the renewal of a token and its expiry.
const RENEWAL_MARGIN_MAX: Duration = Duration::from_secs(60);
/// The largest response of a token endpoint.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a token endpoint's text in an error.
const REASON_BYTES_MAX: usize = 200;

/// The token endpoint, and the parameters of a request to it.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Uri,
    client_id: String,
    client_auth: ClientAuth,
    /// The body, without the client's credentials.
    form: String,
    timeout: Duration,
}

/// An access token.
#[derive(Debug)]
pub(in crate::http) struct Token {
    secret: Secret,
    fetched: Instant,
    renew_at: Instant,
    expires_at: Instant,
    /// Whether it replaces one that the service refused.
    is_replacement: bool,
}

impl Token {
    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Why there is no access token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no access token from {endpoint}: {why}")]
pub(in crate::http) struct TokenError {
    endpoint: String,
    why: String,
}

/// The source of an agent's access tokens.
#[derive(Debug)]
pub(super) struct TokenSource(Arc<Source>);

#[derive(Debug)]
struct Source {
    agent: String,
    endpoint: Endpoint,
    secret: SecretFile,
    client: OneShot,
    state: Mutex<State>,
    metrics: TokenMetrics,
}

#[derive(Debug, Default)]
struct State {
    token: Option<Arc<Token>>,
    /// The request in progress.
    fetch: Option<Fetch>,
    /// Whether the service refused the last token.
    was_refused: bool,
    /// The last failure, if no success came after it.
    failed: Option<(Instant, TokenError)>,
}

type Fetch = Shared<BoxFuture<'static, Result<Arc<Token>, TokenError>>>;

impl Endpoint {
    pub(super) fn compile(config: &Oauth2Config) -> Result<Self, LoadError> {
        let key = |name: &str| format!("auth.oauth2.{name}");
        let url: Uri = config
            .token_url
            .parse()
            .map_err(|_| LoadError::invalid(key("tokenUrl"), "is not a URL"))?;
        let (scheme, host) = (url.scheme_str(), url.host().unwrap_or_default());
        if url.authority().is_none_or(|it| it.as_str().contains('@')) {
            return Err(LoadError::invalid(
                key("tokenUrl"),
                "must have a host, and no login",
            ));
        }
        if scheme != Some("https") && !(scheme == Some("http") && is_this_machine(host)) {
            return Err(LoadError::invalid(
                key("tokenUrl"),
                "must begin with https:// (or http:// for this machine): the client's secret is \
                 sent there",
            ));
        }
        if config.client_id.is_empty() {
            return Err(LoadError::invalid(key("clientId"), "is empty"));
        }
        if config.timeout.is_zero() || config.timeout > Duration::from_secs(60) {
            return Err(LoadError::invalid(key("timeout"), "must be from 1ms to 1m"));
        }
        let is_scope = |scope: &String| {
            let mut bytes = scope.bytes();
            !scope.is_empty()
                && bytes.all(|byte| (b'!'..=b'~').contains(&byte) && !b"\"\\".contains(&byte))
        };
        if !config.scopes.iter().all(is_scope) {
            return Err(LoadError::invalid(
                key("scopes"),
                "each must be visible ASCII without spaces, quotes and backslashes",
            ));
        }
        let mut form = "grant_type=client_credentials".to_owned();
        if !config.scopes.is_empty() {
            push(&mut form, "scope", &config.scopes.join(" "));
        }
        if let Some(audience) = &config.audience {
            push(&mut form, "audience", audience);
        }
        Ok(Self {
            url,
            client_id: config.client_id.clone(),
            client_auth: config.client_auth,
            form,
            timeout: config.timeout,
        })
    }

    fn request(&self, secret: &Secret) -> Request<Bytes> {
        let mut form = self.form.clone();
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        match self.client_auth {
            ClientAuth::Basic => {
                let login = self.login(secret);
                headers.insert(AUTHORIZATION, sensitive(format!("Basic {login}")));
            }
            ClientAuth::Body => {
                push(&mut form, "client_id", &self.client_id);
                push(&mut form, "client_secret", secret.reveal());
            }
        }
        *request.body_mut() = form.into();
        request
    }

    /// The login, whose parts are encoded before they are joined (RFC 6749, section 2.3.1).
    fn login(&self, secret: &Secret) -> String {
        let [id, secret] = [&self.client_id, secret.reveal()].map(percent_encoded);
        BASE64_STANDARD.encode(format!("{id}:{secret}"))
    }

    /// The texts in which the endpoint may repeat the secret.
    fn secrets(&self, secret: &Secret) -> Vec<Secret> {
        let encoded = [percent_encoded(secret.reveal()), self.login(secret)];
        let encoded = encoded.into_iter().map(Secret::from);
        forms_of(secret).into_iter().chain(encoded).collect()
    }
}

fn push(form: &mut String, name: &str, value: &str) {
    write!(form, "&{name}={}", percent_encoded(value)).expect("writing to a String cannot fail");
}

impl TokenSource {
    pub(super) fn new(agent: &str, endpoint: Endpoint, secret: SecretFile, tls: ClientTls) -> Self {
        Self(Arc::new(Source {
            agent: agent.to_owned(),
            client: OneShot::new(tls, endpoint.timeout),
            endpoint,
            secret,
            state: Mutex::default(),
            metrics: TokenMetrics::new(agent),
        }))
    }

    /// A token that has not expired.
    pub(super) async fn token(&self, until: Instant) -> Result<Arc<Token>, TokenError> {
        let fetch = {
            let mut state = self.0.state();
            let now = Instant::now();
            match state.token.clone() {
                Some(token) if now < token.renew_at => return Ok(token),
                Some(token) if now < token.expires_at => {
                    drop(self.0.fetch(&mut state));
                    return Ok(token);
                }
                Some(_) | None => self.0.fetch(&mut state),
            }
        };
        self.0.fetched(fetch, until).await
    }

    /// Replaces a token that the service has refused. Returns `None` if the refused token is itself
    /// a recent replacement.
    pub(super) async fn renew(
        &self,
        refused: &Arc<Token>,
        until: Instant,
    ) -> Result<Option<Arc<Token>>, TokenError> {
        let fetch = {
            let mut state = self.0.state();
            match state.token.take_if(|token| Arc::ptr_eq(token, refused)) {
                Some(token)
                    if token.is_replacement && token.fetched.elapsed() < RENEWAL_INTERVAL_MIN =>
                {
                    state.token = Some(token);
                    return Ok(None);
                }
                Some(_) => state.was_refused = true,
                // Another call has renewed it.
                None if state.token.is_some() => return Ok(state.token.clone()),
                None => {}
            }
            self.0.fetch(&mut state)
        };
        self.0.fetched(fetch, until).await.map(Some)
    }
}

impl Source {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of the request in progress, or of a new one.
    fn fetch(self: &Arc<Self>, state: &mut State) -> Fetch {
        if let Some(fetch) = &state.fetch {
            return fetch.clone();
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < FAILURE_COUNTS_FOR
        {
            return ready(Err(error.clone())).boxed().shared();
        }
        let is_replacement = state.was_refused;
        let run = tokio::spawn(InProgress(Arc::clone(self)).run(is_replacement));
        let panicked = self.error("the request for it was aborted");
        let fetch = async move { run.await.unwrap_or(Err(panicked)) };
        let fetch = fetch.boxed().shared();
        state.fetch = Some(fetch.clone());
        fetch
    }

    /// The result of a request for a token, if there is one until that time.
    async fn fetched(&self, fetch: Fetch, until: Instant) -> Result<Arc<Token>, TokenError> {
        let late = |_| self.error("it did not answer before complete-by");
        timeout_at(until, fetch).await.map_err(late)?
    }

    fn error(&self, why: impl Into<String>) -> TokenError {
        let url = &self.endpoint.url;
        TokenError {
            // Without the query, which may hold secrets.
            endpoint: format!(
                "{}://{}{}",
                url.scheme_str().unwrap_or_default(),
                url.authority().map(|it| it.as_str()).unwrap_or_default(),
                url.path()
            ),
            why: why.into(),
        }
    }

    async fn request(&self, is_replacement: bool) -> Result<Token, TokenError> {
        let secret = self.secret.get().await;
        let fetched = Instant::now();
        let request = self.endpoint.request(&secret);
        let exchange = self.client.exchange(request, RESPONSE_BYTES_MAX);
        let answer = timeout(self.endpoint.timeout, exchange).await;
        let answer = answer.map_err(|_| self.error("it did not answer in time"))?;
        let answer = answer.map_err(|error| {
            let (SendError::Unconnected(why) | SendError::Unread(why) | SendError::BrokeOff(why)) =
                error;
            self.error(why)
        })?;
        let body = answer
            .body
            .map_err(|_| self.error("its response is too large, or incomplete"))?;
        if answer.head.status != StatusCode::OK {
            let reason = reason(&body, &self.endpoint.secrets(&secret));
            return Err(self.error(format!("it answered {}{reason}", answer.head.status)));
        }
        let granted: Granted = serde_json::from_slice(&body)
            // The parser's message could quote the token.
            .map_err(|_| self.error("its response is invalid"))?;
        if !granted.token_type.eq_ignore_ascii_case("bearer") {
            return Err(self.error("its token type is not Bearer"));
        }
        let text = granted.access_token.reveal();
        if text.is_empty() || !text.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            return Err(self.error("its access token is empty or has invalid characters"));
        }
        let lifetime = granted
            .expires_in
            .map_or(LIFETIME_DEFAULT, Seconds::duration);
        let lifetime = lifetime.clamp(LIFETIME_MIN, LIFETIME_MAX);
        let expires_at = fetched + lifetime;
        Ok(Token {
            secret: granted.access_token,
            fetched,
            renew_at: expires_at - (lifetime / 5).min(RENEWAL_MARGIN_MAX),
            expires_at,
            is_replacement,
        })
    }
}

/// The request in progress; dropping it allows another.
struct InProgress(Arc<Source>);

impl InProgress {
    async fn run(self, is_replacement: bool) -> Result<Arc<Token>, TokenError> {
        let Self(source) = &self;
        let requested = source.request(is_replacement).await.map(Arc::new);
        let mut state = source.state();
        match &requested {
            Ok(token) => {
                source.metrics.count(true);
                if state.failed.take().is_some() {
                    tracing::info!(agent = source.agent, "access tokens are available again");
                }
                state.token = Some(Arc::clone(token));
                state.was_refused = false;
            }
            Err(error) => {
                source.metrics.count(false);
                let is_known = matches!(&state.failed, Some((_, known)) if known == error);
                // The same failure is logged once.
                if !is_known {
                    tracing::warn!(
                        agent = source.agent,
                        %error,
                        "could not get an access token; the agent's steps fail without one"
                    );
                }
                state.failed = Some((Instant::now(), error.clone()));
            }
        }
        drop(state);
        requested
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.state().fetch = None;
    }
}

/// A successful response (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Granted {
    access_token: Secret,
    token_type: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Seconds, which some servers write as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

impl Seconds {
    fn duration(self) -> Duration {
        match self {
            Self::Number(seconds) => {
                Duration::try_from_secs_f64(seconds).unwrap_or(LIFETIME_DEFAULT)
            }
            Self::Text(text) => text.parse().map_or(LIFETIME_DEFAULT, Duration::from_secs),
        }
    }
}

/// The reason in a refusal (RFC 6749, section 5.2), without the secrets.
fn reason(body: &[u8], secrets: &[Secret]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
        #[serde(default)]
        error_description: String,
    }

    let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else {
        return String::new();
    };
    let mut reason = format!(": {}", refusal.error);
    if !refusal.error_description.is_empty() {
        reason.push_str(", ");
        reason.push_str(&refusal.error_description);
    }
    let reason = redact(secrets, &reason);
    let visible = reason.chars().filter(|character| !character.is_control());
    let mut bytes = 0;
    visible
        .take_while(|character| {
            bytes += character.len_utf8();
            bytes <= REASON_BYTES_MAX
        })
        .collect()
}
