//! Records of other shards.

use waybill_engine::{Event, Offset, Priority, Source};

use crate::fixture::Fixture;

#[test]
fn a_skipped_record_is_done_immediately_and_has_no_commands() {
    let mut fixture = Fixture::new();
    let before = fixture.engine.checkpoint();
    for source in Source::ALL {
        let offset = before.at.on(source);
        fixture.apply(Event::Passed {
            source,
            offset: Offset(offset.0 + 2),
            fingerprint: 77,
        });
    }
    let after = fixture.engine.checkpoint();
    for source in Source::ALL {
        assert_eq!(after.at.on(source), Offset(before.at.on(source).0 + 3));
    }
    for priority in Priority::ALL {
        assert_eq!(after.consumed[priority], after.at.on(priority.source()));
        assert_eq!(after.fingerprints[priority], Some(77));
    }
    assert_eq!(fixture.engine.loads(), []);
    assert_eq!(fixture.take(), None);
}
