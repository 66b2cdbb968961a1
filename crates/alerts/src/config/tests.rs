use std::fs;

use waybill_config::{Configuration, Environment, parse_over_defaults};

use super::*;

/// A configuration with no other section.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Config {
    pub(super) alerts: AlertsConfig,
}

impl Configuration for Config {
    const OPEN_KEYS: &'static [waybill_config::OpenKey] = &[];
    const FILE_KEYS: &'static [&'static str] = &[
        "alerts.receivers",
        "alerts.owners.email",
        "alerts.owners.sms",
    ];
    const OTHER_VARIABLES: &'static [&'static str] = &[];
}

impl Config {
    pub(super) fn finish(mut self) -> Result<Self, ConfigError> {
        self.alerts.read_files(&mut SecretFiles::default())?;
        self.alerts.validate()?;
        Ok(self)
    }
}

const BOTH: &str = "
alerts:
  dedupWindow: 30s
  receivers:
    pager:
      webhook:
        url: https://pager.example/hooks/capability
        secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0
        headers: {Authorization: Bearer hunter2}
    on-call:
      email:
        smtp:
          host: mail.example
          user: waybill
          password: hunter3
          from: Waybill <waybill@example.com>
        to: [ops@example.com, Ada <ada@example.com>]
";

#[test]
fn webhooks_and_mailboxes_are_read_together() {
    let config = parse_over_defaults::<Config>("w.yaml", BOTH)
        .unwrap()
        .finish()
        .unwrap();
    let names: Vec<_> = config.alerts.receivers.keys().collect();
    assert_eq!(names, ["on-call", "pager"]);
}

#[test]
fn no_secret_is_shown() {
    let config = parse_over_defaults::<Config>("w.yaml", BOTH).unwrap();
    for text in [
        format!("{config:?}"),
        serde_json::to_string(&config).unwrap(),
    ] {
        assert!(text.contains("https://pager.example/(redacted)"), "{text}");
        for secret in ["capability", "hunter", "MTIz"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn secrets_of_receivers_are_read_from_files_and_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let url = write("url", "https://pager.example/x\n");
    let secret = write("secret", "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0\n");
    let token = write("token", "Bearer hunter2\r\n");
    let text = format!(
        "alerts: {{receivers: {{pager: {{webhook: {{urlFile: {url}, secretFile: {secret}, \
         headerFiles: {{Authorization: {token}}}}}}}}}}}"
    );
    let config = parse_over_defaults::<Config>("w.yaml", &text)
        .unwrap()
        .finish()
        .unwrap();
    let Some(ReceiverConfig::Webhook(webhook)) = config.alerts.receivers.get("pager") else {
        panic!("{config:?}");
    };
    assert_eq!(webhook.url, Some("https://pager.example/x".into()));
    let secret = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0";
    assert_eq!(webhook.secret, Some(secret.into()));
    assert_eq!(webhook.headers["Authorization"].reveal(), "Bearer hunter2");

    let missing = text.replace(&token, "/nonexistent/token");
    let error = parse_over_defaults::<Config>("w.yaml", &missing)
        .unwrap()
        .finish();
    assert_eq!(
        error.unwrap_err().to_string(),
        "alerts.receivers.pager.webhook.headers.Authorization: /nonexistent/token cannot be \
         read"
    );
}

#[test]
fn a_value_in_a_file_and_in_the_configuration_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().display();
    for (line, with_file) in [
        ("  password: hunter3", "  passwordFile"),
        (
            "secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0",
            "secretFile",
        ),
        ("url: https://pager.example/hooks/capability", "urlFile"),
    ] {
        let text = BOTH.replace(line, &format!("{line}\n        {with_file}: {file}"));
        let error = parse_over_defaults::<Config>("w.yaml", &text)
            .unwrap()
            .finish();
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("remove one of them"), "{error}");
    }
}

#[test]
fn invalid_values_are_refused_by_key() {
    let cases = [
        ("dedupWindow: 30s", "dedupWindow: 0s", "alerts.dedupWindow"),
        ("dedupWindow: 30s", "queueMax: 0", "alerts.queueMax"),
        ("dedupWindow: 30s", "foldedMax: 0", "alerts.foldedMax"),
        ("dedupWindow: 30s", "attemptsMax: 0", "alerts.attemptsMax"),
        ("dedupWindow: 30s", "timeout: 0s", "alerts.timeout"),
        ("dedupWindow: 30s", "backoff: 6m", "alerts.backoff"),
        ("pager:", "the pager:", "alerts.receivers has the name"),
        (
            "https://pager.example/hooks",
            "ftp://pager.example/hooks",
            "alerts.receivers.pager.webhook.url",
        ),
        (
            "MTIzNDU2",
            "hunter4",
            "alerts.receivers.pager.webhook.secret",
        ),
        (
            "Authorization: ",
            "Webhook-Id: ",
            "alerts.receivers.pager.webhook.headers.Webhook-Id",
        ),
        (
            "ops@example.com",
            "ops",
            "alerts.receivers.on-call.email.to",
        ),
        (
            "waybill@example.com",
            "nobody",
            "alerts.receivers.on-call.email.smtp.from",
        ),
        (
            "host: mail.example",
            "host: mail.example\n          tls: none",
            "alerts.receivers.on-call.email.smtp.password",
        ),
        (
            "user: waybill",
            "port: 25",
            "alerts.receivers.on-call.email.smtp.user",
        ),
    ];
    for (from, to, key) in cases {
        let text = BOTH.replace(from, to);
        let error = parse_over_defaults::<Config>("w.yaml", &text)
            .unwrap()
            .finish();
        let error = error.expect_err(to).to_string();
        assert!(error.starts_with(key), "{key}: {error}");
        assert!(!error.contains("hunter"), "{error}");
    }
}

#[test]
fn other_variables_do_not_change_the_secrets_of_receivers() {
    let mut config = parse_over_defaults::<Config>("w.yaml", BOTH).unwrap();
    let receivers = config.alerts.receivers.clone();
    let environment: Environment = [("WAYBILL_ALERTS__DEDUP_WINDOW", "5s")]
        .into_iter()
        .collect();
    config = environment.apply(config).unwrap();
    assert_eq!(config.alerts.dedup_window, Duration::from_secs(5));
    assert_eq!(config.alerts.receivers, receivers);

    let name = "WAYBILL_ALERTS__RECEIVERS";
    let environment: Environment = [(name, "hunter2")].into_iter().collect();
    let error = environment.apply(config).unwrap_err().to_string();
    assert!(
        error.contains(&format!("unknown environment variable {name}")),
        "{error}"
    );
    assert!(!error.contains("hunter"), "{error}");
}

#[test]
fn an_unknown_key_of_a_receiver_is_refused_with_its_place() {
    let text = BOTH.replace("user: waybill", "usr: waybill");
    let error = parse_over_defaults::<Config>("w.yaml", &text)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "w.yaml:14:11: unknown key alerts.receivers.on-call.email.smtp.usr; did you mean \
         alerts.receivers.on-call.email.smtp.user?"
    );
}
