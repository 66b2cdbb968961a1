//! Accepted connections that wait for a slot.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use waybill_connections::source_of;

/// How many wait. A further one replaces the oldest of the address that has the most waiting ones.
pub(super) const WAITING_MAX: usize = 64;

/// A connection that waits, and the address of its client.
pub(super) type Waiter<T> = (T, IpAddr);

/// Connections that wait, the oldest first.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    queue: VecDeque<Waiter<T>>,
}

impl<T> Waiting<T> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds the youngest.
    pub(super) fn push(&mut self, waiter: Waiter<T>) {
        if self.queue.len() >= WAITING_MAX {
            let mut of_source = HashMap::<_, usize>::new();
            for (_, peer) in &self.queue {
                *of_source.entry(source_of(*peer)).or_default() += 1;
            }
            let most = of_source.values().max();
            let is_of_most = |(_, peer): &Waiter<T>| of_source.get(&source_of(*peer)) == most;
            let oldest = self.queue.iter().position(is_of_most);
            self.queue.remove(oldest.unwrap_or(0));
        }
        self.queue.push_back(waiter);
    }

    /// Takes the one to try next, and where it was: the oldest of the address that has the fewest
    /// `open` connections. It may replace every connection that another one may replace.
    pub(super) fn take_next(
        &mut self,
        open: impl Fn(IpAddr) -> usize,
    ) -> Option<(usize, Waiter<T>)> {
        let next = (0..self.queue.len()).min_by_key(|&at| open(self.queue[at].1))?;
        Some((next, self.queue.remove(next)?))
    }

    /// Puts one back to where it was.
    pub(super) fn put_back(&mut self, at: usize, waiter: Waiter<T>) {
        self.queue.insert(at.min(self.queue.len()), waiter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn the_oldest_of_the_address_with_the_fewest_connections_is_next() {
        let mut waiting = Waiting::new();
        for (name, last) in [("a", 1), ("b", 2), ("c", 2)] {
            waiting.push((name, address(last)));
        }
        let open = |peer| if peer == address(1) { 5 } else { 0 };
        let (at, waiter) = waiting.take_next(open).unwrap();
        assert_eq!((at, waiter.0), (1, "b"));
        waiting.put_back(at, waiter);
        let order = [(); 3].map(|()| waiting.take_next(open).unwrap().1.0);
        assert_eq!(order, ["b", "c", "a"]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_flood_from_one_address_replaces_its_own() {
        let mut waiting = Waiting::new();
        waiting.push((0, address(1)));
        for number in 1..=2 * WAITING_MAX {
            waiting.push((number, address(2)));
        }
        let open = |_| 0;
        let left: Vec<_> = std::iter::from_fn(|| waiting.take_next(open))
            .map(|(_, waiter)| waiter.0)
            .collect();
        assert_eq!(left.len(), WAITING_MAX);
        assert_eq!(
            left[..2],
            [0, WAITING_MAX + 2],
            "the oldest of address 2 went"
        );
    }
}
