//! How much lists may cost.
//!
//! A list reads up to 2,000 rows, and its caller little more than a line. So lists are read one at a time, and after each
//! piece nothing is read for three times as long as it took: whoever asks for lists without end takes a quarter of one CPU
//! from the operations.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};
use waybill_http::auth::Tenants;
use waybill_http::problem::{Kind, Problem};

use crate::measure::{LISTS, LISTS_MAX};
use crate::shares::{Places, Share};

/// How many times as long as it took to read a piece nothing is read.
const REST: u32 = 3;

/// The lists that are read, or wait for it.
#[derive(Debug)]
pub struct Lists {
    places: Places,
    /// When the next piece may be read. Held by the list whose turn it is.
    rested_at: Mutex<Instant>,
}

/// The turn of one list.
#[derive(Debug)]
pub struct Turn<'a> {
    rested_at: MutexGuard<'a, Instant>,
    began: Instant,
    _place: Share,
}

impl Lists {
    /// At most `max` lists at once.
    pub fn new(max: usize) -> Self {
        Self {
            places: Places::new(max, LISTS.of([]), &LISTS_MAX.of([])),
            rested_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for the caller's turn. Ends when it is dropped.
    ///
    /// # Errors
    ///
    /// If too many wait already.
    pub async fn turn(&self, tenants: &Tenants) -> Result<Turn<'_>, Problem> {
        let place = self.places.share(tenants, 1);
        let place = place.ok_or_else(|| {
            let detail = "Too many lists are being read at once.";
            Problem::new(Kind::Overloaded, detail)
        })?;
        let rested_at = self.rested_at.lock().await;
        sleep_until(*rested_at).await;
        Ok(Turn {
            rested_at,
            began: Instant::now(),
            _place: place,
        })
    }
}

impl Turn<'_> {
    /// Rests for the piece that was read, before the next.
    pub async fn rest(&mut self) {
        self.note();
        sleep_until(*self.rested_at).await;
        self.began = Instant::now();
    }

    fn note(&mut self) {
        let now = Instant::now();
        *self.rested_at = now + REST * (now - self.began).min(Duration::from_secs(1));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.note();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const PIECE: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn between_pieces_and_between_lists_nothing_is_read_for_longer_than_reading_took() {
        let lists = Lists::new(2);
        let mut turn = lists.turn(&Tenants::All).await.unwrap();
        for _ in 0..2 {
            sleep(PIECE).await;
            let read = Instant::now();
            turn.rest().await;
            assert!(read.elapsed() >= REST * PIECE);
        }
        sleep(PIECE).await;
        let read = Instant::now();
        drop(turn);
        drop(lists.turn(&Tenants::All).await.unwrap());
        assert!(read.elapsed() >= REST * PIECE);
    }

    #[tokio::test]
    async fn lists_take_turns_and_too_many_are_refused() {
        let lists = Lists::new(2);
        let first = lists.turn(&Tenants::All).await.unwrap();
        let second = lists.turn(&Tenants::All);
        let meanwhile = async {
            let refused = lists.turn(&Tenants::All).await.unwrap_err();
            assert_eq!(refused.status(), 503);
            assert!(refused.retry_after().is_some());
            drop(first);
        };
        let (second, ()) = tokio::join!(second, meanwhile);
        drop(second.unwrap());
        drop(lists.turn(&Tenants::All).await.unwrap());
    }
}
