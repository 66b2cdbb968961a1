//! The first owner of a partition: what its logs must look like, and what it stores.

use waybill_messages::TopicId;

use super::*;

fn sign(acquired: &Acquired) -> &str {
    match acquired {
        Err(AcquireError::StateElsewhere { sign }) => sign,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_stores_where_the_logs_begin_and_their_topics() {
    let mut site = Site::default();
    site.ends.first.replies = Offset(6);
    site.ends.next = at(12);
    let topic = TopicId(u128::MAX / 3);
    site.ends.topics.normal = Some(topic);
    let (held, _) = site.acquire(&Layout::first(1), 0).unwrap();
    let calls = [
        "read 0.0",
        "ends 0",
        "committed Requests 0",
        "committed HighPriority 0",
        "read 0.0",
        "layout",
        "ends 0",
        "take 0.0",
        "cursor",
        "advance cursor",
        "ends 0",
    ];
    assert_eq!(site.calls, calls);
    assert!(held.row.is_begun);
    assert_eq!(held.row.epoch, Epoch(1));
    assert_eq!(held.row.checkpoint.at, site.ends.first);
    let fingerprints = ByPriority {
        normal: Some(topic.head()),
        high: None,
    };
    assert_eq!(held.row.checkpoint.fingerprints, fingerprints);
    assert_eq!(site.leases[&key(0, 0)], held.row);
}

#[test]
fn a_log_with_committed_offsets_is_refused() {
    for (priority, calls) in [(Priority::Normal, 3), (Priority::High, 4)] {
        let mut site = Site::default();
        site.ends.next.requests = Offset(12);
        site.ends.next.high_priority = Offset(12);
        site.committed[priority] = Some(Offset(5));
        let acquired = site.acquire(&Layout::first(1), 0);
        assert_eq!(sign(&acquired), "requests are committed up to offset 5");
        assert_eq!(site.calls.len(), calls, "{:?}", site.calls);
        assert!(site.leases.is_empty());

        site.may_lack_state = true;
        site.calls.clear();
        site.acquire(&Layout::first(1), 0).unwrap();
        let calls = ["read 0.0", "layout", "ends 0", "take 0.0"];
        assert_eq!(site.calls[..4], calls);
    }
}

#[test]
fn logs_without_their_beginnings_are_refused() {
    let mut site = Site::default();
    site.ends.first = at(4);
    site.ends.next = at(12);
    let acquired = site.acquire(&Layout::first(1), 0);
    let expected = "the log of its requests begins at offset 4";
    assert_eq!(sign(&acquired), expected);
    assert!(site.leases.is_empty());

    site.may_lack_state = true;
    let (held, _) = site.acquire(&Layout::first(1), 0).unwrap();
    assert_eq!(held.row.checkpoint.at, at(4));
    assert_eq!(held.row.consumed.normal, Offset(4));
}

/// Retention may act between the check and the write.
#[test]
fn a_log_that_loses_its_beginning_meanwhile_is_refused() {
    let mut site = Site::default();
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if matches!(call, AcquisitionCall::ReadLayout) {
            site.ends.first = at(4);
        }
        None
    });
    let expected = "the log of its requests begins at offset 4";
    assert_eq!(sign(&acquired), expected);
    assert!(site.leases.is_empty());
}

#[test]
fn a_shard_that_has_begun_is_not_checked() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    site.ends.first = at(4);
    site.committed.normal = Some(Offset(5));
    site.acquire(&Layout::first(1), 0).unwrap();
    let committed = site.calls.iter().any(|call| call.starts_with("committed"));
    assert!(!committed, "{:?}", site.calls);
}

/// The same holds for a shard whose predecessors have begun.
#[test]
fn a_shard_that_follows_one_that_has_begun_is_not_checked() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    site.ends.first = at(4);
    let (held, _) = site.acquire(&layout_of(&[2]), 1).unwrap();
    assert_eq!(held.row.checkpoint.at, at(40));
}

#[test]
fn a_failure_to_read_the_logs_ends_the_acquisition() {
    for fails in ["ends 0", "committed Requests 0"] {
        let mut site = Site::default();
        let acquired = site.acquire_with(&Layout::first(1), 0, |_, call| {
            let failed = AcquisitionAnswer::Failed("no broker answered".to_owned());
            (name(call) == fails).then_some(failed)
        });
        let text = "cannot read the ends of the log: no broker answered";
        let expected = AcquireError::Failed(text.to_owned());
        assert_eq!(acquired, Err(expected), "{fails}");
    }
}
