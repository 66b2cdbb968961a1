//! Alerts as HTTP requests, signed according to the Standard Webhooks specification
//! (<https://www.standardwebhooks.com>): `webhook-id`, `webhook-timestamp` and `webhook-signature:
//! v1,` with the base64 of the HMAC-SHA256 over id, timestamp and body, joined by dots. The
//! libraries of that specification verify them.
//!
//! The id is the event's, and the body is the same for all attempts; the timestamp is the
//! attempt's. Redirects are not followed, and no proxy is read from the environment: an alert goes
//! only to the configured address.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::Serialize;
use sha2::Sha256;
use uuid::Uuid;
use waybill_config::Secret;
use waybill_telemetry::chain;

use super::ReceiverError;
use super::alert::{Alert, Message};
use super::failure::Failure;
use super::template::{Escape, Fill, Template};
use super::trust::read_certificates;
use crate::config::WebhookConfig;
use waybill_telemetry::VERSION;

const JSON: &str = "application/json";

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The event type in Waybill's own body.
const EVENT_TYPE: &str = "waybill.operator-alert";

/// The required form of a secret.
const SECRET_EXPECTED: &str =
    "must be whsec_ and the base64 of 24 to 64 random bytes, as from: openssl rand -base64 32";

/// A receiver that gets HTTP requests.
pub(super) struct Webhook {
    endpoint: Endpoint,
    template: Option<Template<Message>>,
}

impl Webhook {
    pub(super) fn new(config: &WebhookConfig, timeout: Duration) -> Result<Self, ReceiverError> {
        Ok(Self {
            endpoint: Endpoint::new(config, timeout)?,
            template: template_of(config)?,
        })
    }

    pub(super) fn prepare(&self, message: &Message) -> Call<'_> {
        let body = match &self.template {
            Some(template) => template.render(message),
            None => body(message),
        };
        self.endpoint.call(message.alert.event_id, body)
    }
}

/// The address that bodies are sent to, and the headers to send.
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    key: Option<SigningKey>,
    headers: HeaderMap,
}

impl Endpoint {
    pub(super) fn new(config: &WebhookConfig, timeout: Duration) -> Result<Self, ReceiverError> {
        let url = match &config.url {
            Some(url) => read_url(url.reveal())?,
            None => return Err(ReceiverError::new("url", "is missing")),
        };
        let key = match &config.secret {
            Some(secret) => Some(SigningKey::read(secret)?),
            None if config.template.is_some() => None,
            None => return Err(ReceiverError::new("secret", SECRET_EXPECTED)),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let (name, value) = read_header(name, value)?;
            headers.insert(name, value);
        }
        let content_type = HeaderValue::from_str(content_type(config))
            .map_err(|_| ReceiverError::new("contentType", "is not a valid header value"))?;
        headers.insert(CONTENT_TYPE, content_type);
        let certificates = match &config.ca_file {
            Some(path) => read_certificates(path, Certificate::from_pem)?,
            None => Vec::new(),
        };
        let client = Client::builder()
            .user_agent(format!("waybill/{VERSION}"))
            .redirect(Policy::none())
            .no_proxy()
            .timeout(timeout)
            .tls_certs_merge(certificates)
            .build()
            .map_err(|error| ReceiverError::new("url", chain(&error)))?;
        Ok(Self {
            client,
            url,
            key,
            headers,
        })
    }

    /// Prepares a body, the same for all attempts.
    pub(super) fn call(&self, id: Uuid, body: String) -> Call<'_> {
        Call {
            endpoint: self,
            id: id.to_string(),
            body: body.into(),
        }
    }
}

/// The template of a receiver, if it has one.
pub(super) fn template_of<M: Fill>(
    config: &WebhookConfig,
) -> Result<Option<Template<M>>, ReceiverError> {
    match &config.template {
        Some(template) => read_template(template, content_type(config)).map(Some),
        None if config.content_type.is_some() => {
            let problem = "requires a template: without one the body is JSON";
            Err(ReceiverError::new("contentType", problem))
        }
        None => Ok(None),
    }
}

fn content_type(config: &WebhookConfig) -> &str {
    config.content_type.as_deref().unwrap_or(JSON)
}

/// Waybill's own body, in the form that the specification recommends.
fn body(message: &Message) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        r#type: &'static str,
        timestamp: Timestamp,
        data: Data<'a>,
    }

    #[derive(Serialize)]
    struct Data<'a> {
        #[serde(flatten)]
        alert: &'a Alert,
        repeats: usize,
        summary: String,
    }

    let body = Body {
        r#type: EVENT_TYPE,
        timestamp: message.alert.at,
        data: Data {
            alert: &message.alert,
            repeats: message.repeats,
            summary: message.summary(),
        },
    };
    serde_json::to_string(&body).expect("texts and numbers are always JSON")
}

/// A prepared request to the receiver.
pub(super) struct Call<'a> {
    endpoint: &'a Endpoint,
    id: String,
    body: Bytes,
}

impl Call<'_> {
    pub(super) async fn attempt(&self) -> Result<(), Failure> {
        let Endpoint {
            client,
            url,
            key,
            headers,
        } = self.endpoint;
        let timestamp = Timestamp::now().as_second();
        let mut request = client
            .post(url.clone())
            .headers(headers.clone())
            .header(ID, &self.id)
            .header(TIMESTAMP, timestamp);
        if let Some(key) = key {
            request = request.header(SIGNATURE, key.sign(&self.id, timestamp, &self.body));
        }
        match request.body(self.body.clone()).send().await {
            Ok(response) => classify(&response, Timestamp::now()),
            // The URL may hold a secret.
            Err(error) => Err(Failure::passing(chain(&error.without_url()))),
        }
    }
}

fn classify(response: &Response, now: Timestamp) -> Result<(), Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    if status == StatusCode::GONE {
        return Err(Failure::Gone);
    }
    let may_ask = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    let asked = response.headers().get(RETRY_AFTER);
    Err(Failure::Passing {
        cause: format!("status {status}"),
        retry_after: asked
            .filter(|_| may_ask.contains(&status))
            .and_then(|value| read_retry_after(value.to_str().ok()?, now)),
    })
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date.
fn read_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

/// The key that requests are signed with.
struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    const PREFIX: &str = "whsec_";

    fn read(secret: &Secret) -> Result<Self, ReceiverError> {
        let encoded = secret.reveal();
        let encoded = encoded.strip_prefix(Self::PREFIX).unwrap_or(encoded);
        BASE64_STANDARD
            .decode(encoded)
            .ok()
            .filter(|key| (24..=64).contains(&key.len()))
            .and_then(|key| Hmac::new_from_slice(&key).ok())
            .map(Self)
            .ok_or_else(|| ReceiverError::new("secret", SECRET_EXPECTED))
    }

    fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        let signature = mac.finalize().into_bytes();
        format!("v1,{}", BASE64_STANDARD.encode(signature))
    }
}

fn read_url(text: &str) -> Result<Url, ReceiverError> {
    let refuse = |problem: &str| ReceiverError::new("url", problem);
    // The parser's message is left out: the URL may hold a secret.
    let url = Url::parse(text).map_err(|_| refuse("is not a URL"))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(refuse("must begin with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse(
            "contains a user or password; set the header Authorization instead",
        ));
    }
    Ok(url)
}

fn read_template<M: Fill>(text: &str, content_type: &str) -> Result<Template<M>, ReceiverError> {
    let escape = Escape::of_content_type(content_type).ok_or_else(|| {
        ReceiverError::new(
            "contentType",
            "must be JSON, application/x-www-form-urlencoded or text/plain: values are not \
             escaped for others",
        )
    })?;
    Template::compile(text, escape).map_err(|problem| ReceiverError::new("template", problem))
}

fn read_header(name: &str, value: &Secret) -> Result<(HeaderName, HeaderValue), ReceiverError> {
    /// The headers that Waybill sets itself.
    const OWN: [&str; 4] = [
        "content-type",
        "content-length",
        "transfer-encoding",
        "host",
    ];
    let refuse = |problem: &str| ReceiverError::new(&format!("headers.{name}"), problem);
    let read = HeaderName::from_bytes(name.as_bytes());
    let read = read.map_err(|_| refuse("is not a valid header name"))?;
    if OWN.contains(&read.as_str()) || [ID, TIMESTAMP, SIGNATURE].contains(&read) {
        return Err(refuse("is set by Waybill itself"));
    }
    let mut value =
        HeaderValue::from_str(value.reveal()).map_err(|_| refuse("has an invalid value"))?;
    value.set_sensitive(true);
    Ok((read, value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use waybill_config::testing::{Changes, assert_refused};

    use super::super::alert::tests::alert;
    use super::*;

    const SECRET: &str = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0";

    #[test]
    fn the_signature_is_the_hmac_over_id_timestamp_and_body() {
        // Made with: printf 'event-7.1767323045.{"a":1}' | openssl dgst -sha256 -binary
        // -hmac 123456789012345678901234 | base64
        let key = SigningKey::read(&SECRET.into()).unwrap();
        let signature = key.sign("event-7", 1_767_323_045, br#"{"a":1}"#);
        assert_eq!(signature, "v1,rCS0uOv4rsEMgCz1KI9+JVKgO60vfOdmgpu6b2lN+xM=");
    }

    #[test]
    fn secrets_that_no_library_would_verify_are_refused_and_not_repeated() {
        for secret in [
            "",
            "whsec_",
            "hunter2",
            "whsec_aHVudGVyMg==",
            "whsec_hunter2!",
        ] {
            let Err(error) = SigningKey::read(&secret.into()) else {
                panic!("{secret}");
            };
            assert_eq!(error.to_string(), format!("secret {SECRET_EXPECTED}"));
        }
        let without_prefix = SECRET.trim_start_matches("whsec_");
        assert!(SigningKey::read(&without_prefix.into()).is_ok());
    }

    #[test]
    fn the_body_has_type_time_and_the_alert_with_its_repeats() {
        let message = Message {
            alert: alert(),
            repeats: 2,
        };
        let body: Value = serde_json::from_str(&body(&message)).unwrap();
        assert_eq!(
            body,
            json!({
                "type": "waybill.operator-alert",
                "timestamp": "2026-01-02T03:04:05Z",
                "data": {
                    "eventId": "00000000-0000-0000-0000-000000000007",
                    "kind": "operation-parked",
                    "operation": "op-1",
                    "workflow": "drone-delivery",
                    "tenant": "acme",
                    "step": "drone",
                    "error": {"code": "no-drone", "message": "no \"drone\" is free\ntoday"},
                    "advice": "Resubmit it once drones are back.",
                    "at": "2026-01-02T03:04:05Z",
                    "repeats": 2,
                    "summary": message.summary(),
                },
            })
        );
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (value, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            ("Fri, 02 Jan 2026 03:05:05 GMT", Some(60)),
            ("Fri, 02 Jan 2026 03:00:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(read_retry_after(value, now), expected, "{value}");
        }
    }

    #[test]
    fn invalid_values_are_refused_by_key() {
        let config = WebhookConfig {
            url: Some("https://pager.example/".into()),
            secret: Some(SECRET.into()),
            ..WebhookConfig::default()
        };
        let check = |config: &WebhookConfig| Webhook::new(config, Duration::from_secs(1)).map(drop);
        let changes: Changes<'_, WebhookConfig> = &[
            ("url is missing", |c| c.url = None),
            ("url is not a URL", |c| c.url = Some("hunter2".into())),
            ("url must begin", |c| c.url = Some("file:///x".into())),
            ("url contains a user", |c| {
                c.url = Some("https://a:hunter2@b.example".into());
            }),
            ("secret must be", |c| c.secret = None),
            ("contentType requires a template", |c| {
                c.content_type = Some(JSON.to_owned());
            }),
            ("contentType must be JSON", |c| {
                c.template = Some("<a/>".to_owned());
                c.content_type = Some("text/xml".to_owned());
            }),
            ("contentType is not a valid header value", |c| {
                c.template = Some("a".to_owned());
                c.content_type = Some("text/plain; a=\n".to_owned());
            }),
            ("template has the unknown placeholder", |c| {
                c.template = Some("{{alert}}".to_owned());
            }),
            ("caFile is /nonexistent", |c| {
                c.ca_file = Some("/nonexistent".into());
            }),
            ("caFile is Cargo.toml, which contains no certificate", |c| {
                c.ca_file = Some("Cargo.toml".into());
            }),
            ("headers.Host is set", |c| {
                c.headers.insert("Host".to_owned(), "a".into());
            }),
            ("headers.a b is not a valid header name", |c| {
                c.headers.insert("a b".to_owned(), "a".into());
            }),
            ("headers.A has an invalid value", |c| {
                c.headers.insert("A".to_owned(), "hunter\n2".into());
            }),
        ];
        let errors = assert_refused(&config, check, changes);
        assert!(!errors.concat().contains("hunter"), "{errors:?}");
    }

    #[test]
    fn a_custom_template_needs_no_secret() {
        let config = WebhookConfig {
            url: Some("https://sms.example/".into()),
            template: Some("text={{alert.summary}}".to_owned()),
            content_type: Some("application/x-www-form-urlencoded".to_owned()),
            ..WebhookConfig::default()
        };
        assert!(Webhook::new(&config, Duration::from_secs(1)).is_ok());
    }
}
