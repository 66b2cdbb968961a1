//! JWTs that were verified a while ago, so that a signature is not verified again with each request.
//!
//! Bounded: of two halves the older one goes when the younger is full; what is asked for moves to the younger one.

use std::collections::HashMap;
use std::sync::Arc;

use waybill_engine::Timestamp;

use super::{Principal, TokenHash};

/// How many a half holds.
const HALF_MAX: usize = 5_000;

/// A token that was good, and until when it is.
#[derive(Clone, Debug)]
pub(super) struct Good {
    pub(super) principal: Arc<Principal>,
    /// Before it, it is not good yet.
    pub(super) from: Timestamp,
    /// From then on it is not good any more.
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
    fn it_stays_within_its_bound_and_keeps_what_is_asked_for() {
        let good = Good {
            principal: Arc::new(Principal {
                name: "a".into(),
                scopes: Scopes::default(),
                tenants: Tenants::All,
                agents: Arc::default(),
            }),
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
