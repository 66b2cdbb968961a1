//! Agents that are called without a topic: their replies have no offset, and their contents alone
//! count.

use waybill_engine::{Offset, ProcessState};

use crate::fixture::{Fixture, id, ms, request, success, summary};

#[test]
fn a_direct_reply_advances_its_operation_and_not_the_checkpoint() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.reply_directly(id(1), success("a", 1));
    let asked = summary(&fixture.round());
    assert!(asked.last().unwrap().starts_with("ask b#1"), "{asked:?}");
    fixture.reply_directly(id(1), success("b", 1));
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Processed);
    let checkpoint = fixture.engine.checkpoint();
    assert_eq!(
        (checkpoint.at.requests, checkpoint.at.replies),
        (Offset(1), Offset(0))
    );
}

#[test]
fn a_repeated_direct_reply_counts_once() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.reply_directly(id(1), success("a", 1));
    fixture.reply_directly(id(1), success("a", 1));
    let asked = summary(&fixture.round());
    let asks = asked.iter().filter(|line| line.starts_with("ask"));
    assert_eq!(asks.count(), 1, "{asked:?}");
    assert!(fixture.take().is_none());
}

#[test]
fn a_direct_reply_to_a_handed_off_operation_waits_for_its_row() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.pass(ms(9_000));
    fixture.round();
    assert_eq!(
        fixture.engine.in_flight().operations,
        0,
        "it was handed off"
    );
    fixture.reply_directly(id(1), success("a", 1));
    assert_eq!(fixture.engine.in_flight().loading, 1);
    fixture.load();
    let asked = summary(&fixture.round());
    assert!(asked.last().unwrap().starts_with("ask b#1"), "{asked:?}");
}
