//! Memory for large requests and responses, which the connections of a listener share.
//!
//! What must hold: a client that transfers slowly, or not at all, withholds no memory from others.
//!
//! * **Memory follows the bytes that arrive, not the announced length.** Permits grow with buffers.
//! * **Slow transfers share half.** Transfers that take longer than [`SLOW_AFTER`] may together
//!   hold more than half of the memory while no connection waits for it, unless they hardly
//!   [move](STALLED_BYTES_PER_SECOND). Beyond half, connections are closed until the other
//!   connections have the memory that they need: first those with the slowest transfers; then,
//!   among transfers that wait for memory, the largest. So requests that wait for each other do not
//!   wait forever.
//! * **The smallest need comes first.** A reservation does not wait behind larger ones.
//!
//! Deliberately absent: the buffers themselves.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

/// Buffers up to this size are not counted: every connection may have a few.
pub const SMALL_BUFFER_BYTES: usize = 64 << 10;

/// How long a transfer may take before it counts as slow.
const SLOW_AFTER: Duration = Duration::from_millis(250);
/// Transfers below this rate never hold more than half of the memory together, even if no
/// connection waits for it.
const STALLED_BYTES_PER_SECOND: u128 = 64 << 10;
/// How often to look for slow transfers, while memory is short.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The large buffers of all connections of a listener. Counts memory; allocates none.
pub struct Buffers {
    pool: Arc<Pool>,
}

struct Pool {
    bytes_max: usize,
    held: Mutex<Held>,
    /// Transfers that were ended because they were slow.
    ended: AtomicU64,
}

#[derive(Default)]
struct Held {
    bytes: usize,
    /// The peak since it was last read.
    peak_bytes: usize,
    transfers: HashMap<u64, Transfer>,
    /// Waiting reservations, smallest first.
    waiting: BTreeMap<(usize, u64), Waker>,
    next_id: u64,
    checked_at: Option<Instant>,
}

/// A request or a response in transfer, which holds memory.
struct Transfer {
    bytes: usize,
    since: Instant,
    is_waiting: bool,
    /// How long it has waited for memory, excluding the current wait.
    waited: Duration,
    moved_bytes: Arc<AtomicU64>,
    /// Ends its connection.
    end: CancellationToken,
}

impl Transfer {
    fn is_slow(&self, now: Instant) -> bool {
        !self.end.is_cancelled() && now.duration_since(self.since) >= SLOW_AFTER
    }

    /// Sort key: the smallest is ended first. Transfers that wait for memory come last, the largest
    /// first, because their clients are not to blame.
    fn order(&self, now: Instant) -> (bool, u128) {
        if self.is_waiting {
            return (true, u128::MAX - self.bytes as u128);
        }
        let moving = now.duration_since(self.since).saturating_sub(self.waited);
        let moved = u128::from(self.moved_bytes.load(Relaxed));
        let bytes_per_second = moved * 1_000_000 / moving.as_micros().max(1);
        (false, bytes_per_second)
    }
}

impl Buffers {
    /// Creates a shared budget of `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let pool = Pool {
            bytes_max,
            held: Mutex::default(),
            ended: AtomicU64::new(0),
        };
        Self {
            pool: Arc::new(pool),
        }
    }

    /// How much may be in use, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.pool.bytes_max as u64
    }

    /// The most in use since the last call, in bytes. While a connection waits for memory, the
    /// whole budget counts as in use.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let mut held = self.pool.held();
        let now = match held.waiting.is_empty() {
            true => held.bytes,
            false => self.pool.bytes_max,
        };
        std::mem::replace(&mut held.peak_bytes, now).max(now) as u64
    }

    /// How many transfers were ended because they were slow.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.pool.ended.load(Relaxed)
    }

    /// Whether a buffer of this many bytes needs a permit.
    #[must_use]
    pub fn is_counted(bytes: usize) -> bool {
        bytes > SMALL_BUFFER_BYTES
    }

    /// Returns a future that resolves once a buffer of this many bytes may be used; `None` for a
    /// small buffer, which needs no permit.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        Self::is_counted(bytes).then(|| self.grow(None, bytes))
    }

    /// Returns a future that resolves to `permit`, or to a new permit, for this many bytes.
    #[must_use]
    pub fn grow(&self, permit: Option<Permit>, bytes: usize) -> Reservation {
        let permit = permit.unwrap_or_else(|| Permit {
            pool: Arc::clone(&self.pool),
            bytes: 0,
            transfer: None,
        });
        let mut held = self.pool.held();
        if let Some(transfer) = permit.transfer_in(&mut held) {
            transfer.is_waiting = true;
        }
        Reservation {
            more: bytes.min(self.pool.bytes_max).saturating_sub(permit.bytes),
            id: held.next_id(),
            since: Instant::now(),
            permit: Some(permit),
            recheck: None,
        }
    }
}

impl Pool {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While slow transfers hold more than half, ends the slowest until the others have the memory
    /// that they need. Stalled transfers are ended even if no connection waits.
    fn end_slow(&self, held: &mut Held, now: Instant) {
        let is_early = |at| now.duration_since(at) < RECHECK_INTERVAL;
        if held.bytes <= self.bytes_max / 2 || held.checked_at.is_some_and(is_early) {
            return;
        }
        held.checked_at = Some(now);
        let slow = held.transfers.values().filter(|each| each.is_slow(now));
        let mut slow: Vec<_> = slow.map(|each| (each.order(now), each)).collect();
        slow.sort_by_key(|(order, _)| *order);
        let mut bytes: usize = slow.iter().map(|(_, each)| each.bytes).sum();
        let mut missing = held.missing(self.bytes_max);
        for (order, first) in slow {
            let is_stalled = order < (false, STALLED_BYTES_PER_SECOND);
            if bytes <= self.bytes_max / 2 || missing == 0 && !is_stalled {
                return;
            }
            bytes -= first.bytes;
            missing = missing.saturating_sub(first.bytes);
            first.end.cancel();
            self.ended.fetch_add(1, Relaxed);
        }
    }
}

impl Held {
    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }

    /// How much the waiting reservations need beyond what is free, or will be once ended transfers
    /// have released their memory.
    fn missing(&self, bytes_max: usize) -> usize {
        let needed: usize = self.waiting.keys().map(|&(more, _)| more).sum();
        let ended = self
            .transfers
            .values()
            .filter(|each| each.end.is_cancelled());
        let ended: usize = ended.map(|each| each.bytes).sum();
        (self.bytes + needed).saturating_sub(bytes_max + ended)
    }

    fn wake_next(&self) {
        if let Some(next) = self.waiting.values().next() {
            next.wake_by_ref();
        }
    }
}

/// Waits for memory. Dropping it drops the permit that it adds to.
pub struct Reservation {
    /// The permit that it adds to; taken once it is ready.
    permit: Option<Permit>,
    more: usize,
    id: u64,
    since: Instant,
    recheck: Option<Pin<Box<Sleep>>>,
}

impl Future for Reservation {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let key = (self.more, self.id);
        let pool = {
            let permit = self.permit.as_ref().expect("polled after completion");
            Arc::clone(&permit.pool)
        };
        loop {
            let now = Instant::now();
            let mut held = pool.held();
            let is_first = held.waiting.range(..key).next().is_none();
            if is_first && held.bytes + self.more <= pool.bytes_max {
                held.waiting.remove(&key);
                held.add(self.more);
                held.wake_next();
                let mut permit = self.permit.take().expect("polled after completion");
                permit.bytes += self.more;
                if let Some(transfer) = permit.transfer_in(&mut held) {
                    transfer.bytes = permit.bytes;
                    transfer.is_waiting = false;
                    transfer.waited += now.duration_since(self.since);
                }
                pool.end_slow(&mut held, now);
                return Poll::Ready(permit);
            }
            held.waiting.insert(key, cx.waker().clone());
            held.peak_bytes = pool.bytes_max;
            pool.end_slow(&mut held, now);
            drop(held);
            let recheck = self
                .recheck
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(RECHECK_INTERVAL)));
            if recheck.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            recheck.as_mut().reset(now + RECHECK_INTERVAL);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit {
            let mut held = permit.pool.held();
            if held.waiting.remove(&(self.more, self.id)).is_some() {
                held.wake_next();
            }
        }
    }
}

/// Memory that is in use until this is dropped.
pub struct Permit {
    pool: Arc<Pool>,
    bytes: usize,
    transfer: Option<(u64, Arc<AtomicU64>)>,
}

impl Permit {
    /// How large the buffer may be.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps what a buffer of this many bytes needs, and releases the rest; `None` if that needs no
    /// permit.
    #[must_use]
    pub fn shrink(mut self, bytes: usize) -> Option<Self> {
        if !Buffers::is_counted(bytes) {
            return None;
        }
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        self.give_back(rest);
        Some(self)
    }

    /// Starts to time the transfer of this buffer, of which `moved_bytes` have already moved.
    /// Cancels `end` if the transfer is too slow.
    pub fn begin_transfer(&mut self, moved_bytes: usize, end: &CancellationToken) {
        self.end_transfer();
        let moved_bytes = Arc::new(AtomicU64::new(moved_bytes as u64));
        let mut held = self.pool.held();
        let id = held.next_id();
        let transfer = Transfer {
            bytes: self.bytes,
            since: Instant::now(),
            is_waiting: false,
            waited: Duration::ZERO,
            moved_bytes: Arc::clone(&moved_bytes),
            end: end.clone(),
        };
        held.transfers.insert(id, transfer);
        drop(held);
        self.transfer = Some((id, moved_bytes));
    }

    /// Whether the transfer is in progress.
    #[must_use]
    pub fn is_transferring(&self) -> bool {
        self.transfer.is_some()
    }

    /// Counts transferred bytes.
    pub fn note_moved(&self, bytes: usize) {
        if let Some((_, moved)) = &self.transfer {
            moved.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Stops timing the transfer.
    pub fn end_transfer(&mut self) {
        if let Some((id, _)) = self.transfer.take() {
            self.pool.held().transfers.remove(&id);
        }
    }

    fn transfer_in<'h>(&self, held: &'h mut Held) -> Option<&'h mut Transfer> {
        let (id, _) = self.transfer.as_ref()?;
        held.transfers.get_mut(id)
    }

    fn give_back(&self, bytes: usize) {
        let mut held = self.pool.held();
        held.bytes -= bytes;
        held.wake_next();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end_transfer();
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests;
