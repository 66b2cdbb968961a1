//! The YAML of declarative HTTP agents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use waybill_units::DurationText;

use super::answer::AnswerRuleConfig;
use super::auth::{AuthConfig, ServiceTlsConfig};
use super::redirects::RedirectsConfig;

/// A file of agents.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentsFile {
    /// The agents, each with its own name.
    pub agents: Vec<AgentConfig>,
}

/// One agent.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentConfig {
    /// The name that workflows call it by; it names the topic `<prefix>.<name>.requests.v1`.
    pub name: String,
    /// The service that it wraps.
    pub http: HttpConfig,
}

/// How an agent calls its service.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpConfig {
    /// Scheme, authority and optionally a path: `https://stock.example/api`. `{name}` is replaced
    /// by a variable that the program supplies when it loads the file.
    pub base_url: String,
    /// How the agent authenticates itself to the service. Default: not at all.
    #[serde(default)]
    pub auth: Option<AuthConfig>,
    /// TLS, for `https://`.
    #[serde(default)]
    pub tls: ServiceTlsConfig,
    /// The request for each step without an entry in `steps`.
    #[serde(default)]
    pub request: Option<RequestConfig>,
    /// Requests for single steps, by the step's name.
    #[serde(default)]
    pub steps: BTreeMap<String, RequestConfig>,
    /// The header that carries the idempotency key. Default: `Idempotency-Key`.
    #[serde(default = "default_idempotency_key_header")]
    pub idempotency_key_header: String,
    /// The header that carries complete-by as RFC 3339 in UTC. Default: `Waybill-Complete-By`.
    #[serde(default = "default_complete_by_header")]
    pub complete_by_header: String,
    /// Whether the service refuses to perform a step after it was undone, even if the request
    /// arrives late. A workflow may rely on it (`compensation.tombstones`) only if this is set.
    /// Default: false.
    #[serde(default)]
    pub tombstones: bool,
    /// The meaning of answers. The first rule that matches counts; those of a request come before
    /// these. Without one, `statuses` counts.
    #[serde(default)]
    pub answers: Vec<AnswerRuleConfig>,
    /// The redirects to follow. Default: none.
    #[serde(default)]
    pub redirects: Option<RedirectsConfig>,
    /// The meaning of the service's statuses.
    #[serde(default)]
    pub statuses: StatusesConfig,
    /// The position of a stable error code in a failed answer: a JSON pointer. Default: `/code`.
    /// Without a code there, the code is `http-<status>`.
    #[serde(default = "default_error_code")]
    pub error_code: String,
    /// How long to wait for one answer, within complete-by. Default: 10s.
    #[serde(default = "default_timeout", with = "DurationText")]
    pub timeout: Duration,
    /// How long to wait for a connection, within `timeout`. Default: 2s.
    #[serde(default = "default_connect_timeout", with = "DurationText")]
    pub connect_timeout: Duration,
    /// Maximum number of concurrent attempts. Default: 64.
    #[serde(default = "default_concurrency_max")]
    pub concurrency_max: usize,
    /// The largest answer, in bytes, that is read for its values or its error. Default: 65536.
    #[serde(default = "default_response_bytes_max")]
    pub response_bytes_max: usize,
    /// Speak HTTP/2: over `http://` with prior knowledge, over `https://` if the service chooses
    /// it. Default: false.
    #[serde(default)]
    pub http2: bool,
    /// The connection pool.
    #[serde(default)]
    pub pool: PoolConfig,
    /// Immediate retries of transient failures within one attempt.
    #[serde(default)]
    pub retries: RetriesConfig,
    /// The circuit breaker.
    #[serde(default)]
    pub breaker: BreakerConfig,
}

/// One kind of request, as a template, and the requests that undo and probe it.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RequestConfig {
    /// The HTTP method, for example `PUT`.
    pub method: String,
    /// The path below `baseUrl`, with its query: a template. Values are percent-encoded.
    pub path: String,
    /// Further headers; the values are templates.
    #[serde(default)]
    #[schemars(extend("additionalProperties" = {"type": ["string", "number", "boolean"]}))]
    pub headers: BTreeMap<String, String>,
    /// The JSON body: any value whose strings are templates. A string that is exactly one
    /// placeholder becomes the value with its JSON type. Absent: no body.
    #[serde(default)]
    pub body: Option<serde_json::Value>,
    /// The values to keep of a successful answer: output names and JSON pointers. A pointer with a
    /// trailing `?` marks a value that may be absent.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
    /// The meaning of answers to this request.
    #[serde(default)]
    pub answers: Vec<AnswerRuleConfig>,
    /// The request that undoes it, under the same idempotency key. Absent: it cannot be undone.
    #[serde(default)]
    pub compensate: Option<InverseConfig>,
    /// The request that asks whether it took effect, under the same idempotency key. A successful
    /// answer means that it did; `keep` applies to that answer, too. Absent: it cannot be probed.
    #[serde(default)]
    pub probe: Option<InverseConfig>,
}

/// The request that undoes or probes another.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct InverseConfig {
    /// The HTTP method, for example `DELETE`.
    pub method: String,
    /// The path, a template. Absent: the path of the request to undo or probe.
    #[serde(default)]
    pub path: Option<String>,
    /// Further headers; the values are templates.
    #[serde(default)]
    #[schemars(extend("additionalProperties" = {"type": ["string", "number", "boolean"]}))]
    pub headers: BTreeMap<String, String>,
    /// The JSON body, as in a request. Absent: no body.
    #[serde(default)]
    pub body: Option<serde_json::Value>,
    /// The meaning of answers to this request.
    #[serde(default)]
    pub answers: Vec<AnswerRuleConfig>,
}

/// The meaning of statuses. For a status in none of the lists: 2xx other than 202 is a success, 202
/// and 5xx are unknown, all others permanent. A list that is given replaces its default.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct StatusesConfig {
    /// The step succeeded. Default: 200-299 without 202, which says only that the service has
    /// accepted the request.
    pub success: StatusSet,
    /// The request failed without effect and may succeed later. Default: 408, 425, 429, 503. If a
    /// service answers other 5xx only when nothing took effect, add them: the agent then retries
    /// them within the attempt.
    pub transient: StatusSet,
    /// The request was refused, and a retry would be, too. Default: only the rule above.
    pub permanent: StatusSet,
    /// The request may have taken effect. Default: only the rule above.
    pub unknown: StatusSet,
    /// Only for answers to an undo or a probe: no effect exists. Default: 404, 410.
    pub absent: StatusSet,
}

impl Default for StatusesConfig {
    fn default() -> Self {
        Self {
            success: StatusSet(vec![(200, 201), (203, 299)]),
            transient: [408, 425, 429, 503].into_iter().collect(),
            permanent: StatusSet::default(),
            unknown: StatusSet::default(),
            absent: [404, 410].into_iter().collect(),
        }
    }
}

/// A set of HTTP statuses: `[404, 500-599]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatusSet(Vec<(u16, u16)>);

impl StatusSet {
    /// Whether `status` is in the set.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        self.0
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&status))
    }
}

impl FromIterator<u16> for StatusSet {
    fn from_iter<I: IntoIterator<Item = u16>>(statuses: I) -> Self {
        Self(
            statuses
                .into_iter()
                .map(|status| (status, status))
                .collect(),
        )
    }
}

impl JsonSchema for StatusSet {
    fn schema_name() -> Cow<'static, str> {
        "StatusSet".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "description": "HTTP statuses and ranges of them.",
            "items": {
                "anyOf": [
                    {"type": "integer", "minimum": 100, "maximum": 599},
                    {"type": "string", "pattern": r"^\s*[1-5][0-9]{2}\s*(-\s*[1-5][0-9]{2}\s*)?$"},
                ],
            },
            "examples": [[404, "500-599"]],
        })
    }
}

impl<'de> Deserialize<'de> for StatusSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<StatusRange>::deserialize(deserializer)
            .map(|ranges| Self(ranges.into_iter().map(|range| (range.0, range.1)).collect()))
    }
}

struct StatusRange(u16, u16);

impl<'de> Deserialize<'de> for StatusRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Range;

        impl Visitor<'_> for Range {
            type Value = StatusRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an HTTP status such as 404, or a range such as 500-599")
            }

            fn visit_u64<E: serde::de::Error>(self, status: u64) -> Result<Self::Value, E> {
                match u16::try_from(status) {
                    Ok(status @ 100..=599) => Ok(StatusRange(status, status)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(status), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, status: i64) -> Result<Self::Value, E> {
                match u64::try_from(status) {
                    Ok(status) => self.visit_u64(status),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(status), &self)),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                match (from.trim().parse(), to.trim().parse()) {
                    (Ok(from @ 100..=599), Ok(to @ 100..=599)) if from <= to => {
                        Ok(StatusRange(from, to))
                    }
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(Range)
    }
}

/// The connection pool of an agent.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct PoolConfig {
    /// Maximum number of idle connections. Default: the value of `concurrencyMax`.
    pub idle_max: Option<usize>,
    /// How long an idle connection is kept. Keep it below the service's own limit. Default: 30s.
    #[serde(with = "DurationText")]
    pub idle_for: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            idle_max: None,
            idle_for: Duration::from_secs(30),
        }
    }
}

/// Immediate retries within one attempt; the scheduler does not see them.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct RetriesConfig {
    /// Maximum number of retries. Default: 1.
    pub max: u32,
    /// The wait before the first retry, doubled for each further one, with jitter. Default: 50ms.
    #[serde(with = "DurationText")]
    pub backoff: Duration,
    /// The longest wait. If the service asks for more with `Retry-After`, the attempt ends as
    /// transient instead. Default: 1s.
    #[serde(with = "DurationText")]
    pub delay_max: Duration,
}

impl Default for RetriesConfig {
    fn default() -> Self {
        Self {
            max: 1,
            backoff: Duration::from_millis(50),
            delay_max: Duration::from_secs(1),
        }
    }
}

/// The circuit breaker. Transient and unknown outcomes count as failures of the service, permanent
/// ones as successes.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct BreakerConfig {
    /// The share of failures, above 0 and up to 1, at which it opens. Default: 0.5.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub failure_rate: f32,
    /// The number of most recent calls that the share is computed over. Default: 50.
    pub calls: usize,
    /// How long it stays open. Default: 5s.
    #[serde(with = "DurationText")]
    pub open_for: Duration,
    /// The number of probes before it closes. Default: 5.
    pub half_open_calls: usize,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failure_rate: 0.5,
            calls: 50,
            open_for: Duration::from_secs(5),
            half_open_calls: 5,
        }
    }
}

fn default_idempotency_key_header() -> String {
    "Idempotency-Key".to_owned()
}

fn default_complete_by_header() -> String {
    "Waybill-Complete-By".to_owned()
}

fn default_error_code() -> String {
    "/code".to_owned()
}

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(2)
}

fn default_concurrency_max() -> usize {
    64
}

fn default_response_bytes_max() -> usize {
    64 * 1024
}
