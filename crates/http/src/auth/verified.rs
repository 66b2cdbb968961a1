//! A cache of verified JWTs, so that not every request verifies a signature.
//!
//! Bounded: the cache has two halves. When the younger half is full, the older one is dropped. A
//! hit in the older half moves the token to the younger one. Not quick_cache or moka: this is all
//! that a cache needs whose entries are checked against the time at each hit.

use std::collections::HashMap;
use std::sync::Arc;

use waybill_engine::Timestamp;

use super::{Denied, Principal, TokenHash};

/// How many tokens a half holds.
const HALF_MAX: usize = 5_000;

/// A verified token, and the time for which it is valid.
#[derive(Clone, Debug)]
pub(super) struct Good {
    /// The principal, or why the claims give no rights.
    pub(super) principal: Result<Arc<Principal>, Denied>,
    /// The token is not valid before this time.
    pub(super) from: Timestamp,
    /// The token is no longer valid from this time on.
    pub(super) until: Timestamp,
}

/// Tokens that were verified lately.
#[derive(Debug, Default)]
pub(super) struct Verified {
    younger: HashMap<TokenHash, Good>,
    older: HashMap<TokenHash, Good>,
}

impl Verified {
    pub(super) fn get(&mut self, hash: &TokenHash) -> Option<Good> {
        if let Some(good) = self.younger.get(hash) {
            return Some(good.clone());
        }
        let good = self.older.remove(hash)?;
        self.insert(*hash, good.clone());
        Some(good)
    }

    pub(super) fn insert(&mut self, hash: TokenHash, good: Good) {
        if self.younger.len() >= HALF_MAX {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(hash, good);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scopes, Tenants};
    use super::*;

    #[test]
    fn the_cache_stays_within_its_bound_and_keeps_used_entries() {
        let good = Good {
            principal: Ok(Arc::new(Principal {
                name: "a".into(),
                scopes: Scopes::default(),
                tenants: Tenants::All,
                agents: Arc::default(),
            })),
            from: Timestamp(0),
            until: Timestamp(1),
        };
        let hash = |number: usize| super::super::hash_of(&number.to_string());
        let mut verified = Verified::default();
        for number in 0..4 * HALF_MAX {
            verified.insert(hash(number), good.clone());
            assert!(verified.get(&hash(0)).is_some(), "{number}");
        }
        let held = verified.younger.len() + verified.older.len();
        assert!(held <= 2 * HALF_MAX, "{held}");
        assert!(verified.get(&hash(1)).is_none());
    }
}
