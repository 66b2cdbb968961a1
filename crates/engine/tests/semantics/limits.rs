//! Batches, stamps, the window, records of other partitions, and failures of the engine itself.

use waybill_engine::{
    AmendRequest, Amendment, Command, CreateRequest, EngineConfig, Event, ForwardRecord, IdOrigin,
    InFlight, Message, Offset, Outcome, Ownership, PartitionId, Position, Priority, ProcessState,
    Room, Source, Stamp,
};

use crate::fixture::{EPOCH, Fixture, T0, error, id, ms, ownership, request, success, summary};

fn record() -> Box<ForwardRecord> {
    Box::new(ForwardRecord {
        key: Some(b"key".to_vec()),
        value: Some(vec![0xff, 0x00]),
        headers: vec![("traceparent".to_owned(), None)],
    })
}

#[test]
fn batches_count_as_settled_in_their_order() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    let first = fixture.take().unwrap();
    fixture.reply(id(1), success("a", 1));
    let second = fixture.take().unwrap();
    fixture.settle(second.number);
    assert_eq!(fixture.replies_checkpoint(), 0);
    assert_eq!(fixture.engine.checkpoint().consumed.normal, Offset(0));
    fixture.settle(first.number);
    assert_eq!(fixture.replies_checkpoint(), 1);
    assert_eq!(fixture.engine.checkpoint().consumed.normal, Offset(1));
    fixture.settle(first.number);
    assert_eq!(fixture.replies_checkpoint(), 1, "settled twice is settled");
}

#[test]
fn a_batch_of_finished_offsets_has_no_commands() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.request(request(id(1)));
    let batch = fixture.take().unwrap();
    assert_eq!(batch.commands, []);
    assert_eq!(fixture.engine.checkpoint().consumed.normal, Offset(1));
    fixture.settle(batch.number);
    assert_eq!(fixture.engine.checkpoint().consumed.normal, Offset(2));
    assert_eq!(fixture.take(), None);
}

#[test]
fn a_stamp_is_the_time_and_increases_above_the_floor() {
    let floor = T0.as_micros() + 10;
    let mut fixture = Fixture::with(
        EngineConfig::default(),
        Ownership {
            stamp_floor: Stamp(floor),
            ..ownership(EPOCH)
        },
    );
    let mut stamps = Vec::new();
    for (number, advance_ms) in [(1, 0), (2, 0), (3, 5)] {
        fixture.now = fixture.now + ms(advance_ms);
        fixture.request(request(id(number)));
        fixture.round();
        stamps.push(fixture.rows[&id(number)].stamp.0 - T0.as_micros());
    }
    assert_eq!(stamps, [10, 11, 5_000]);
}

#[test]
fn without_a_stamp_below_the_limit_rows_wait_until_the_limit_rises() {
    let limit = T0.as_micros() + 1;
    let mut fixture = Fixture::with(
        EngineConfig::default(),
        Ownership {
            stamp_limit: Stamp(limit),
            ..ownership(EPOCH)
        },
    );
    fixture.request(request(id(1)));
    assert!(fixture.take().is_some());
    fixture.request(request(id(2)));
    assert_eq!(fixture.take(), None);
    fixture.apply(Event::StampLimit(Stamp(limit - 1)));
    assert_eq!(fixture.take(), None, "a limit never falls");
    fixture.apply(Event::StampLimit(Stamp(limit + 1)));
    assert_eq!(summary(&fixture.round()).len(), 2);
}

#[test]
fn requests_wait_for_room_by_count_or_by_bytes_until_operations_leave() {
    let by_count = Room {
        operations: 2,
        bytes: usize::MAX,
    };
    let by_bytes = Room {
        operations: usize::MAX,
        bytes: 2_000,
    };
    for room in [by_count, by_bytes] {
        let mut fixture = Fixture::new();
        fixture.room = room;
        for number in [1, 2, 3] {
            fixture.request(request(id(number)));
        }
        let waiting = |fixture: &Fixture| fixture.engine.waiting(Priority::Normal).requests;
        assert_eq!(fixture.engine.in_flight().operations, 2);
        assert_eq!(waiting(&fixture), 1);
        assert_eq!(fixture.oldest_held().unwrap().operation, id(1));
        for number in [1, 2] {
            fixture.reply(id(number), success("a", 1));
            fixture.reply(id(number), success("b", 1));
        }
        fixture.round();
        let held = fixture.oldest_held().unwrap();
        assert_eq!((held.operation, held.waits), (id(3), true));
        assert_eq!(
            fixture.requests_checkpoint(),
            2,
            "nothing passes a request that waits"
        );
        assert_eq!(fixture.engine.in_flight(), InFlight::default());
        fixture.admit(1);
        assert_eq!(waiting(&fixture), 0);
        assert_eq!(fixture.engine.in_flight().operations, 1);
    }
}

#[test]
fn requests_overtake_backlogs_of_other_tenants_and_priorities() {
    let mut fixture = Fixture::new();
    fixture.admit(0);
    let of = |number: u128, tenant: &str| CreateRequest {
        tenant: tenant.to_owned(),
        ..request(id(number))
    };
    for number in 1..=3 {
        fixture.request(of(number, "flood"));
    }
    fixture.request(of(4, "calm"));
    fixture.high_priority(of(5, "flood"));
    fixture.admit(3);
    let batch = fixture.take().unwrap();
    let begun: Vec<_> = batch
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Persist(change) => Some(change.id),
            _ => None,
        })
        .collect();
    assert_eq!(begun, [id(5), id(1), id(4)]);
    fixture.settle(batch.number);
    let reached = fixture.engine.checkpoint();
    assert_eq!(reached.consumed.normal, Offset(1), "the second waits");
    assert_eq!(reached.consumed.high, Offset(1));
    assert_eq!(reached.at.high_priority, Offset(0), "it is not through");
}

#[test]
fn a_request_with_both_priorities_is_created_by_the_first_admitted() {
    let mut fixture = Fixture::new();
    fixture.admit(0);
    let caller = CreateRequest {
        id_origin: IdOrigin::Caller,
        ..request(id(1))
    };
    fixture.request(caller.clone());
    fixture.high_priority(caller);
    fixture.admit(9);
    fixture.load();
    fixture.round();
    let position = fixture.rows[&id(1)].created.request;
    assert_eq!(
        (position.priority, position.offset),
        (Priority::High, Offset(0))
    );
    let reached = fixture.engine.checkpoint();
    assert_eq!(
        (reached.at.requests, reached.at.high_priority),
        (Offset(1), Offset(0)),
        "the repeat is done, and the one that made it holds its own checkpoint"
    );
    for step in ["a", "b"] {
        fixture.reply(id(1), success(step, 1));
    }
    fixture.round();
    assert_eq!(fixture.engine.checkpoint().at.high_priority, Offset(1));
}

#[test]
fn an_early_cancel_of_a_generated_id_is_applied() {
    let mut fixture = Fixture::new();
    fixture.admit(0);
    fixture.request(request(id(1)));
    let workflow = "pair".to_owned();
    let cancel = AmendRequest {
        caller_id: None,
        ..fixture.amendment(7, Amendment::Cancel { workflow })
    };
    fixture.amend_by(Priority::High, cancel);
    fixture.admit(1);
    fixture.load();
    fixture.round();
    assert!(fixture.state(id(1)).tombstone, "it keeps the place");
    assert_eq!(fixture.engine.in_flight(), InFlight::default());
    fixture.admit(1);
    fixture.load();
    fixture.round();
    let state = fixture.state(id(1));
    assert_eq!(state.state, ProcessState::Cancelled);
    assert!(!state.tombstone);
}

#[test]
fn rows_being_read_and_their_events_count_against_the_window() {
    let mut fixture = Fixture::new();
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("a", 1));
    let held = fixture.engine.in_flight();
    assert_eq!((held.operations, held.loading), (0, 1));
    assert!(held.bytes > 0);
    fixture.load();
    assert_eq!(fixture.engine.in_flight(), InFlight::default());
    assert_eq!(fixture.engine.take_stats().unknown_replies, 2);
}

#[test]
fn an_unexpected_answer_from_the_store_is_ignored() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let row = fixture.rows[&id(1)].clone();
    for (operation, row) in [(id(1), Some(Box::new(row))), (id(2), None)] {
        fixture.apply(Event::Loaded { operation, row });
    }
    assert_eq!(fixture.take(), None);
    assert_eq!(fixture.engine.in_flight().operations, 1);
}

#[test]
fn an_unreadable_record_is_dead_lettered_unchanged() {
    let mut fixture = Fixture::new();
    for source in [Source::Requests, Source::Replies] {
        fixture.apply(Event::Unreadable {
            source,
            offset: Offset(0),
            fingerprint: 9,
            operation: None,
            cause: "not Avro".to_owned(),
            record: record(),
        });
        let batch = fixture.take().unwrap();
        assert_eq!(
            batch.commands,
            [Command::Send(Message::DeadLetter {
                source,
                offset: Offset(0),
                cause: "not Avro".to_owned(),
                record: record(),
            })]
        );
        fixture.settle(batch.number);
    }
    let checkpoint = fixture.engine.checkpoint();
    assert_eq!(
        (checkpoint.at.requests, checkpoint.at.replies),
        (Offset(1), Offset(1))
    );
    assert_eq!(checkpoint.fingerprints.normal, Some(9));
    assert_eq!(checkpoint.consumed.normal, Offset(1));
}

/// As after the record was damaged, or by a version that accepts less.
#[test]
fn a_refused_request_leads_to_its_operation_until_that_has_ended() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.restart(0, 0);
    let refused = |fixture: &mut Fixture, offset, operation| {
        fixture.apply(Event::Unreadable {
            source: Source::Requests,
            offset: Offset(offset),
            fingerprint: 9,
            operation: Some(operation),
            cause: "not Avro".to_owned(),
            record: record(),
        });
        fixture.load();
    };
    refused(&mut fixture, 0, id(1));
    // Without an operation, and of one that is in memory.
    refused(&mut fixture, 1, id(2));
    refused(&mut fixture, 2, id(1));
    let batch = fixture.take().unwrap();
    let is_dead_letter =
        |command: &&Command| matches!(command, Command::Send(Message::DeadLetter { .. }));
    assert_eq!(batch.commands.iter().filter(is_dead_letter).count(), 3);
    let asks = |command: &Command| matches!(command, Command::Send(Message::Step(_)));
    assert!(batch.commands.iter().any(asks), "{:?}", batch.commands);
    fixture.settle(batch.number);
    assert_eq!(fixture.requests_checkpoint(), 0, "its operation is running");
    for step in ["a", "b"] {
        fixture.reply(id(1), success(step, 1));
        fixture.round();
    }
    assert_eq!(fixture.requests_checkpoint(), 3);
    assert_eq!(fixture.rows[&id(1)].state.state, ProcessState::Processed);
}

#[test]
fn a_rerouted_request_holds_the_checkpoint_until_its_operation_ends() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let row = fixture.rows.get_mut(&id(1)).unwrap();
    let elsewhere = Position {
        priority: Priority::Normal,
        partition: PartitionId(1),
        offset: Offset(90),
    };
    std::sync::Arc::make_mut(&mut row.created).request = elsewhere;
    fixture.restart(5, 0);
    fixture.request(request(id(1)));
    fixture.load();
    fixture.round();
    assert_eq!(fixture.requests_checkpoint(), 5, "its operation is running");
    for step in ["a", "b"] {
        fixture.reply(id(1), success(step, 1));
        fixture.round();
    }
    assert_eq!(fixture.requests_checkpoint(), 6);
}

#[test]
fn a_misrouted_record_is_rerouted_once_and_then_to_the_dead_letters() {
    let mut fixture = Fixture::new();
    for (offset, already_rerouted) in [(0, false), (1, true)] {
        fixture.apply(Event::Misrouted {
            source: Source::Requests,
            offset: Offset(offset),
            fingerprint: 9,
            home: PartitionId(6),
            partitions: 8,
            already_rerouted,
            record: record(),
        });
    }
    let batch = fixture.take().unwrap();
    let [
        Command::Send(rerouted),
        Command::Send(Message::DeadLetter { cause, offset, .. }),
    ] = &batch.commands[..]
    else {
        panic!("{:?}", batch.commands);
    };
    assert_eq!(
        *rerouted,
        Message::Reroute {
            source: Source::Requests,
            partition: PartitionId(6),
            partitions: 8,
            record: record(),
        }
    );
    assert_eq!(*offset, Offset(1));
    assert_eq!(
        cause,
        "its operation belongs to partition 6 of 8, not to 3, and the record was already rerouted"
    );
    assert_eq!(
        fixture.requests_checkpoint(),
        0,
        "not before its own partition has it"
    );
    fixture.settle(batch.number);
    assert_eq!(fixture.requests_checkpoint(), 2);
    let stats = fixture.engine.take_stats();
    assert_eq!((stats.misrouted, stats.dead_lettered), (2, 1));
}

#[test]
fn a_panic_parks_only_its_operation() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.request(request(id(2)));
    fixture.round();
    // An impossible count: the next failure would overflow it.
    let row = fixture.rows.get_mut(&id(1)).unwrap();
    row.state.steps[0].failure_count = u32::MAX;
    fixture.restart(0, 0);
    let transient = Outcome::Transient {
        error: error("busy"),
    };
    fixture.reply(id(1), ("a".to_owned(), 1, transient));
    fixture.reply(id(2), success("a", 1));
    fixture.load();
    let summary = summary(&fixture.round());
    assert_eq!(summary[0], "attention 0");
    assert!(
        summary[1].starts_with("row Error created free"),
        "{summary:?}"
    );
    assert!(
        summary[2].starts_with("row Processing created locked"),
        "{summary:?}"
    );
    assert_eq!(
        summary[3..],
        [
            "failed internal-error",
            "alert operation-parked internal-error",
            "status 1 Final Error internal-error",
            "ask b#1 by 10000",
        ]
    );
    let reason = fixture.state(id(1)).error.clone().unwrap().error.message;
    assert!(reason.contains("overflow"), "{reason}");
    assert_eq!(fixture.engine.take_stats().internal_errors, 1);
}

#[test]
fn the_fingerprint_of_a_checkpoint_that_did_not_move_is_that_of_the_old_one() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    assert_eq!(fixture.engine.checkpoint().fingerprints.normal, None);
}

#[test]
fn finished_offsets_after_a_waiting_request_are_remembered() {
    let mut fixture = Fixture::new();
    fixture.admit(0);
    let of = |number: u128, tenant: &str| CreateRequest {
        tenant: tenant.to_owned(),
        ..request(id(number))
    };
    for number in 0..30 {
        fixture.request(of(number, "backlog"));
    }
    for number in 0..10 {
        let other = number + 30;
        fixture.request(of(other, &format!("tenant {other}")));
        fixture.admit(2);
        for number in [number, other] {
            fixture.reply(id(number), success("a", 1));
            fixture.reply(id(number), success("b", 1));
        }
        fixture.round();
    }
    assert_eq!(fixture.requests_checkpoint(), 10);
    assert_eq!(fixture.engine.waiting(Priority::Normal).requests, 20);
    assert_eq!(fixture.engine.tracked(Priority::Normal), 30);
}
