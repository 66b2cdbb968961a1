//! The requests that connections share room for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use crate::Full;

/// How many requests may be under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// On each connection, whatever happens on others.
    pub each: u32,
    /// Beyond those, on all connections together.
    pub shared: usize,
    /// Of the shared ones, on the connections from one address.
    pub shared_per_address: usize,
}

/// Whose room a request takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    Unlimited,
    /// That of its connection alone.
    Own,
    /// That of all connections, for one from this address.
    Shared(IpAddr),
}

/// The requests under way that are none of the few that each connection may have.
#[derive(Default, Debug)]
pub(crate) struct Shared {
    pub(crate) requests: usize,
    pub(crate) by_source: HashMap<IpAddr, usize>,
}

impl Shared {
    pub(crate) fn take(&mut self, source: IpAddr, limits: RequestLimits) -> Result<(), Full> {
        if self.requests >= limits.shared {
            return Err(Full::All);
        }
        let of_source = self.by_source.entry(source).or_default();
        if *of_source >= limits.shared_per_address {
            return Err(Full::Address);
        }
        *of_source += 1;
        self.requests += 1;
        Ok(())
    }

    pub(crate) fn give_back(&mut self, source: IpAddr) {
        if let Entry::Occupied(mut of_source) = self.by_source.entry(source) {
            *of_source.get_mut() -= 1;
            self.requests -= 1;
            if *of_source.get() == 0 {
                of_source.remove();
            }
        }
    }
}
