//! Group commit: one thread syncs whatever waits, all of it at once.
//!
//! A partition that has to be synced queues itself, once. The sync thread takes all queued
//! partitions, syncs each and wakes everyone who waited; what is appended meanwhile goes into the
//! next round. So the disk's own pace decides how much one sync covers, and no timer is needed.
//!
//! A second thread syncs and indexes closed segments, which nobody waits for and which may be
//! large.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::locked;
use crate::log::{Closing, Partition};
use crate::stats::Counters;

/// What the two threads have to do.
pub(crate) struct SyncQueue {
    dirty: Queue<Arc<Partition>>,
    closing: Queue<Closing>,
    counters: Arc<Counters>,
    failed: CancellationToken,
    cause: OnceLock<String>,
}

impl SyncQueue {
    pub(crate) fn new(counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            dirty: Queue::default(),
            closing: Queue::default(),
            counters,
            failed: CancellationToken::new(),
            cause: OnceLock::new(),
        })
    }

    /// Asks for `partition` to be synced.
    pub(crate) fn sync(&self, partition: Arc<Partition>) {
        self.dirty.push(partition);
    }

    /// Asks for a closed segment to be synced and indexed.
    pub(crate) fn close(&self, closing: Closing) {
        self.closing.push(closing);
    }

    /// A disk failed. The first cause is kept.
    pub(crate) fn report_failure(&self, cause: String) {
        tracing::error!(%cause, "a partition is offline");
        let _ = self.cause.set(cause);
        self.failed.cancel();
    }

    /// Resolves with the cause when a disk has failed.
    pub(crate) async fn failed(&self) -> String {
        self.failed.cancelled().await;
        self.cause.get().cloned().unwrap_or_default()
    }
}

/// The two threads.
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
                .spawn(move || sync_until_stopped(&syncing))?,
        );
        started.threads.push(
            thread::Builder::new()
                .name("broker-close".to_owned())
                .spawn(move || close_until_stopped(&queue))?,
        );
        Ok(started)
    }
}

impl Drop for SyncThreads {
    /// Lets the threads finish what is queued.
    fn drop(&mut self) {
        self.queue.dirty.stop();
        self.queue.closing.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a sync thread panicked");
            }
        }
    }
}

fn sync_until_stopped(queue: &SyncQueue) {
    while let Some(partitions) = queue.dirty.take() {
        for partition in partitions {
            let job = partition.begin_sync();
            let started = Instant::now();
            let result = job.run();
            queue.counters.syncs.fetch_add(1, Relaxed);
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            queue.counters.sync_micros.fetch_add(micros, Relaxed);
            partition.end_sync(&job, result);
        }
    }
}

fn close_until_stopped(queue: &SyncQueue) {
    while let Some(segments) = queue.closing.take() {
        for closing in segments {
            if let Err(error) = closing.partition.finish_closing(&closing) {
                // Its records are still there, and the next start reads the segment itself.
                tracing::warn!(%error, "a closed segment was not indexed");
            }
        }
    }
}

/// A queue that is taken whole. Its length is bounded by what queues itself: a partition once, a
/// segment when it is full.
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

    /// Waits for items and takes them all; `None` when stopped and empty.
    fn take(&self) -> Option<VecDeque<T>> {
        let mut state = locked(&self.state);
        while state.items.is_empty() {
            if state.stopped {
                return None;
            }
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut state.items))
    }
}
