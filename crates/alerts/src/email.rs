//! Alerts as e-mails.
//!
//! Every address gets its own e-mail, so that a refused address does not keep the alert from the
//! others, and a retry goes only to the addresses that still lack it. The `Message-ID` contains the
//! id of the event. A header marks the e-mail as automatic (RFC 3834), so that no program replies.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use lettre::Address;
use lettre::address::Envelope;
use lettre::message::Mailbox;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Code;
use tokio::time;
use uuid::Uuid;
use waybill_telemetry::chain;

use super::ReceiverError;
use super::alert::{AlertError, Message, clip};
use super::failure::Failure;
use super::trust::read_certificates;
use crate::config::{EmailConfig, EmailTls, SmtpConfig};

/// The maximum length of a subject, in bytes: mail programs show less of it.
pub(super) const SUBJECT_BYTES_MAX: usize = 160;

/// The limit on addresses of one receiver. Use a mailing list to reach more people.
const ADDRESSES_MAX: usize = 100;

/// A server's explanation is clipped at this length, in bytes.
const CAUSE_BYTES_MAX: usize = 512;

/// How long a server may take to end the session. Messages that it accepted before are delivered.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// A receiver that gets e-mails.
pub(super) struct Email {
    server: Server,
    timeout: Duration,
    to: Vec<Mailbox>,
}

impl Email {
    pub(super) fn new(config: &EmailConfig, timeout: Duration) -> Result<Self, ReceiverError> {
        if !(1..=ADDRESSES_MAX).contains(&config.to.len()) {
            let problem = format!("must name 1 to {ADDRESSES_MAX} addresses");
            return Err(ReceiverError::new("to", problem));
        }
        let to = config.to.iter();
        let to = to.map(|address| read_mailbox("to", address));
        Ok(Self {
            server: Server::new(&config.smtp).map_err(|error| error.below("smtp"))?,
            timeout,
            to: to.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn prepare(&self, message: &Message) -> Result<EmailDelivery<'_>, Failure> {
        let mut subject = format!("[Waybill] {}", message.headline());
        clip(&mut subject, SUBJECT_BYTES_MAX);
        let id = message.alert.event_id;
        Ok(EmailDelivery {
            email: self,
            left: self.to.iter().map(|mailbox| &mailbox.email).collect(),
            was_taken: false,
            bytes: write_email(&self.server.from, &self.to, subject, id, text(message))?,
        })
    }
}

/// Builds an e-mail whose id is the same in every delivery.
pub(super) fn write_email(
    from: &Mailbox,
    to: &[Mailbox],
    subject: String,
    id: Uuid,
    text: String,
) -> Result<Vec<u8>, Failure> {
    let mut message = lettre::Message::builder()
        .from(from.clone())
        .subject(subject)
        .message_id(Some(format!("<{id}@{}>", from.email.domain())))
        .raw_header(HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        ))
        .header(ContentType::TEXT_PLAIN);
    for mailbox in to {
        message = message.to(mailbox.clone());
    }
    let message = message.body(text).map_err(|error| Failure::Refused {
        cause: chain(&error),
    })?;
    Ok(message.formatted())
}

/// An e-mail and its remaining addresses.
pub(super) struct EmailDelivery<'a> {
    email: &'a Email,
    bytes: Vec<u8>,
    /// The addresses that have neither accepted nor refused it.
    left: Vec<&'a Address>,
    /// Whether any address accepted it.
    was_taken: bool,
}

impl EmailDelivery<'_> {
    /// Sends to all remaining addresses. Ends at the first failure without an answer of the server,
    /// so that an unreachable server is tried once per attempt, not once per address.
    pub(super) async fn attempt(&mut self) -> Result<(), Failure> {
        let mut passing = None;
        let mut refused = None;
        let mut still_left = Vec::new();
        let mut addresses = std::mem::take(&mut self.left).into_iter();
        for address in addresses.by_ref() {
            match self.write_to(address).await {
                Ok(()) => self.was_taken = true,
                Err(Unwritten {
                    cause, is_final, ..
                }) if is_final => {
                    tracing::error!(%address, cause, "the server refused an address of an alert");
                    refused = Some(cause);
                }
                Err(Unwritten {
                    cause, is_answer, ..
                }) => {
                    still_left.push(address);
                    passing = Some(cause);
                    if !is_answer {
                        break;
                    }
                }
            }
        }
        still_left.extend(addresses);
        self.left = still_left;
        match (passing, refused) {
            (Some(cause), _) => Err(Failure::passing(cause)),
            (None, Some(cause)) if !self.was_taken => Err(Failure::Refused { cause }),
            (None, _) => Ok(()),
        }
    }

    async fn write_to(&self, address: &Address) -> Result<(), Unwritten> {
        let email = self.email;
        let server = &email.server;
        let envelope = server.envelope_to(address.clone());
        server.send(&envelope, &self.bytes, email.timeout).await
    }
}

/// Why an e-mail to an address failed.
pub(super) struct Unwritten {
    /// May contain the address.
    cause: String,
    /// The code of the server's answer, if that is the cause.
    code: Option<Code>,
    /// Whether a retry would get the same answer.
    pub(super) is_final: bool,
    /// Whether the server gave this answer.
    is_answer: bool,
    /// Whether the server gave no answer at all: then the cause is on this side.
    is_unreachable: bool,
}

impl From<SmtpError> for Unwritten {
    fn from(error: SmtpError) -> Self {
        let mut cause = error.to_string();
        clip(&mut cause, CAUSE_BYTES_MAX);
        Self {
            cause,
            is_final: error.is_permanent(),
            is_answer: error.is_permanent() || error.is_transient(),
            code: error.status(),
            is_unreachable: !error.is_response(),
        }
    }
}

impl Unwritten {
    /// The cause without any text from the server, except its code.
    pub(super) fn without_text(&self) -> String {
        match self.code {
            Some(code) => format!("the server answered {code}"),
            None if self.is_unreachable => self.cause.clone(),
            None => "the server sent an invalid reply".to_owned(),
        }
    }
}

/// The SMTP server, how to connect to it, and the sender of what it gets.
pub(super) struct Server {
    host: String,
    port: u16,
    security: Security,
    credentials: Option<Credentials>,
    pub(super) from: Mailbox,
}

enum Security {
    Starttls(TlsParameters),
    Tls(TlsParameters),
    None,
}

impl Server {
    pub(super) fn new(config: &SmtpConfig) -> Result<Self, ReceiverError> {
        let host = config.host.clone();
        if host.is_empty() {
            return Err(ReceiverError::new("host", "must not be empty"));
        }
        let tls = || {
            let mut tls = TlsParameters::builder(host.clone());
            if let Some(path) = &config.ca_file {
                for certificate in read_certificates(path, Certificate::from_pem)? {
                    tls = tls.add_root_certificate(certificate);
                }
            }
            let tls = tls.build();
            tls.map_err(|error| ReceiverError::new("tls", error.to_string()))
        };
        let (security, usual_port) = match config.tls {
            EmailTls::Starttls => (Security::Starttls(tls()?), 587),
            EmailTls::Tls => (Security::Tls(tls()?), 465),
            EmailTls::None => (Security::None, 25),
        };
        Ok(Self {
            port: config.port.unwrap_or(usual_port),
            security,
            credentials: credentials(config)?,
            from: read_mailbox("from", &config.from)?,
            host,
        })
    }

    /// The envelope of an e-mail to one address.
    pub(super) fn envelope_to(&self, address: Address) -> Envelope {
        Envelope::new(Some(self.from.email.clone()), vec![address]).expect("there is an address")
    }

    /// Sends an e-mail within `timeout`.
    pub(super) async fn send(
        &self,
        envelope: &Envelope,
        message: &[u8],
        timeout: Duration,
    ) -> Result<(), Unwritten> {
        let sending = async {
            let mut connection = self.connect().await?;
            connection.send(envelope, message).await?;
            Ok::<_, SmtpError>(connection)
        };
        match time::timeout(timeout, sending).await {
            Ok(Ok(mut connection)) => {
                let _ = time::timeout(GOODBYE_TIMEOUT, connection.quit()).await;
                Ok(())
            }
            Ok(Err(error)) => Err(Unwritten::from(error)),
            Err(_) => Err(Unwritten {
                cause: "no answer in time".to_owned(),
                code: None,
                is_final: false,
                is_answer: false,
                is_unreachable: true,
            }),
        }
    }

    /// Connects with the configured protection, and logs in. If STARTTLS is required and the server
    /// does not offer it, nothing is sent.
    async fn connect(&self) -> Result<AsyncSmtpConnection, SmtpError> {
        let name = ClientId::default();
        let tls = match &self.security {
            Security::Tls(parameters) => Some(parameters.clone()),
            Security::Starttls(_) | Security::None => None,
        };
        let address = (self.host.as_str(), self.port);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(address, None, &name, tls, None).await?;
        if let Security::Starttls(parameters) = &self.security {
            connection.starttls(parameters.clone(), &name).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }
}

fn credentials(config: &SmtpConfig) -> Result<Option<Credentials>, ReceiverError> {
    let refuse = |key, problem| Err(ReceiverError::new(key, problem));
    match (&config.user, &config.password) {
        (None, None) => Ok(None),
        (None, Some(_)) => refuse("user", "is required if password is set"),
        (Some(_), None) => refuse("password", "is required if user is set"),
        (Some(_), Some(_)) if config.tls == EmailTls::None && !is_this_machine(&config.host) => {
            let problem = "would be sent unencrypted to another machine; use tls or starttls";
            refuse("password", problem)
        }
        (Some(user), Some(password)) => {
            let password = password.reveal().to_owned();
            Ok(Some(Credentials::new(user.clone(), password)))
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

fn read_mailbox(key: &str, text: &str) -> Result<Mailbox, ReceiverError> {
    text.parse().map_err(|error| {
        let problem = format!("contains {text:?}, which is not an e-mail address: {error}");
        ReceiverError::new(key, problem)
    })
}

/// The body, as plain text.
fn text(message: &Message) -> String {
    let alert = &message.alert;
    let error = alert.error.as_ref();
    let error = error.map(|AlertError { code, message }| format!("{code}: {message}"));
    let time = alert.at.to_string();
    let event = alert.event_id.to_string();
    let lines = [
        ("What to do", Some(&alert.advice)),
        ("Operation", Some(&alert.operation)),
        ("Caller's id", alert.caller_id.as_ref()),
        ("Workflow", Some(&alert.workflow)),
        ("Tenant", Some(&alert.tenant)),
        ("Step", alert.step.as_ref()),
        ("Error", error.as_ref()),
        ("Time", Some(&time)),
        ("Event", Some(&event)),
    ];
    let mut text = format!("{}\n\n", message.headline());
    for (name, value) in lines {
        if let Some(value) = value
            && !value.is_empty()
        {
            writeln!(text, "{name}: {value}").expect("writing to a String cannot fail");
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use waybill_config::Secret;
    use waybill_config::testing::{Changes, assert_refused};

    use super::super::alert::tests::alert;
    use super::*;

    /// A server without a login.
    pub fn smtp() -> SmtpConfig {
        SmtpConfig {
            host: "mail.example".to_owned(),
            port: None,
            tls: EmailTls::None,
            ca_file: None,
            user: None,
            password: None,
            password_file: None,
            from: "Waybill <waybill@example.com>".to_owned(),
        }
    }

    fn config() -> EmailConfig {
        EmailConfig {
            smtp: smtp(),
            to: vec![
                "ops@example.com".to_owned(),
                "Ada <ada@example.com>".to_owned(),
            ],
        }
    }

    fn written(message: &Message) -> String {
        let email = Email::new(&config(), Duration::from_secs(1)).unwrap_or_else(|e| panic!("{e}"));
        let delivery = email.prepare(message).unwrap_or_else(|e| panic!("{e:?}"));
        String::from_utf8(delivery.bytes).unwrap()
    }

    #[test]
    fn a_mail_states_the_event_and_the_next_action() {
        let mut message = Message {
            alert: alert(),
            repeats: 0,
        };
        message.alert.error.as_mut().unwrap().message = "no drone is free".to_owned();
        let mail = written(&message);
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        for line in [
            "From: Waybill <waybill@example.com>",
            "To: ops@example.com, Ada <ada@example.com>",
            "Subject: [Waybill] operation-parked: drone-delivery, step drone: no-drone",
            "Message-ID: <00000000-0000-0000-0000-000000000007@example.com>",
            "Auto-Submitted: auto-generated",
            "Content-Type: text/plain; charset=utf-8",
        ] {
            assert!(
                head.replace("\r\n ", " ").lines().any(|l| l == line),
                "{line}\n{head}"
            );
        }
        assert_eq!(
            body.replace("\r\n", "\n"),
            "operation-parked: drone-delivery, step drone: no-drone\n\n\
             What to do: Resubmit it once drones are back.\n\
             Operation: op-1\n\
             Workflow: drone-delivery\n\
             Tenant: acme\n\
             Step: drone\n\
             Error: no-drone: no drone is free\n\
             Time: 2026-01-02T03:04:05Z\n\
             Event: 00000000-0000-0000-0000-000000000007\n"
        );
    }

    #[test]
    fn no_value_of_an_alert_can_add_a_header() {
        let mut message = Message {
            alert: alert(),
            repeats: 0,
        };
        message.alert.kind = "parked\r\nBcc: mallory@example.com\r\n\r\nhello".to_owned();
        message.alert.workflow = "w".repeat(500);
        let mail = written(&message);
        let (head, _) = mail.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(head.contains("Auto-Submitted"), "{head}");
        assert!(head.lines().all(|line| line.len() < 200), "{head}");
    }

    #[test]
    fn invalid_values_are_refused_by_key() {
        let check = |config: &EmailConfig| Email::new(config, Duration::from_secs(1)).map(drop);
        let changes: Changes<'_, EmailConfig> = &[
            ("smtp.from contains", |c| c.smtp.from = "nobody".to_owned()),
            ("to must name", |c| c.to.clear()),
            ("to contains", |c| c.to.push("a@b@c".to_owned())),
            ("smtp.host must not", |c| c.smtp.host.clear()),
            ("smtp.user is required", |c| {
                c.smtp.password = Some(Secret::from("hunter2"))
            }),
            ("smtp.password is required", |c| {
                c.smtp.user = Some("waybill".to_owned())
            }),
            ("smtp.password would be sent unencrypted", |c| {
                c.smtp.user = Some("waybill".to_owned());
                c.smtp.password = Some(Secret::from("hunter2"));
            }),
        ];
        let errors = assert_refused(&config(), check, changes);
        assert!(!errors.concat().contains("hunter"), "{errors:?}");
    }
}
