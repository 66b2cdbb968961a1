//! What a new owner does before it returns its lease.

use super::*;

#[test]
fn the_first_cursor_is_from_before_it_was_asked_for() {
    let mut site = Site::default();
    let mut asked_at = None;
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if matches!(call, AcquisitionCall::ReadCursor(_)) {
            asked_at = Some(site.now().wall);
            // Another process may store a cursor and write entries in this time.
            site.time += Duration::from_secs(4);
        }
        None
    });
    acquired.unwrap();
    assert_eq!(site.cursor, Some(DueBucket::of(asked_at.unwrap())));
}

#[test]
fn a_cursor_that_is_stored_stays() {
    let mut site = Site {
        cursor: Some(DueBucket(5)),
        ..Site::default()
    };
    site.acquire(&Layout::first(1), 0).unwrap();
    assert_eq!(site.cursor, Some(DueBucket(5)));
    assert!(!site.calls.contains(&"advance cursor".to_owned()));
}

#[test]
fn the_ends_are_read_again_after_a_failure() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    let mut failures = 0;
    let acquired = site.acquire_with(&Layout::first(1), 0, |_, call| {
        if let AcquisitionCall::Wait(time) = call {
            assert_eq!(*time, Duration::from_millis(200));
        }
        let fails = matches!(call, AcquisitionCall::ReadEnds(_)) && failures < 2;
        failures += usize::from(fails);
        fails.then(|| AcquisitionAnswer::Failed("the leader is unknown".to_owned()))
    });
    acquired.unwrap();
    let last = ["ends 0", "wait", "ends 0", "wait", "ends 0"];
    assert!(site.calls.ends_with(&last.map(str::to_owned)));
}

#[test]
fn the_ends_are_given_up_shortly_before_the_lease_ends() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    let mut failed_at = None;
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if !matches!(call, AcquisitionCall::ReadEnds(_)) {
            return None;
        }
        failed_at = Some(site.time);
        Some(AcquisitionAnswer::Failed("no broker answered".to_owned()))
    });
    let text = "cannot read the ends of the log: no broker answered";
    assert_eq!(acquired, Err(AcquireError::Failed(text.to_owned())));
    // The lease lasts 8 s.
    let seven = Duration::from_secs(7);
    let failed_at = failed_at.unwrap();
    assert!((seven..seven + Duration::from_millis(300)).contains(&failed_at));
}
