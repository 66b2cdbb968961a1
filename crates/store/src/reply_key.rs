//! The key from which schedulers derive the nonces of step requests.

use std::fmt;

/// The secret of an installation that proves replies: its holder can make the nonce of any step
/// request. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplyKey([u8; ReplyKey::BYTES]);

impl ReplyKey {
    /// How long a key is.
    pub const BYTES: usize = 32;

    /// A key of random bytes.
    #[must_use]
    pub fn new(random: [u8; Self::BYTES]) -> Self {
        Self(random)
    }

    /// The bytes.
    #[must_use]
    pub fn reveal(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for ReplyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyKey(..)")
    }
}
