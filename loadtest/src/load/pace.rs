//! Precise waits. Tokio's timers have a resolution of a millisecond and fire late, which would
//! count as latency of the measured system.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use tokio::sync::oneshot;

/// Ends waits from its own thread.
#[derive(Debug)]
pub(super) struct Pace {
    asked: Sender<Wait>,
}

#[derive(Debug)]
struct Wait {
    until: Instant,
    over: oneshot::Sender<()>,
}

impl Pace {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub(super) fn start() -> io::Result<Self> {
        let (asked, waits) = mpsc::channel();
        thread::Builder::new()
            .name("pace".to_owned())
            .spawn(move || end_each(&waits))?;
        Ok(Self { asked })
    }

    /// Returns at `until`, or immediately if that has passed.
    pub(super) async fn until(&self, until: Instant) {
        if until <= Instant::now() {
            return;
        }
        let (over, is_over) = oneshot::channel();
        if self.asked.send(Wait { until, over }).is_ok() {
            // Fails only if the thread has ended.
            let _ = is_over.await;
        }
    }
}

/// Ends each wait at its time, until all senders are gone.
fn end_each(asked: &Receiver<Wait>) {
    let mut waiting = BTreeMap::new();
    let mut number = 0_u64;
    loop {
        let now = Instant::now();
        while let Some(first) = waiting.first_entry()
            && let (until, _) = *first.key()
            && until <= now
        {
            let over: oneshot::Sender<()> = first.remove();
            // The receiver is gone if the run was cut short.
            let _ = over.send(());
        }
        let next = match waiting.first_key_value() {
            Some(((until, _), _)) => asked.recv_timeout(*until - now),
            None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(Wait { until, over }) => {
                number += 1;
                waiting.insert((until, number), over);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn waits_are_not_early_and_a_later_one_does_not_delay_an_earlier_one() {
        let pace = Pace::start().unwrap();
        let start = Instant::now();
        let wait = async |millis| {
            let until = start + Duration::from_millis(millis);
            pace.until(until).await;
            assert!(Instant::now() >= until);
        };
        tokio::select! {
            () = wait(3_600_000) => panic!("an hour has not passed"),
            _ = async { tokio::join!(wait(30), wait(0), wait(10), wait(20), wait(10)) } => {}
        }
    }
}
