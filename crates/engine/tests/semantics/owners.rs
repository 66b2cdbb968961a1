//! The contacts of an operation, and no others, are notified of each of its ends, with the sequence
//! number of that end.

use uuid::Uuid;
use waybill_engine::{
    Command, Contact, CreateRequest, IdOrigin, Message, Outcome, OwnerNotice, ProcessState,
    RecoveryVerb,
};

use crate::fixture::{Fixture, T0, error, id, ms, request, success};

fn contacts() -> Vec<Contact> {
    ["mailto:anna@example.org", "tel:+491701234567"]
        .map(Contact::new)
        .into()
}

fn request_with_contacts() -> CreateRequest {
    CreateRequest {
        notify: contacts(),
        ..request(id(1))
    }
}

fn notices(commands: &[Command]) -> Vec<OwnerNotice> {
    let notice = |command: &Command| match command {
        Command::Send(Message::Owner(notice)) => Some((**notice).clone()),
        _ => None,
    };
    commands.iter().filter_map(notice).collect()
}

/// The states in the notices, with their event ids.
fn ends(commands: &[Command]) -> Vec<(ProcessState, Uuid)> {
    let notices = notices(commands).into_iter();
    notices
        .map(|notice| (notice.state, notice.event_id))
        .collect()
}

fn refused() -> Outcome {
    Outcome::Permanent {
        error: error("refused"),
    }
}

/// Step `b` is refused; the supervisor decides to undo `a`, which is refused, too.
fn park(fixture: &mut Fixture) -> Vec<Command> {
    fixture.request(request_with_contacts());
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), ("b".to_owned(), 1, refused()));
    let failed = fixture.round();
    assert_eq!(notices(&failed), [], "the supervisor has not decided yet");
    fixture.decide(&failed);
    fixture.round();
    let undone = Outcome::Success {
        outputs: Vec::new(),
    };
    fixture.undo_reply(id(1), ("b".to_owned(), 2, undone));
    fixture.undo_reply(id(1), ("a".to_owned(), 2, refused()));
    fixture.round()
}

#[test]
fn the_owner_is_notified_only_of_the_final_status() {
    let mut fixture = Fixture::new();
    fixture.request(request_with_contacts());
    fixture.reply(id(1), success("a", 1));
    assert_eq!(notices(&fixture.round()), []);
    fixture.now = fixture.now + ms(40);
    fixture.reply(id(1), success("b", 1));
    let commands = fixture.round();
    assert_eq!(
        notices(&commands),
        [OwnerNotice {
            event_id: id(1).event_id("owner-1"),
            operation: id(1),
            caller_id: Some("order-1".to_owned()),
            workflow: "pair".to_owned(),
            tenant: "acme".to_owned(),
            state: ProcessState::Processed,
            contacts: contacts(),
            at: T0 + ms(40),
        }]
    );
    let [
        Command::Persist(_),
        Command::Send(Message::Status(status)),
        _,
    ] = &commands[..]
    else {
        panic!("{commands:?}");
    };
    assert_ne!(status.event_id, id(1).event_id("owner-1"));
}

#[test]
fn without_contacts_no_notice_is_sent() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("b", 1));
    assert_eq!(notices(&fixture.round()), []);
    assert_eq!(fixture.state(id(1)).state, ProcessState::Processed);
}

#[test]
fn a_new_owner_of_the_partition_repeats_the_notices() {
    let mut fixture = Fixture::new();
    fixture.request(request_with_contacts());
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("b", 1));
    let lost = notices(&fixture.take().unwrap().commands);
    assert_eq!(lost.len(), 1);
    fixture.restart(0, 0);
    fixture.now = fixture.now + ms(5_000);
    fixture.request(request_with_contacts());
    fixture.load();
    assert_eq!(notices(&fixture.round()), lost);
}

#[test]
fn an_owner_notified_of_parking_is_notified_of_the_end_separately() {
    let mut fixture = Fixture::new();
    let parked = ends(&park(&mut fixture));
    let [(state, delayed)] = parked[..] else {
        panic!("{parked:?}");
    };
    assert_eq!(state, ProcessState::CompensationFailed);
    let step = "a".to_owned();
    fixture.recover(2, id(1), None, RecoveryVerb::Undone { step });
    fixture.load();
    let ended = ends(&fixture.round());
    let [(state, undone)] = ended[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(state, ProcessState::Compensated);
    assert_ne!(undone, delayed);
}

#[test]
fn abandoning_a_parked_operation_does_not_notify_its_owner() {
    let mut fixture = Fixture::new();
    assert_eq!(ends(&park(&mut fixture)).len(), 1);
    fixture.recover(2, id(1), None, RecoveryVerb::Abandon);
    fixture.load();
    assert_eq!(notices(&fixture.round()), []);
    assert!(fixture.state(id(1)).abandoned);
}

#[test]
fn an_early_cancel_is_reported_to_the_owner_in_the_create() {
    let mut fixture = Fixture::new();
    fixture.cancel(7);
    fixture.load();
    assert_eq!(notices(&fixture.round()), [], "the request has no contacts");
    fixture.request(CreateRequest {
        id_origin: IdOrigin::Caller,
        ..request_with_contacts()
    });
    fixture.load();
    let sent: Vec<_> = notices(&fixture.round());
    let [notice] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(notice.state, ProcessState::Cancelled);
    assert_eq!(notice.contacts, contacts());
}

#[test]
fn no_command_shows_a_contact() {
    let mut fixture = Fixture::new();
    fixture.request(request_with_contacts());
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("b", 1));
    let commands = fixture.round();
    let shown = format!(
        "{commands:?} {:?} {:?}",
        fixture.rows,
        request_with_contacts()
    );
    assert!(shown.contains("notify: [(redacted), (redacted)]"));
    for secret in ["anna", "example.org", "170123"] {
        assert!(!shown.contains(secret), "{secret}");
    }
}
