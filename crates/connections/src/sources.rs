//! Which addresses have connections, and how many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// How many connections each address has.
#[derive(Default, Debug)]
pub(crate) struct Sources {
    connections: HashMap<IpAddr, usize>,
    /// Element `n` counts the addresses that have `n` connections.
    addresses_with: Vec<usize>,
    /// The connections of the address that has the most.
    pub(crate) most: usize,
}

impl Sources {
    pub(crate) fn connections_of(&self, source: IpAddr) -> usize {
        self.connections.get(&source).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, source: IpAddr) {
        let before = self.connections_of(source);
        self.connections.insert(source, before + 1);
        self.recount(before, before + 1);
        self.most = self.most.max(before + 1);
    }

    pub(crate) fn remove(&mut self, source: IpAddr) {
        let before = self.connections_of(source);
        match before {
            0 => return,
            1 => self.connections.remove(&source),
            _ => self.connections.insert(source, before - 1),
        };
        self.recount(before, before - 1);
        if self.most == before && self.addresses_with[before] == 0 {
            self.most = before - 1;
        }
    }

    /// Counts an address that had `before` connections, and has `after` now.
    fn recount(&mut self, before: usize, after: usize) {
        let largest = before.max(after);
        if self.addresses_with.len() <= largest {
            self.addresses_with.resize(largest + 1, 0);
        }
        if before > 0 {
            self.addresses_with[before] -= 1;
        }
        if after > 0 {
            self.addresses_with[after] += 1;
        }
    }
}

/// The address that a peer's connections count for: an IPv6 address counts as its /64 network.
#[must_use]
pub fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}
