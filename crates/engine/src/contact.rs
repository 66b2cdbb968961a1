//! Where a person wants to be told of an operation.
//!
//! A contact is personal data. It travels with the operation and lies in its row, and shows in no
//! `Debug` output, so that no log, panic or failed assertion can tell it.
//!
//! Deliberately absent: what a contact may look like, and whether people are told that way at all.
//! Whoever takes a request in judges that, and whoever tells people judges it again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A URI at which a person is told: `mailto:` with an address, or `tel:` with a number.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Contact(String);

impl Contact {
    /// The longest contact, in bytes.
    pub const BYTES_MAX: usize = 320;

    /// The most contacts of one operation.
    pub const COUNT_MAX: usize = 4;

    /// Takes a URI as it is.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self(uri.into())
    }

    /// The URI itself, which is to be shown to nobody.
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
