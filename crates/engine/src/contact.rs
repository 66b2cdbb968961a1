//! Where a person is notified about an operation.
//!
//! A contact is personal data. It travels with the operation and is stored in its row, but no
//! `Debug` output shows it, so that no log, panic or failed assertion can leak it.
//!
//! Deliberately absent: validation, and whether the channel is enabled. Ingestion checks both when
//! it accepts a request, and the alerts role checks again before it sends.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A URI of a person: `mailto:` with an address, or `tel:` with a number.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Contact(String);

impl Contact {
    /// The longest contact, in bytes.
    pub const BYTES_MAX: usize = 320;

    /// Maximum number of contacts of one operation.
    pub const COUNT_MAX: usize = 4;

    /// Wraps a URI without validation.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self(uri.into())
    }

    /// The URI itself. Never log or display it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_nothing_of_a_contact() {
        let contact = Contact::new("mailto:anna@example.org");
        assert_eq!(format!("{:?}", vec![contact]), "[(redacted)]");
    }
}
