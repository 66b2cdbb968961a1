use std::pin::pin;

use tokio::task::JoinSet;
use tokio::time;

use super::*;

const MIB: usize = 1 << 20;

/// A transfer that has moved this many bytes, without waiting for memory.
async fn transfer(buffers: &Buffers, bytes: usize, moved: usize) -> (Permit, CancellationToken) {
    let end = CancellationToken::new();
    let mut permit = buffers.grow(None, bytes).await;
    permit.begin_transfer(moved, &end);
    (permit, end)
}

fn is_ready(reservation: Pin<&mut Reservation>) -> Option<Permit> {
    let mut cx = Context::from_waker(Waker::noop());
    match reservation.poll(&mut cx) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn the_slowest_transfers_end_while_slow_ones_hold_more_than_half() {
    let buffers = Buffers::new(8 * MIB);
    let (fast, fast_end) = transfer(&buffers, 3 * MIB, 2 * MIB).await;
    let (slow, slow_end) = transfer(&buffers, 3 * MIB, 1).await;
    let (_handled, _) = {
        let mut handled = transfer(&buffers, 2 * MIB, 0).await;
        handled.0.end_transfer();
        handled
    };
    let mut waiting = pin!(buffers.grow(None, 2 * MIB));
    assert!(is_ready(waiting.as_mut()).is_none());
    time::sleep(SLOW_AFTER).await;
    assert!(is_ready(waiting.as_mut()).is_none());
    assert!(slow_end.is_cancelled());
    assert!(!fast_end.is_cancelled());
    assert_eq!(buffers.ended(), 1);
    drop(slow);
    let permit = is_ready(waiting.as_mut()).expect("there is room");
    assert_eq!(permit.bytes(), 2 * MIB);
    time::sleep(SLOW_AFTER).await;
    let more = buffers.grow(Some(permit), 3 * MIB).await;
    assert!(!fast_end.is_cancelled(), "slow ones hold less than half");
    drop((more, fast));
}

#[tokio::test]
async fn slow_transfers_keep_more_than_half_while_they_progress_and_none_waits() {
    let buffers = Buffers::new(8 * MIB);
    let (first, first_end) = transfer(&buffers, 2 * MIB, MIB).await;
    let (_second, second_end) = transfer(&buffers, 4 * MIB, 2 * MIB).await;
    let (dripping, dripping_end) = transfer(&buffers, MIB, 1).await;
    time::sleep(SLOW_AFTER).await;
    let quick = buffers.grow(None, MIB).await;
    let ended = || [&first_end, &second_end, &dripping_end].map(CancellationToken::is_cancelled);
    assert_eq!(ended(), [false, false, true]);
    drop(dripping);
    // The waiting reservation needs no more than the slower of the two holds.
    time::sleep(RECHECK_INTERVAL).await;
    let mut waiting = pin!(buffers.grow(None, 2 * MIB));
    assert!(is_ready(waiting.as_mut()).is_none());
    assert_eq!(ended(), [true, false, true]);
    drop(first);
    assert!(is_ready(waiting.as_mut()).is_some());
    drop(quick);
}

#[tokio::test]
async fn transfers_do_not_deadlock() {
    let buffers = Buffers::new(4 * MIB);
    let (first, first_end) = transfer(&buffers, MIB, 1).await;
    let (second, second_end) = transfer(&buffers, 3 * MIB, 3 * MIB).await;
    let first = buffers.grow(Some(first), 2 * MIB);
    let second = tokio::spawn({
        let growing = buffers.grow(Some(second), 4 * MIB);
        async move {
            tokio::select! {
                biased;
                () = second_end.cancelled() => {}
                _ = growing => panic!("there is no room"),
            }
        }
    });
    assert_eq!(first.await.bytes(), 2 * MIB, "the larger one makes room");
    assert!(!first_end.is_cancelled());
    second.await.unwrap();
}

#[tokio::test]
async fn requests_that_need_more_than_half_do_not_deadlock() {
    // As two of the largest control requests do at the lowest limit, which is twice what each needs
    // beyond its own size.
    let buffers = Buffers::new(16 * MIB);
    let mut waiting = JoinSet::new();
    for _ in 0..8 {
        let (permit, end) = transfer(&buffers, MIB, MIB).await;
        let growing = buffers.grow(Some(permit), 9 * MIB);
        waiting.spawn(async move {
            tokio::select! {
                () = end.cancelled() => None,
                grown = growing => Some(grown.bytes()),
            }
        });
    }
    let grown = waiting.join_all().await;
    assert_eq!(grown.iter().flatten().max(), Some(&(9 * MIB)), "{grown:?}");
}

#[tokio::test]
async fn the_smallest_reservation_comes_first() {
    let buffers = Buffers::new(4 * MIB);
    let all = buffers.grow(None, 4 * MIB).await;
    let mut large = pin!(buffers.grow(None, 3 * MIB));
    let mut small = pin!(buffers.grow(None, MIB));
    assert!(is_ready(large.as_mut()).is_none());
    assert!(is_ready(small.as_mut()).is_none());
    assert_eq!(buffers.peak_bytes(), 4 * MIB as u64);
    let rest = all.shrink(2 * MIB).unwrap();
    assert!(is_ready(large.as_mut()).is_none());
    let small = is_ready(small.as_mut()).expect("it fits");
    drop(rest);
    assert!(is_ready(large.as_mut()).is_some());
    drop(small);
    assert_eq!(buffers.peak_bytes(), 4 * MIB as u64);
    assert_eq!(buffers.peak_bytes(), 0);
}

#[tokio::test]
async fn a_dropped_reservation_blocks_no_other() {
    let buffers = Buffers::new(4 * MIB);
    let part = buffers.grow(None, 2 * MIB).await;
    {
        let mut given_up = pin!(buffers.grow(None, 3 * MIB));
        assert!(is_ready(given_up.as_mut()).is_none());
    }
    assert_eq!(buffers.peak_bytes(), 4 * MIB as u64);
    assert_eq!(buffers.peak_bytes(), 2 * MIB as u64);
    let growing = buffers.grow(Some(part), 5 * MIB);
    assert_eq!(growing.await.bytes(), 4 * MIB, "there is no more");
    assert_eq!(buffers.peak_bytes(), 4 * MIB as u64);
    assert_eq!(buffers.peak_bytes(), 0);
}
