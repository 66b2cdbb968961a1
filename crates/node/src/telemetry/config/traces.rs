//! The collector of spans, if there is one.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::{check_range, check_request_timeout};
use waybill_config::{ConfigError, file_permissions, read_text};
use waybill_telemetry::chain;
use waybill_units::DurationText;

/// Spans that wait: with more, the process would run out of memory later.
const QUEUE_MAX: usize = 10_000_000;

/// The `telemetry.traces` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TracesConfig {
    /// The URL of the collector (OTLP over HTTP); `null` to record no spans.
    pub endpoint: Option<String>,
    /// The share of traces started here that are recorded.
    #[schemars(range(min = 0, max = 1))]
    pub sample_ratio: f64,
    /// The file with the headers for the collector, one `Name: value` per line.
    pub headers_file: Option<PathBuf>,
    /// Certificates (PEM) that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The time limit for sending, retries included.
    #[serde(with = "DurationText")]
    pub request_timeout: Duration,
    /// The number of spans that may wait to be sent.
    pub queue_max: usize,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            sample_ratio: 1.0,
            headers_file: None,
            ca_file: None,
            request_timeout: Duration::from_secs(10),
            queue_max: 20_000,
        }
    }
}

impl TracesConfig {
    /// The client of the collector; `None` without one.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the configuration is invalid.
    pub fn client(&self) -> Result<Option<Client>, ConfigError> {
        if self.endpoint.is_none() {
            return Ok(None);
        }
        let mut client = Client::builder()
            .timeout(self.request_timeout)
            .redirect(Policy::none());
        if let Some(path) = &self.headers_file {
            file_permissions::warn_if_world_readable(path, "the headers");
            let key = "telemetry.traces.headersFile";
            let text = read_text(path).map_err(|error| error.of_key(key))?;
            let headers = parse_headers(&text).map_err(|problem| {
                ConfigError::invalid(key, format!("({}) {problem}", path.display()))
            })?;
            client = client.default_headers(headers);
        }
        if let Some(path) = &self.ca_file {
            let key = "telemetry.traces.caFile";
            let pem = read_text(path).map_err(|error| error.of_key(key))?;
            let certificates = Certificate::from_pem_bundle(pem.as_bytes());
            let certificates = certificates.ok().filter(|found| !found.is_empty());
            let certificates = certificates.ok_or_else(|| {
                let problem = format!("({}) contains no certificate (PEM)", path.display());
                ConfigError::invalid(key, problem)
            })?;
            client = client.tls_certs_merge(certificates);
        }
        let client = client.build();
        let client =
            client.map_err(|error| ConfigError::invalid("telemetry.traces", chain(&error)))?;
        Ok(Some(client))
    }

    /// Checks the section.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check_range("telemetry.traces.queueMax", self.queue_max, 1..=QUEUE_MAX)?;
        if self.endpoint.is_some() {
            check_request_timeout("telemetry.traces.requestTimeout", self.request_timeout)?;
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            let problem = "must be between 0 and 1".to_owned();
            return Err(ConfigError::invalid(
                "telemetry.traces.sampleRatio",
                problem,
            ));
        }
        if let Some(endpoint) = &self.endpoint {
            check_endpoint(endpoint)
                .map_err(|problem| ConfigError::invalid("telemetry.traces.endpoint", problem))?;
        }
        self.client().map(drop)
    }
}

fn check_endpoint(text: &str) -> Result<(), String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a login: use a header in headersFile".to_owned());
    }
    if url.path() == "/" {
        return Err("must have a path, usually /v1/traces".to_owned());
    }
    Ok(())
}

/// Reads headers. The error does not repeat the content of the file.
fn parse_headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            continue;
        }
        let header = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_str(name.trim()).ok()?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let (name, value) = header.ok_or_else(|| format!("line {number} is not `Name: value`"))?;
        headers.append(name, value);
    }
    match headers.is_empty() {
        true => Err("has no header".to_owned()),
        false => Ok(headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> TracesConfig {
        TracesConfig {
            endpoint: Some("http://collector:4318/v1/traces".to_owned()),
            ..TracesConfig::default()
        }
    }

    #[test]
    fn headers_come_from_a_file_and_are_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "Authorization: Bearer sesame\n\nx-team: a\n").unwrap();
        let config = TracesConfig {
            headers_file: Some(file.path().to_owned()),
            ..config()
        };
        config.validate().unwrap();
        let client = config.client().unwrap().unwrap();
        let yaml = serde_saphyr::to_string(&config).unwrap();
        for shown in [format!("{config:?}"), format!("{client:?}"), yaml] {
            assert!(!shown.contains("sesame"), "{shown}");
        }
        let headers = parse_headers("a: b\r\nc: d:e\n").unwrap();
        assert_eq!(
            (&headers["a"], &headers["c"]),
            (
                &HeaderValue::from_static("b"),
                &HeaderValue::from_static("d:e")
            )
        );
    }

    #[test]
    fn invalid_values_are_refused_with_their_key() {
        let bad = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(bad.path(), "x-key: 1\nsesame\n").unwrap();
        type Change<'a> = Box<dyn Fn(&mut TracesConfig) + 'a>;
        let endpoint = |text: &'static str| -> Change<'_> {
            Box::new(move |c| c.endpoint = Some(text.to_owned()))
        };
        let cases: [(&str, Change<'_>); 12] = [
            (
                "requestTimeout",
                Box::new(|c| c.request_timeout = Duration::from_millis(99)),
            ),
            ("queueMax", Box::new(|c| c.queue_max = usize::MAX)),
            ("sampleRatio", Box::new(|c| c.sample_ratio = 1.5)),
            ("sampleRatio", Box::new(|c| c.sample_ratio = f64::NAN)),
            ("endpoint is not a URL", endpoint("collector")),
            (
                "endpoint must begin with http",
                endpoint("grpc://collector:4317/"),
            ),
            (
                "endpoint must have a path",
                endpoint("http://collector:4318"),
            ),
            (
                "endpoint must not contain a login",
                endpoint("http://anna:sesame@a/v1/traces"),
            ),
            (
                "headersFile",
                Box::new(|c| c.headers_file = Some("/nonexistent".into())),
            ),
            (
                "line 2 is not",
                Box::new(|c| c.headers_file = Some(bad.path().to_owned())),
            ),
            (
                "caFile",
                Box::new(|c| c.ca_file = Some("/nonexistent".into())),
            ),
            (
                "contains no certificate (PEM)",
                Box::new(|c| c.ca_file = Some(bad.path().to_owned())),
            ),
        ];
        for (expected, change) in cases {
            let mut config = config();
            change(&mut config);
            let refused = config.validate().unwrap_err().to_string();
            let refused = refused.replace('`', "");
            assert!(refused.contains(expected), "{expected}: {refused}");
            assert!(!refused.contains("sesame"), "{refused}");
        }
    }
}
