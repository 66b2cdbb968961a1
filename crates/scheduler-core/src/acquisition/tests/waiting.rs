//! A candidate waits for another owner, and reads again what may have changed.

use super::*;

#[test]
fn a_silent_owner_is_waited_for() {
    let mut site = Site::default();
    site.lease(0, 0, Some(OTHER), 40);
    let (held, _) = site.acquire(&Layout::first(1), 0).unwrap();
    // Its lease of 5 s and the margin of 2 s.
    let seven = Duration::from_secs(7);
    assert!((seven..seven + LeaseWatch::INTERVAL).contains(&site.waited));
    assert_eq!(held.row.epoch, Epoch(5));
    // The layout is read after the wait, not before it.
    let last = ["wait", "read 0.0", "layout", "take 0.0"];
    assert!(site.calls.windows(4).any(|calls| calls == last));
}

#[test]
fn an_owner_that_renews_its_lease_is_waited_for_until_it_releases_it() {
    let mut site = Site::default();
    site.lease(0, 0, Some(OTHER), 40);
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if let AcquisitionCall::Wait(time) = call {
            assert_eq!(*time, LeaseWatch::INTERVAL);
            let is_over = site.time > Duration::from_secs(30);
            let lease = site.leases.get_mut(&key(0, 0)).unwrap();
            lease.renewal += 1;
            lease.checkpoint.at.requests.0 += 1;
            if is_over {
                lease.owner = None;
            }
        }
        None
    });
    let (held, _) = acquired.unwrap();
    assert!(site.waited > Duration::from_secs(29), "{:?}", site.waited);
    let reached = held.row.checkpoint.at.requests;
    assert!(reached > Offset(90), "{reached}");
}

#[test]
fn an_exclusive_store_has_no_owner_to_wait_for() {
    let mut site = Site {
        is_exclusive: true,
        ..Site::default()
    };
    site.lease(0, 0, Some(OTHER), 40);
    site.acquire(&Layout::first(1), 0).unwrap();
    assert_eq!(site.waited, Duration::ZERO);
}

#[test]
fn a_lost_race_is_run_again_from_its_beginning() {
    let mut site = Site::default();
    let mut is_lost = false;
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if matches!(call, AcquisitionCall::TakeLease { .. }) && !is_lost {
            is_lost = true;
            site.lease(0, 0, Some(OTHER), 3);
            site.ends.first = at(1);
        }
        None
    });
    let (held, _) = acquired.unwrap();
    assert!(site.waited >= Duration::from_secs(7), "{:?}", site.waited);
    assert_eq!(held.row.epoch, Epoch(5));
    assert_eq!(held.row.checkpoint.at.requests, Offset(3));
    let again = ["take 0.0", "read 0.0", "wait"];
    assert!(
        site.calls.windows(3).any(|calls| calls == again),
        "{:?}",
        site.calls
    );
    let layouts = site.calls.iter().filter(|call| *call == "layout");
    assert_eq!(layouts.count(), 2);
}

#[test]
fn the_first_owner_that_loses_a_race_reads_the_beginnings_again() {
    let mut site = Site::default();
    let mut is_lost = false;
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if matches!(call, AcquisitionCall::TakeLease { .. }) && !is_lost {
            is_lost = true;
            site.ends.first = TopicOffsets {
                replies: Offset(9),
                ..TopicOffsets::default()
            };
            return Some(AcquisitionAnswer::Taken(false));
        }
        None
    });
    let (held, _) = acquired.unwrap();
    assert_eq!(held.row.checkpoint.at, site.ends.first);
}

#[test]
fn a_layout_that_has_changed_ends_the_acquisition() {
    let mut site = Site::default();
    site.lease(1, 0, Some(OTHER), 40);
    let acquired = site.acquire_with(&layout_of(&[1]), 0, |site, call| {
        if matches!(call, AcquisitionCall::Wait(_)) {
            site.other_layout = Some(layout_of(&[1, 2]));
        }
        None
    });
    assert_eq!(acquired, Err(AcquireError::LayoutChanged));
    assert_eq!(site.calls.last().unwrap(), "layout");
    assert_eq!(site.leases[&key(1, 0)].owner, Some(OTHER));
}

#[test]
fn a_store_without_a_layout_has_the_first() {
    let mut site = Site {
        other_layout: Some(Layout::first(1)),
        ..Site::default()
    };
    let acquired = site.acquire(&layout_of(&[1]), 0);
    assert_eq!(acquired, Err(AcquireError::LayoutChanged));
}

#[test]
fn a_lease_that_has_ended_is_not_taken() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    let ended = site.leases[&key(0, 0)].ended();
    site.leases.insert(key(0, 0), ended.clone());
    let acquired = site.acquire(&Layout::first(1), 0);
    assert_eq!(acquired, Err(AcquireError::LayoutChanged));
    assert_eq!(site.leases[&key(0, 0)], ended);
}
