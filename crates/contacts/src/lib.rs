//! Which contacts are accepted. Ingestion checks them when a request arrives. They are checked
//! again before a notification, because a request that was written straight to its topic bypasses
//! ingestion.
//!
//! What must hold: an accepted contact has the one normal form of its channel, so that the same
//! request has the same hash. Nothing in it can name a second receiver or a header. No error
//! repeats a contact.
//!
//! Deliberately absent: how a notification is sent. Ingestion depends on these rules alone, and a
//! change of the alerts does not compile it again.

use std::net::IpAddr;

use lettre::Address;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use waybill_engine::Contact;

const MAILTO: &str = "mailto:";
const TEL: &str = "tel:";

/// The maximum number of digits, country code included (E.164).
const DIGITS_MAX: usize = 15;

/// The characters of an address' local part that a `mailto:` URI does not encode (RFC 6068, section
/// 2).
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

/// How owners can be notified. By default not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContactRules {
    /// The domains of allowed addresses, empty for all; `None` if the e-mail channel is off.
    pub email_domains: Option<Vec<String>>,
    /// Whether the SMS channel is on.
    pub sms: bool,
}

/// The channel to a contact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContactChannel {
    /// E-mail.
    Email,
    /// Text message.
    Sms,
}

impl ContactChannel {
    /// The name of the channel, as in metrics and log lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Sms => "sms",
        }
    }

    /// The channel for a contact's scheme.
    #[must_use]
    pub fn of_contact(contact: &Contact) -> Option<Self> {
        Self::of(contact.reveal()).map(|(channel, _)| channel)
    }

    /// The channel for a URI's scheme, and the text after the scheme.
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

/// A contact that may be notified.
#[derive(Clone, PartialEq, Eq)]
pub struct Reachable {
    /// Its channel.
    pub channel: ContactChannel,
    /// Its normal form.
    pub contact: Contact,
    /// The address, or the number with its plus sign: personal data.
    pub to: String,
}

/// Why a contact is refused. It does not name the contact.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContactError {
    /// It is too long.
    #[error("must be at most {} characters", Contact::BYTES_MAX)]
    TooLong,
    /// It is not a URI with a known scheme.
    #[error("must be a URI such as mailto:anna@example.org or tel:+491701234567")]
    UnknownKind,
    /// It is not exactly one address.
    #[error(
        "must be mailto: and one address in ASCII, as in mailto:anna@example.org, without a query"
    )]
    NotAnAddress,
    /// It is not exactly one number.
    #[error(
        "must be tel: and one global number of at most {DIGITS_MAX} digits, as in \
         tel:+491701234567, without parameters"
    )]
    NotANumber,
    /// The e-mail channel is off.
    #[error("cannot be notified: e-mail is disabled (alerts.owners.email is not set)")]
    NoEmail,
    /// The SMS channel is off.
    #[error("cannot be notified: SMS is disabled (alerts.owners.sms is not set)")]
    NoSms,
    /// The e-mail channel is restricted to other domains.
    #[error("must be an address in one of these domains: {0}")]
    OtherDomain(String),
}

impl ContactRules {
    /// Parses a contact, and checks whether it may be notified.
    ///
    /// # Errors
    ///
    /// If it is invalid, or its channel is not configured.
    pub fn read(&self, uri: &str) -> Result<Reachable, ContactError> {
        if uri.len() > Contact::BYTES_MAX {
            return Err(ContactError::TooLong);
        }
        let reachable = match ContactChannel::of(uri).ok_or(ContactError::UnknownKind)? {
            (ContactChannel::Email, rest) => self.email(rest)?,
            (ContactChannel::Sms, rest) => self.sms(rest)?,
        };
        // The normal form may be longer than the input.
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

/// Whether this can be the domain of an address: a name, not an IP address.
#[must_use]
pub fn is_domain(domain: &str) -> bool {
    let is_name = domain
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    is_name && domain.parse::<IpAddr>().is_err() && Address::new("a", domain).is_ok()
}

/// The parts of an address whose local part is a dot-atom (RFC 5322): a quoted one can hold
/// anything.
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

/// A global number without visual separators (RFC 3966, section 3).
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
    fn contacts_are_normalized() {
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
    fn a_text_that_is_not_exactly_one_contact_is_refused() {
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
    fn contacts_are_refused_unless_the_configuration_allows_their_channel_and_domain() {
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
            "must be an address in one of these domains: Example.com, example.net"
        );
        // Domains must match exactly, not only at their end.
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
