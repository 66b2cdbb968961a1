//! The `alerts.owners` section: how owners are notified of their operations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::{ConfigError, SecretFiles};
use waybill_contacts::{ContactRules, is_domain};

use super::{SmtpConfig, WebhookConfig};

/// The `alerts.owners` section. By default no owner is notified, and requests with contacts are
/// refused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct OwnersConfig {
    /// Messages to one contact within an hour of the first; further ones are counted and not sent.
    pub messages_per_hour_max: u32,
    /// Contacts that one process notifies within an hour on one channel. At the limit, no further
    /// contact is notified until the hour of another has ended.
    pub contacts_max: usize,
    /// The e-mail channel; `null` if it is off.
    pub email: Option<OwnerEmailConfig>,
    /// The gateway for text messages, which needs a `template`; `null` if the channel is off.
    pub sms: Option<WebhookConfig>,
}

impl Default for OwnersConfig {
    fn default() -> Self {
        Self {
            messages_per_hour_max: 20,
            contacts_max: 100_000,
            email: None,
            sms: None,
        }
    }
}

/// How e-mails to owners are sent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OwnerEmailConfig {
    /// How they are sent.
    pub smtp: SmtpConfig,
    /// The domains of allowed addresses, which must match exactly; empty for all.
    #[serde(default)]
    pub domains: Vec<String>,
    /// The subject, with placeholders; `null` for Waybill's own.
    #[serde(default)]
    pub subject: Option<String>,
    /// The text, with placeholders; `null` for Waybill's own.
    #[serde(default)]
    pub text: Option<String>,
}

impl OwnersConfig {
    /// Which contacts may be notified.
    #[must_use]
    pub fn contact_rules(&self) -> ContactRules {
        let email = self.email.as_ref();
        ContactRules {
            email_domains: email.map(|email| email.domains.clone()),
            sms: self.sms.is_some(),
        }
    }

    /// Reads the values that the configuration keeps in files.
    pub(super) fn read_files(&mut self, files: &mut SecretFiles) -> Result<(), ConfigError> {
        if let Some(email) = &mut self.email {
            email.smtp.read_files(files, "alerts.owners.email.smtp")?;
        }
        if let Some(sms) = &mut self.sms {
            sms.read_files(files, "alerts.owners.sms")?;
        }
        Ok(())
    }

    /// Reports the first invalid value. Each channel checks its own settings when it is created.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let above_0 = "must be more than 0; to disable notifications, leave out email and sms";
        if self.messages_per_hour_max == 0 {
            return Err(ConfigError::invalid(
                "alerts.owners.messagesPerHourMax",
                above_0,
            ));
        }
        if self.contacts_max == 0 {
            return Err(ConfigError::invalid("alerts.owners.contactsMax", above_0));
        }
        let mut domains = self.email.iter().flat_map(|email| &email.domains);
        match domains.find(|domain| !is_domain(domain)) {
            Some(domain) => Err(ConfigError::invalid(
                "alerts.owners.email.domains",
                format!("contains {domain:?}, which is not a domain"),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use waybill_config::{Environment, parse_over_defaults};

    use super::super::tests::Config;

    const BOTH: &str = "
alerts:
  owners:
    messagesPerHourMax: 3
    email:
      smtp:
        host: mail.example
        user: waybill
        password: hunter3
        from: Waybill <waybill@example.com>
      domains: [example.org]
      subject: About {{notice.callerId}}
    sms:
      url: https://sms.example/hooks/capability
      headers: {Authorization: Bearer hunter2}
      template: '{\"to\": \"{{notice.to}}\", \"text\": \"{{notice.text}}\"}'
";

    #[test]
    fn email_and_sms_are_read_together() {
        let config = parse_over_defaults::<Config>("w.yaml", BOTH)
            .unwrap()
            .finish()
            .unwrap();
        let rules = config.alerts.owners.contact_rules();
        assert!(rules.sms);
        assert_eq!(rules.email_domains, Some(vec!["example.org".to_owned()]));
    }

    #[test]
    fn no_secret_is_shown_and_other_variables_do_not_change_secrets() {
        let mut config = parse_over_defaults::<Config>("w.yaml", BOTH).unwrap();
        for text in [
            format!("{config:?}"),
            serde_json::to_string(&config).unwrap(),
        ] {
            for secret in ["capability", "hunter"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
        let name = "WAYBILL_ALERTS__OWNERS__MESSAGES_PER_HOUR_MAX";
        let environment: Environment = [(name, "7")].into_iter().collect();
        let mut expected = config.clone();
        expected.alerts.owners.messages_per_hour_max = 7;
        config = environment.apply(config).unwrap();
        assert_eq!(config, expected);

        for name in [
            "WAYBILL_ALERTS__OWNERS__EMAIL",
            "WAYBILL_ALERTS__OWNERS__SMS",
        ] {
            let environment: Environment = [(name, "hunter2")].into_iter().collect();
            let error = environment.apply(config.clone()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("unknown environment variable {name}")),
                "{error}"
            );
            assert!(!error.contains("hunter"), "{error}");
        }
    }

    #[test]
    fn secrets_are_read_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (password, token) = (write("p", "hunter3\n"), write("t", "Bearer hunter2\n"));
        let text = BOTH
            .replace("password: hunter3", &format!("passwordFile: {password}"))
            .replace(
                "headers: {Authorization: Bearer hunter2}",
                &format!("headerFiles: {{Authorization: {token}}}"),
            );
        let read = parse_over_defaults::<Config>("w.yaml", &text)
            .unwrap()
            .finish()
            .unwrap();
        let whole = parse_over_defaults::<Config>("w.yaml", BOTH)
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(read.alerts, whole.alerts);
    }

    #[test]
    fn invalid_values_are_refused_by_key() {
        for (from, to, key) in [
            (
                "messagesPerHourMax: 3",
                "messagesPerHourMax: 0",
                "alerts.owners.messagesPerHourMax",
            ),
            (
                "messagesPerHourMax: 3",
                "contactsMax: 0",
                "alerts.owners.contactsMax",
            ),
            (
                "[example.org]",
                "['@example.org']",
                "alerts.owners.email.domains",
            ),
            (
                "waybill@example.com",
                "nobody",
                "alerts.owners.email.smtp.from",
            ),
            (
                "About {{notice.callerId}}",
                "About {{alert.kind}}",
                "alerts.owners.email.subject",
            ),
            (
                "host: mail.example",
                "host: mail.example\n        tls: none",
                "alerts.owners.email.smtp.password",
            ),
            (
                "\"{{notice.text}}\"",
                "{{notice.text}}",
                "alerts.owners.sms.template",
            ),
            (
                "https://sms.example",
                "ftp://sms.example",
                "alerts.owners.sms.url",
            ),
        ] {
            let text = BOTH.replace(from, to);
            let error = parse_over_defaults::<Config>("w.yaml", &text)
                .unwrap()
                .finish();
            let error = error.expect_err(to).to_string();
            assert!(error.starts_with(key), "{key}: {error}");
            assert!(!error.contains("hunter"), "{error}");
        }
    }
}
