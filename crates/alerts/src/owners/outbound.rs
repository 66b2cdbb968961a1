//! The channels to owners, and the delivery of a message.
//!
//! What must hold: the cause of a failure never names the contact. It contains neither the address
//! nor the server's text, which often repeats the address.

use std::time::Duration;

use lettre::Address;
use lettre::address::Envelope;
use lettre::message::Mailbox;
use tokio::sync::Semaphore;
use waybill_telemetry::visible::on_one_line;

use super::message::OwnerMessage;
use crate::ReceiverError;
use crate::alert::clip;
use crate::channel::Attempt;
use crate::config::{OwnerEmailConfig, WebhookConfig};
use crate::email::{SUBJECT_BYTES_MAX, Server, write_email};
use crate::failure::Failure;
use crate::template::{Escape, Template};
use crate::webhook::{Call, Endpoint, template_of};

/// The default subject.
const SUBJECT: &str = "{{notice.text}}";

/// The default text.
const TEXT: &str = "{{notice.text}}\n\n\
    Operation: {{notice.operation}}\n\
    Time: {{notice.at}}\n\n\
    You are receiving this message because this address was registered for notifications about \
    this operation.\n\
    This is an automated message; replies are not read.\n";

/// A channel to owners.
pub(super) enum Outbound {
    Email(Box<OwnerEmail>),
    Sms(Box<OwnerSms>),
}

/// The e-mail channel to owners.
pub(super) struct OwnerEmail {
    server: Server,
    timeout: Duration,
    subject: Template<OwnerMessage>,
    text: Template<OwnerMessage>,
}

/// The SMS channel to owners.
pub(super) struct OwnerSms {
    endpoint: Endpoint,
    template: Template<OwnerMessage>,
}

impl Outbound {
    /// Creates the e-mail channel. `timeout` bounds one attempt.
    pub(super) fn email(
        config: &OwnerEmailConfig,
        timeout: Duration,
    ) -> Result<Self, ReceiverError> {
        let template = |key, text: Option<&String>, usual: &str| {
            let text = text.map_or(usual, String::as_str);
            Template::compile(text, Escape::Plain)
                .map_err(|problem| ReceiverError::new(key, problem))
        };
        Ok(Self::Email(Box::new(OwnerEmail {
            server: Server::new(&config.smtp).map_err(|error| error.below("smtp"))?,
            timeout,
            subject: template("subject", config.subject.as_ref(), SUBJECT)?,
            text: template("text", config.text.as_ref(), TEXT)?,
        })))
    }

    /// Creates the SMS channel. `timeout` bounds one attempt.
    pub(super) fn sms(config: &WebhookConfig, timeout: Duration) -> Result<Self, ReceiverError> {
        let template = template_of(config)?.ok_or_else(|| {
            ReceiverError::new("template", "is required: it is the body for the gateway")
        })?;
        Ok(Self::Sms(Box::new(OwnerSms {
            endpoint: Endpoint::new(config, timeout)?,
            template,
        })))
    }

    /// Renders a message, the same for all attempts. Each attempt waits for one of `turns`.
    pub(super) fn prepare<'a>(
        &'a self,
        message: &OwnerMessage,
        turns: &'a Semaphore,
    ) -> Result<Outgoing<'a>, Failure> {
        let delivery = match self {
            Self::Email(email) => Delivery::Email(email.prepare(message)?),
            Self::Sms(sms) => {
                let body = sms.template.render(message);
                Delivery::Call(sms.endpoint.call(message.id, body))
            }
        };
        Ok(Outgoing { delivery, turns })
    }
}

impl OwnerEmail {
    fn prepare(&self, message: &OwnerMessage) -> Result<EmailDelivery<'_>, Failure> {
        // The original cause would name the address.
        let unusable = |_| Failure::Refused {
            cause: "invalid address".to_owned(),
        };
        let to: Address = message.to.parse().map_err(unusable)?;
        let mut subject = on_one_line(&self.subject.render(message));
        clip(&mut subject, SUBJECT_BYTES_MAX);
        let text = self.text.render(message);
        let mailbox = Mailbox::new(None, to.clone());
        Ok(EmailDelivery {
            email: self,
            bytes: write_email(&self.server.from, &[mailbox], subject, message.id, text)?,
            envelope: self.server.envelope_to(to),
        })
    }
}

/// A rendered message.
pub(super) struct Outgoing<'a> {
    delivery: Delivery<'a>,
    turns: &'a Semaphore,
}

enum Delivery<'a> {
    Email(EmailDelivery<'a>),
    Call(Call<'a>),
}

struct EmailDelivery<'a> {
    email: &'a OwnerEmail,
    envelope: Envelope,
    bytes: Vec<u8>,
}

impl Attempt for Outgoing<'_> {
    async fn attempt(&mut self) -> Result<(), Failure> {
        let _turn = self.turns.acquire().await;
        match &self.delivery {
            Delivery::Email(email) => email.attempt().await,
            Delivery::Call(call) => call.attempt().await,
        }
    }
}

impl EmailDelivery<'_> {
    async fn attempt(&self) -> Result<(), Failure> {
        let Self {
            email,
            envelope,
            bytes,
        } = self;
        let sent = email.server.send(envelope, bytes, email.timeout).await;
        sent.map_err(|error| {
            let cause = error.without_text();
            match error.is_final {
                true => Failure::Refused { cause },
                false => Failure::passing(cause),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use waybill_config::testing::{Changes, assert_refused};

    use super::super::message::tests::notice;
    use super::*;
    use crate::email::tests::smtp;

    fn config() -> OwnerEmailConfig {
        OwnerEmailConfig {
            smtp: smtp(),
            domains: Vec::new(),
            subject: None,
            text: None,
        }
    }

    fn written(config: &OwnerEmailConfig, caller_id: &str) -> String {
        let outbound = Outbound::email(config, Duration::from_secs(1));
        let outbound = outbound.unwrap_or_else(|e| panic!("{e}"));
        let mut notice = notice();
        notice.caller_id = Some(caller_id.to_owned());
        let message = OwnerMessage::new(&notice, 0, "anna@example.org".to_owned());
        let turns = Semaphore::new(1);
        let outgoing = outbound.prepare(&message, &turns);
        let Ok(Outgoing {
            delivery: Delivery::Email(email),
            ..
        }) = outgoing
        else {
            panic!("it is an e-mail");
        };
        String::from_utf8(email.bytes).unwrap()
    }

    #[test]
    fn a_mail_reports_the_result_to_its_recipient_only() {
        let mail = written(&config(), "delivery-17");
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        for line in [
            "From: Waybill <waybill@example.com>",
            "To: anna@example.org",
            "Subject: Your drone-delivery delivery-17 is complete.",
            "Auto-Submitted: auto-generated",
        ] {
            assert!(head.lines().any(|l| l == line), "{line}\n{head}");
        }
        assert!(
            body.starts_with("Your drone-delivery delivery-17 is complete.\r\n\r\nOperation: ")
        );
        assert!(!mail.contains("acme"), "{mail}");
    }

    #[test]
    fn subject_and_text_are_configurable_and_no_value_adds_a_header() {
        let own = OwnerEmailConfig {
            subject: Some("News\nof {{notice.callerId}}: {{notice.state}}".to_owned()),
            text: Some("{{notice.text}} Call us.".to_owned()),
            ..config()
        };
        let mail = written(&own, "x\r\nBcc: eve@example.org\r\n\r\nhello");
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        assert!(
            head.replace("\r\n ", " ")
                .contains("Subject: News of x  Bcc: "),
            "{head}"
        );
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(body.trim_end().ends_with("is complete. Call us."), "{body}");
    }

    #[test]
    fn invalid_values_are_refused_by_key() {
        let check =
            |config: &OwnerEmailConfig| Outbound::email(config, Duration::from_secs(1)).map(drop);
        let changes: Changes<'_, OwnerEmailConfig> = &[
            ("smtp.from contains", |c| c.smtp.from = "nobody".to_owned()),
            ("smtp.host must not be empty", |c| c.smtp.host.clear()),
            ("subject has the unknown placeholder", |c| {
                c.subject = Some("{{alert.kind}}".to_owned());
            }),
            ("text has a {{", |c| {
                c.text = Some("{{notice.text".to_owned())
            }),
        ];
        assert_refused(&config(), check, changes);
        let sms = WebhookConfig {
            url: Some("https://sms.example/".into()),
            ..WebhookConfig::default()
        };
        let Err(error) = Outbound::sms(&sms, Duration::from_secs(1)) else {
            panic!("it has no template");
        };
        assert!(
            error.to_string().starts_with("template is required"),
            "{error}"
        );
    }
}
