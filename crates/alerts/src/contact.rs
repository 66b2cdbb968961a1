//! Which contacts are taken: judged when a request comes in, and again before anybody is told, since
//! a request that was written straight to its topic has passed no ingestion.
//!
//! What must hold: a contact that passes is the one form of its kind, so that the same request has
//! the same hash, and nothing in it can name a second receiver or a header. No error repeats a
//! contact.

use std::net::IpAddr;

use lettre::Address;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use waybill_engine::Contact;

const MAILTO: &str = "mailto:";
const TEL: &str = "tel:";

/// The most digits of a number, country code included (E.164).
const DIGITS_MAX: usize = 15;

/// What of an address' first half is written as it is in a `mailto:` URI (RFC 6068, section 2).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'+')
    .remove(b'!')
    .remove(b'$')
    .remove(b'*')
    .remove(b'\'');

/// How people are told here. By default they are not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContactRules {
    /// The domains of addresses that e-mails go to, none for any; `None` if nobody is told by e-mail.
    pub email_domains: Option<Vec<String>>,
    /// Whether people are told by text message.
    pub sms: bool,
}

/// How a contact is reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactChannel {
    /// By e-mail.
    Email,
    /// By text message.
    Sms,
}

impl ContactChannel {
    /// Its name, as it stands in metrics and log lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Sms => "sms",
        }
    }

    /// The channel that a contact's scheme names.
    #[must_use]
    pub fn of_contact(contact: &Contact) -> Option<Self> {
        Self::of(contact.reveal()).map(|(channel, _)| channel)
    }

    /// The channel that a URI's scheme names, and what follows the scheme.
    fn of(uri: &str) -> Option<(Self, &str)> {
        let after = |scheme: &str| {
            let head = uri.get(..scheme.len())?;
            head.eq_ignore_ascii_case(scheme)
                .then(|| &uri[scheme.len()..])
        };
        let email = after(MAILTO).map(|rest| (Self::Email, rest));
        email.or_else(|| after(TEL).map(|rest| (Self::Sms, rest)))
    }
}

/// A contact that may be told.
#[derive(Clone, PartialEq, Eq)]
pub struct Reachable {
    /// How it is reached.
    pub channel: ContactChannel,
    /// Its one form.
    pub contact: Contact,
    /// The address, or the number from its plus sign on: personal data.
    pub to: String,
}

/// Why a contact is not taken. It does not say which.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContactError {
    /// It is longer than one may be.
    #[error("must be at most {} characters", Contact::BYTES_MAX)]
    TooLong,
    /// It is no URI of a kind that is known.
    #[error("must be a URI such as mailto:anna@example.org or tel:+491701234567")]
    UnknownKind,
    /// It is not one address and nothing else.
    #[error(
        "must be mailto: and one address in ASCII, as in mailto:anna@example.org, without a query"
    )]
    NotAnAddress,
    /// It is not one number and nothing else.
    #[error(
        "must be tel: and one global number of at most {DIGITS_MAX} digits, as in \
         tel:+491701234567, without parameters"
    )]
    NotANumber,
    /// E-mails are not sent.
    #[error("cannot be notified: e-mail is disabled (alerts.owners.email is not set)")]
    NoEmail,
    /// Text messages are not sent.
    #[error("cannot be notified: SMS is disabled (alerts.owners.sms is not set)")]
    NoSms,
    /// E-mails are sent to other domains only.
    #[error("must be an address at one of {0}")]
    OtherDomain(String),
}

impl ContactRules {
    /// Reads a contact and judges whether it may be told.
    ///
    /// # Errors
    ///
    /// If it is none, or that channel is not configured.
    pub fn read(&self, uri: &str) -> Result<Reachable, ContactError> {
        if uri.len() > Contact::BYTES_MAX {
            return Err(ContactError::TooLong);
        }
        let reachable = match ContactChannel::of(uri).ok_or(ContactError::UnknownKind)? {
            (ContactChannel::Email, rest) => self.email(rest)?,
            (ContactChannel::Sms, rest) => self.sms(rest)?,
        };
        // Its one form may be longer than what was written.
        match reachable.contact.reveal().len() {
            ..=Contact::BYTES_MAX => Ok(reachable),
            _ => Err(ContactError::TooLong),
        }
    }

    fn email(&self, rest: &str) -> Result<Reachable, ContactError> {
        let (user, domain) = address(rest).ok_or(ContactError::NotAnAddress)?;
        let domains = self.email_domains.as_ref().ok_or(ContactError::NoEmail)?;
        let is_allowed = |allowed: &String| allowed.eq_ignore_ascii_case(&domain);
        if !domains.is_empty() && !domains.iter().any(is_allowed) {
            return Err(ContactError::OtherDomain(domains.join(", ")));
        }
        let encoded = utf8_percent_encode(&user, ENCODED);
        Ok(Reachable {
            channel: ContactChannel::Email,
            contact: Contact::new(format!("{MAILTO}{encoded}@{domain}")),
            to: format!("{user}@{domain}"),
        })
    }

    fn sms(&self, rest: &str) -> Result<Reachable, ContactError> {
        let number = number(rest).ok_or(ContactError::NotANumber)?;
        if !self.sms {
            return Err(ContactError::NoSms);
        }
        Ok(Reachable {
            channel: ContactChannel::Sms,
            contact: Contact::new(format!("{TEL}{number}")),
            to: number,
        })
    }
}

/// Whether this can be the domain of an address: a name, and not a machine's number.
#[must_use]
pub fn is_domain(domain: &str) -> bool {
    let is_name = domain
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    is_name && domain.parse::<IpAddr>().is_err() && Address::new("a", domain).is_ok()
}

/// The halves of an address whose first is a dot-atom (RFC 5322): a quoted one can hold anything.
fn address(text: &str) -> Option<(String, String)> {
    if text.contains(['?', '#']) {
        return None;
    }
    let text = percent_decode_str(text).decode_utf8().ok()?;
    let address: Address = text.parse().ok()?;
    let is_atom =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte);
    let is_plain = address.user().bytes().all(is_atom) && is_domain(address.domain());
    is_plain.then(|| {
        let domain = address.domain().to_ascii_lowercase();
        (address.user().to_owned(), domain)
    })
}

/// A global number without what separates its digits for the eye (RFC 3966, section 3).
fn number(text: &str) -> Option<String> {
    let digits = text.strip_prefix('+')?;
    let digits: String = digits
        .chars()
        .filter(|char| !matches!(char, '-' | '.' | '(' | ')'))
        .collect();
    let is_number = (1..=DIGITS_MAX).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0');
    is_number.then(|| format!("+{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anyone() -> ContactRules {
        ContactRules {
            email_domains: Some(Vec::new()),
            sms: true,
        }
    }

    #[test]
    fn every_way_to_write_a_contact_leads_to_its_one_form() {
        for (written, contact, to) in [
            (
                "mailto:anna@example.org",
                "mailto:anna@example.org",
                "anna@example.org",
            ),
            (
                "MailTo:Anna.B+x@EXAMPLE.org",
                "mailto:Anna.B+x@example.org",
                "Anna.B+x@example.org",
            ),
            ("mailto:a%2Bb@b.c", "mailto:a+b@b.c", "a+b@b.c"),
            ("mailto:a%25%3fb@b.c", "mailto:a%25%3Fb@b.c", "a%?b@b.c"),
            ("tel:+491701234567", "tel:+491701234567", "+491701234567"),
            (
                "TEL:+49-(170)-123.4567",
                "tel:+491701234567",
                "+491701234567",
            ),
        ] {
            let read = anyone().read(written).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((read.contact.reveal(), &*read.to), (contact, to));
            let again = anyone().read(contact);
            assert!(again == Ok(read), "{contact}");
        }
    }

    #[test]
    fn what_is_more_or_less_than_one_contact_is_refused() {
        use ContactError::{NotANumber, NotAnAddress, TooLong, UnknownKind};
        let long = format!("mailto:{}@example.org", "a".repeat(400));
        let grows = format!("mailto:{}@{}.org", "`".repeat(60), "b.".repeat(90) + "b");
        for (uri, error) in [
            ("", UnknownKind),
            ("anna@example.org", UnknownKind),
            ("https://example.org", UnknownKind),
            ("mailto", UnknownKind),
            ("mailto:", NotAnAddress),
            ("mailto:anna", NotAnAddress),
            ("mailto:anna@example.org?cc=eve@example.org", NotAnAddress),
            ("mailto:anna@example.org,eve@example.org", NotAnAddress),
            ("mailto:anna@example.org%2Ceve@example.org", NotAnAddress),
            ("mailto:anna%0d%0aBcc:eve@example.org", NotAnAddress),
            ("mailto:%22a b%22@example.org", NotAnAddress),
            ("mailto:anna@[10.0.0.1]", NotAnAddress),
            ("mailto:anna@10.0.0.1", NotAnAddress),
            ("mailto:ann%C3%A4@example.org", NotAnAddress),
            ("mailto:Anna <anna@example.org>", NotAnAddress),
            (&long, TooLong),
            (&grows, TooLong),
            ("tel:", NotANumber),
            ("tel:110", NotANumber),
            ("tel:+", NotANumber),
            ("tel:+0049170", NotANumber),
            ("tel:+1234567890123456", NotANumber),
            ("tel:+49170;ext=7", NotANumber),
            ("tel:+49 170", NotANumber),
            ("tel:+49٣", NotANumber),
        ] {
            let read = anyone().read(uri);
            assert_eq!(read.err(), Some(error), "{uri}");
        }
    }

    #[test]
    fn nobody_is_told_unless_the_configuration_says_how_and_whom() {
        let none = ContactRules::default();
        let email = "mailto:anna@example.org";
        assert_eq!(none.read(email).err(), Some(ContactError::NoEmail));
        assert_eq!(none.read("tel:+1").err(), Some(ContactError::NoSms));

        let some = ContactRules {
            email_domains: Some(vec!["Example.com".to_owned(), "example.net".to_owned()]),
            sms: false,
        };
        assert!(some.read("mailto:anna@example.COM").is_ok());
        let error = some.read(email).err().unwrap().to_string();
        assert_eq!(
            error,
            "must be an address at one of Example.com, example.net"
        );
        // To end alike is not to be the same.
        assert!(some.read("mailto:anna@evil-example.com").is_err());
        assert!(some.read("mailto:anna@sub.example.com").is_err());
    }

    #[test]
    fn no_error_repeats_a_contact() {
        for uri in ["mailto:anna@example.org?x", "tel:+49170x", "anna"] {
            let error = anyone().read(uri).err().unwrap();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("170x") && !shown.contains("?x"), "{shown}");
        }
    }
}
