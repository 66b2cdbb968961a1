//! Records that are another reader's.

use waybill_engine::{Event, Offset, Source};

use crate::fixture::Fixture;

#[test]
fn a_record_that_is_passed_over_is_done_at_once_and_causes_nothing() {
    let mut fixture = Fixture::new();
    let before = fixture.engine.checkpoint();
    for (source, offset) in [
        (Source::Requests, before.requests),
        (Source::Replies, before.replies),
        (Source::Recoveries, before.recoveries),
    ] {
        fixture.apply(Event::Passed {
            source,
            offset: Offset(offset.0 + 2),
            fingerprint: 77,
        });
    }
    let after = fixture.engine.checkpoint();
    assert_eq!(after.requests, Offset(before.requests.0 + 3));
    assert_eq!(after.consumed, after.requests);
    assert_eq!(after.replies, Offset(before.replies.0 + 3));
    assert_eq!(after.recoveries, Offset(before.recoveries.0 + 3));
    assert_eq!(after.requests_fingerprint, Some(77));
    assert_eq!(fixture.engine.loads(), []);
    assert_eq!(fixture.take(), None);
}
