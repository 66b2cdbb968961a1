//! Group commit: one thread syncs all waiting partitions together.
//!
//! A partition that needs a sync queues itself, once. The sync thread takes all queued partitions,
//! syncs each, stores how far they are synced, and wakes all waiting requests; later appends go
//! into the next round. So the disk's own pace decides how much one sync covers, and no timer is
//! needed.
//!
//! A second thread does the work that no request waits for: it indexes closed segments, syncs those
//! of topics that are not synced, and starts write-back of growing ones. It retries what failed for
//! lack of space.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::syncing::SyncJob;
use super::{Closing, NotClosed, Partition, SyncedEnds, Unwritten};
use crate::locked;
use crate::stats::Counters;

/// How soon the second thread retries what failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The work of the two threads.
pub(crate) struct SyncQueue {
    /// How far partitions are synced.
    pub(crate) ends: SyncedEnds,
    dirty: Queue<Arc<Partition>>,
    chores: Queue<Chore>,
    counters: Arc<Counters>,
    failed: CancellationToken,
    cause: OnceLock<String>,
    /// Wakes the task that opens partitions again.
    full: Notify,
    /// Whether [`Chore::StoreEnds`] is queued.
    is_store_queued: AtomicBool,
    /// Whether the ends could not be stored at the last attempt.
    has_store_failed: AtomicBool,
}

/// The work of the second thread.
pub(super) enum Chore {
    /// Index a closed segment.
    Close(Closing),
    /// Retry storing the synced ends.
    StoreEnds,
    /// Start write-back of bytes that no sync waits for.
    WriteBack(Unwritten),
}

impl SyncQueue {
    pub(crate) fn new(counters: Arc<Counters>, ends: SyncedEnds) -> Arc<Self> {
        Arc::new(Self {
            ends,
            dirty: Queue::default(),
            chores: Queue::default(),
            counters,
            failed: CancellationToken::new(),
            cause: OnceLock::new(),
            full: Notify::new(),
            is_store_queued: AtomicBool::new(false),
            has_store_failed: AtomicBool::new(false),
        })
    }

    /// Asks for `partition` to be synced.
    pub(crate) fn sync(&self, partition: Arc<Partition>) {
        self.dirty.push(partition);
    }

    /// Asks for a closed segment to be synced and indexed.
    pub(crate) fn close(&self, closing: Closing) {
        self.chores.push(Chore::Close(closing));
    }

    /// Asks for write-back to start, soon.
    pub(crate) fn write_back(&self, unwritten: Unwritten) {
        self.chores.push(Chore::WriteBack(unwritten));
    }

    /// The partitions to sync, as soon as there are any; see [`Queue::take`].
    pub(super) fn take_unsynced(
        &self,
        patience: Option<Duration>,
    ) -> Option<VecDeque<Arc<Partition>>> {
        self.dirty.take(patience)
    }

    /// The second thread's work, as soon as there is any; see [`Queue::take`].
    pub(super) fn take_chores(&self, patience: Option<Duration>) -> Option<VecDeque<Chore>> {
        self.chores.take(patience)
    }

    /// Ends a round of successful syncs: stores how far the partitions are synced, and only then
    /// wakes what waits for that. Returns whether it has stored them, which it does if any has
    /// moved.
    ///
    /// If they cannot be stored, the synced records are acknowledged nevertheless, since they are
    /// durable.
    pub(super) fn end_round(&self, round: Vec<(Arc<Partition>, SyncJob)>) -> bool {
        let mut has_moved = false;
        for (partition, job) in &round {
            has_moved |= partition.note_end(job);
        }
        let are_stored = has_moved && self.store_ends();
        for (partition, job) in round {
            partition.end_sync(job, Ok(()));
        }
        are_stored
    }

    /// Stores how far partitions are synced. Returns whether it succeeded; if not, the second
    /// thread retries. Until then a start reads and rewrites more, and may not notice that synced
    /// records are lost.
    pub(crate) fn store_ends(&self) -> bool {
        self.are_stored(self.ends.store())
    }

    /// Whether the last attempt to store them succeeded.
    #[cfg(test)]
    pub(super) fn ends_are_stored(&self) -> bool {
        !self.has_store_failed.load(SeqCst)
    }

    /// All logs are open, which is stored likewise; see [`SyncedEnds::logs_are_open`].
    pub(crate) fn logs_are_open(&self) -> bool {
        self.are_stored(self.ends.logs_are_open())
    }

    fn are_stored(&self, stored: io::Result<()>) -> bool {
        let had_failed = self.has_store_failed.swap(stored.is_err(), SeqCst);
        match &stored {
            Err(error) if !had_failed => tracing::error!(
                %error,
                "could not store how far the logs are synced; until this succeeds, a start may not notice that they lost records. Check the disk"
            ),
            Ok(()) if had_failed => {
                tracing::info!("stored how far the logs are synced, after an earlier failure")
            }
            _ => {}
        }
        if stored.is_err() && !self.is_store_queued.swap(true, SeqCst) {
            self.chores.push(Chore::StoreEnds);
        }
        stored.is_ok()
    }

    /// A damaged batch was found.
    pub(crate) fn count_damaged(&self) {
        self.counters.damaged_batches.fetch_add(1, Relaxed);
    }

    /// A batch was refused because the disk is full.
    pub(crate) fn count_full(&self) {
        self.counters.disk_full.fetch_add(1, Relaxed);
    }

    /// A partition must be opened again once its disk has room.
    pub(crate) fn report_full(&self) {
        self.full.notify_one();
    }

    /// Resolves when there is such a partition.
    pub(crate) async fn full(&self) {
        self.full.notified().await;
    }

    /// A disk failed. The first cause is kept.
    pub(crate) fn report_failure(&self, cause: String) {
        tracing::error!(%cause, "a partition is offline");
        let _ = self.cause.set(cause);
        self.failed.cancel();
    }

    /// A part of the broker panicked, which would block its waiters. The first cause is kept.
    pub(crate) fn report_panic(&self, part: &'static str) {
        let cause = format!("{part} panicked");
        tracing::error!(%cause, "the broker failed");
        let _ = self.cause.set(cause);
        self.failed.cancel();
    }

    /// Resolves with the cause when a disk or a part of the broker has failed.
    pub(crate) async fn failed(&self) -> String {
        self.failed.cancelled().await;
        self.cause.get().cloned().unwrap_or_default()
    }
}

pub(crate) struct SyncThreads {
    queue: Arc<SyncQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl SyncThreads {
    pub(crate) fn start(queue: Arc<SyncQueue>) -> io::Result<Self> {
        let mut started = Self {
            queue: Arc::clone(&queue),
            threads: Vec::new(),
        };
        let syncing = Arc::clone(&queue);
        started.threads.push(
            thread::Builder::new()
                .name("broker-sync".to_owned())
                .spawn(move || {
                    reporting_panics(&syncing, "the sync of logs", || {
                        sync_until_stopped(&syncing)
                    });
                })?,
        );
        started.threads.push(
            thread::Builder::new()
                .name("broker-close".to_owned())
                .spawn(move || {
                    reporting_panics(&queue, "the closing of segments", || {
                        Chores::new(Arc::clone(&queue)).do_until_stopped();
                    });
                })?,
        );
        Ok(started)
    }
}

impl Drop for SyncThreads {
    /// Lets the threads finish the queued work.
    fn drop(&mut self) {
        // The first thread queues work for the second one.
        let stops: [fn(&SyncQueue); 2] = [|queue| queue.dirty.stop(), |queue| queue.chores.stop()];
        for (stop, thread) in stops.iter().zip(self.threads.drain(..)) {
            stop(&self.queue);
            // It reports its panics itself.
            let _ = thread.join();
        }
    }
}

/// Runs a part of the broker in this thread.
fn reporting_panics(queue: &SyncQueue, part: &'static str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        queue.report_panic(part);
    }
}

/// Runs a part of the broker as a task.
pub(crate) fn spawn_reporting_panics(
    queue: &Arc<SyncQueue>,
    part: &'static str,
    run: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let queue = Arc::clone(queue);
    tokio::spawn(async move {
        if let Err(error) = tokio::spawn(run).await
            && error.is_panic()
        {
            queue.report_panic(part);
        }
    })
}

fn sync_until_stopped(queue: &SyncQueue) {
    while let Some(partitions) = queue.take_unsynced(None) {
        let mut round = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let job = partition.begin_sync();
            let started = Instant::now();
            let result = job.run(&*partition.limits.disk);
            queue.counters.syncs.fetch_add(1, Relaxed);
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            queue.counters.sync_micros.fetch_add(micros, Relaxed);
            match result {
                Ok(()) => round.push((partition, job)),
                failed => partition.end_sync(job, failed),
            }
        }
        queue.end_round(round);
    }
}

/// The second thread.
pub(super) struct Chores {
    queue: Arc<SyncQueue>,
    /// Segments whose index did not fit on the disk.
    unindexed: Vec<Closing>,
    /// Whether the synced ends could not be stored.
    are_ends_unstored: bool,
}

impl Chores {
    pub(super) fn new(queue: Arc<SyncQueue>) -> Self {
        Self {
            queue,
            unindexed: Vec::new(),
            are_ends_unstored: false,
        }
    }

    fn do_until_stopped(&mut self) {
        let mut due: Option<Instant> = None;
        loop {
            let patience = due.map(|due| due.saturating_duration_since(Instant::now()));
            let chores = self.queue.take_chores(patience);
            let is_stopped = chores.is_none();
            for chore in chores.into_iter().flatten() {
                self.perform(chore);
            }
            if is_stopped || due.is_some_and(|due| due <= Instant::now()) {
                due = None;
                self.catch_up();
            }
            if is_stopped {
                return;
            }
            let is_idle = self.unindexed.is_empty() && !self.are_ends_unstored;
            if !is_idle && due.is_none() {
                due = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }

    /// Does what can be done at once.
    pub(super) fn perform(&mut self, chore: Chore) {
        match chore {
            Chore::Close(closing) => self.close(closing),
            Chore::StoreEnds => {
                self.queue.is_store_queued.store(false, SeqCst);
                self.are_ends_unstored = true;
            }
            Chore::WriteBack(unwritten) => unwritten.begin_write_back(),
        }
    }

    /// Retries what has failed.
    pub(super) fn catch_up(&mut self) {
        for closing in std::mem::take(&mut self.unindexed) {
            self.close(closing);
        }
        if std::mem::take(&mut self.are_ends_unstored) {
            // Queues this chore again if it fails.
            self.queue.store_ends();
        }
    }

    fn close(&mut self, mut closing: Closing) {
        let partition = Arc::clone(&closing.partition);
        // A partition that failed has said so itself.
        if let Err(NotClosed::Full(error)) = partition.finish_closing(&mut closing) {
            if self.unindexed.is_empty() {
                tracing::warn!(%error, "the disk is full: could not write the index of a closed segment; retrying");
            }
            self.unindexed.push(closing);
        }
    }
}

/// A queue that is taken as a whole. It holds a partition once, and a segment when it is full and
/// once per 256 KiB appended since the queue was taken.
struct Queue<T> {
    state: Mutex<QueueState<T>>,
    filled: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    stopped: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = QueueState {
            items: VecDeque::new(),
            stopped: false,
        };
        Self {
            state: Mutex::new(state),
            filled: Condvar::new(),
        }
    }
}

impl<T> Queue<T> {
    fn push(&self, item: T) {
        let mut state = locked(&self.state);
        let was_empty = state.items.is_empty();
        state.items.push_back(item);
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
    }

    fn stop(&self) {
        locked(&self.state).stopped = true;
        self.filled.notify_one();
    }

    /// Waits for items, for no longer than `patience` if that is given, and takes them all; `None`
    /// when stopped and empty.
    fn take(&self, patience: Option<Duration>) -> Option<VecDeque<T>> {
        let until = patience.map(|patience| Instant::now() + patience);
        let mut state = locked(&self.state);
        while state.items.is_empty() {
            if state.stopped {
                return None;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let waited = self.filled.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .filled
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        Some(std::mem::take(&mut state.items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(directory: &std::path::Path) -> Arc<SyncQueue> {
        SyncQueue::new(
            Arc::default(),
            SyncedEnds::load(crate::log::system_disk(), directory, None).unwrap(),
        )
    }

    #[tokio::test]
    async fn a_part_that_panics_is_a_failure_of_the_broker() {
        let directory = tempfile::tempdir().unwrap();
        let of_thread = queue(directory.path());
        reporting_panics(&of_thread, "a thread", || panic!("on purpose"));
        assert_eq!(of_thread.failed().await, "a thread panicked");

        let of_task = queue(directory.path());
        let task = spawn_reporting_panics(&of_task, "a task", async { panic!("on purpose") });
        assert_eq!(of_task.failed().await, "a task panicked");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_part_that_ends_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let queue = queue(directory.path());
        reporting_panics(&queue, "a thread", || ());
        spawn_reporting_panics(&queue, "a task", async {})
            .await
            .unwrap();
        assert!(!queue.failed.is_cancelled());
    }
}
