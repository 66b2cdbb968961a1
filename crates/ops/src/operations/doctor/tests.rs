use std::path::Path;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use waybill_api::view::{ErrorView, ItemView, OperationView, StepView};
use waybill_engine::Offset;
use waybill_topology::shards::show::{CheckpointView, LayoutView, ShardView};

use super::dead_letters::found;
use super::installation::{api, breakers, count_stranded, disk, leases, overdue, unread};
use super::operation::of_operation;
use super::*;
use crate::access::AccessArgs;
use crate::admin_port::{Refused, Unreachable};
use crate::operations::api::Api;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn layout(owner: Option<&str>) -> LayoutView {
    let shard = |shard| ShardView {
        shard,
        partition: shard,
        owner: owner.map(str::to_owned),
        silent: false,
        epoch: 3,
        checkpoint: CheckpointView {
            requests: Offset(1),
            high_priority: Offset(0),
            replies: Offset(1),
            recoveries: Offset(0),
        },
        consumed: Offset(2),
        consumed_high_priority: Offset(0),
        waits_for: owner.map_or(vec!["an owner".to_owned()], |_| Vec::new()),
        starts_by: None,
    };
    LayoutView {
        generation: 0,
        partitions: 2,
        per_partition: 1,
        becomes: None,
        valid_topic_partitions: vec![2],
        shards: vec![shard(0), shard(1)],
    }
}

fn operation(state: &str) -> OperationView {
    let step = |name: &str, state: &str, complete_by: Option<&str>| StepView {
        name: name.into(),
        state: state.to_owned().into(),
        attempt: 1,
        complete_by: complete_by.map(str::to_owned),
        ..StepView::default()
    };
    OperationView {
        id: ID.parse().unwrap(),
        state: state.to_owned().into(),
        what_next: Some("Its steps continue.".to_owned()),
        steps: vec![
            step("account", "Completed", None),
            step("drone", "Running", Some("10:00")),
            step("delivery", "NotStarted", None),
        ],
        ..OperationView::default()
    }
}

fn message(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn doctor_shows_the_missing_steps_the_owner_and_the_next_action_of_an_operation() {
    let findings = of_operation(Ok(operation("Processing")), Some(&layout(Some("me"))));
    let found = message(&findings);
    assert_eq!(found[0], format!("ok    operation      {ID}: Processing"));
    assert_eq!(found[1], "ok    missing        drone, delivery");
    assert_eq!(
        found[2],
        "ok    waits for      step drone, attempt 1, until 10:00"
    );
    assert!(
        found[3].starts_with("ok    has it         shard "),
        "{}",
        found[3]
    );
    assert!(found[3].ends_with("owned by me"), "{}", found[3]);
    assert_eq!(found[4], "ok    next           Its steps continue.");
}

#[test]
fn doctor_shows_the_steps_that_are_still_to_be_undone() {
    let step = |name: &str, state: &str, action: &str| StepView {
        name: name.into(),
        state: state.to_owned().into(),
        action: Some(action.to_owned().into()),
        ..StepView::default()
    };
    let undone = OperationView {
        steps: vec![
            step("seat", "Compensating", "Run"),
            StepView {
                error: Some(ErrorView {
                    code: "undo-refused".to_owned(),
                    message: "occupied".to_owned(),
                    step: None,
                }),
                ..step("room", "Failed", "Compensate")
            },
            step("bill", "Compensated", "Compensate"),
            step("mail", "NotStarted", "Run"),
        ],
        ..operation("CompensationFailed")
    };
    let found = message(&of_operation(Ok(undone), None));
    assert_eq!(found[1], "ok    to be undone   seat, room");
    assert!(
        found
            .iter()
            .any(|line| line.starts_with("note  error") && line.contains("room")),
        "each undo that failed is named: {found:?}"
    );
    assert!(!found.iter().any(|line| line.contains("missing")));
}

#[test]
fn doctor_names_a_shard_without_an_owner_as_what_an_operation_waits_for() {
    let findings = of_operation(Ok(operation("Processing")), Some(&layout(None)));
    let bad: Vec<_> = findings.iter().filter(|finding| finding.is_bad()).collect();
    assert_eq!(bad.len(), 1);
    assert!(
        bad[0]
            .message
            .ends_with("which has no owner: it waits for an owner")
    );
    let nobodys = leases(&Ok(layout(None)), false);
    assert_eq!(nobodys.len(), 2);
    assert!(nobodys.iter().all(Finding::is_bad));
    assert_eq!(
        message(&leases(&Ok(layout(Some("me"))), false)),
        ["ok    leases         all 2 shards have an owner"]
    );
    let mut changing = layout(Some("me"));
    changing.shards[1] = ShardView {
        starts_by: Some("2026-11-30T12:00:00Z".to_owned()),
        ..layout(None).shards.remove(1)
    };
    assert_eq!(
        message(&leases(&Ok(changing), false)),
        [
            "note  leases         shard 1 of partition 1 has not started: the layout is changing, and it waits for an \
             owner; it starts by 2026-11-30T12:00:00Z if a scheduler runs for it"
        ]
    );
}

#[test]
fn an_unreachable_default_address_is_a_note_with_remedies_and_a_named_one_is_bad() {
    let asked = |is_named| {
        let unreachable = Err(Unreachable::new("http://127.0.0.1:8081/shards", "refused").into());
        message(&leases(&unreachable, is_named)).concat()
    };
    let note = asked(false);
    assert!(note.starts_with("note  leases         unknown: no process answers at the default"));
    for way in ["`waybill up`", "--admin", "--scylla"] {
        assert!(note.contains(way), "{way}: {note}");
    }
    let bad = asked(true);
    assert!(bad.starts_with("BAD   leases         http://127.0.0.1:8081/shards does not answer"));
    let without_scheduler = |is_named| {
        let refused = Refused {
            status: StatusCode::NOT_FOUND,
            message: "answers 404".to_owned(),
        };
        leases(&Err(refused.into()), is_named)
    };
    let note = message(&without_scheduler(false)).concat();
    let expected =
        "note  leases         unknown: the process at the default address has no scheduler";
    assert!(note.starts_with(expected), "{note}");
    assert!(without_scheduler(true)[0].is_bad());
    let broken = Err(anyhow::anyhow!("no layout"));
    assert!(leases(&broken, false)[0].is_bad());
}

#[test]
fn doctor_shows_why_the_last_attempt_of_a_retried_step_failed() {
    let mut retried = operation("Processing");
    retried.steps[0].error = Some(ErrorView {
        code: "old".to_owned(),
        ..ErrorView::default()
    });
    retried.steps[1] = StepView {
        name: "drone".into(),
        state: "Failed".into(),
        attempt: 1,
        retry_at: Some("10:00".to_owned()),
        error: Some(ErrorView {
            code: "connect-failed".to_owned(),
            message: "connection refused".to_owned(),
            step: None,
        }),
        ..StepView::default()
    };
    let found = message(&of_operation(Ok(retried), None));
    assert_eq!(
        found[2..],
        [
            "ok    waits for      step drone, attempt 1 failed, again at 10:00",
            "note  error          connect-failed at step drone: connection refused",
            "ok    next           Its steps continue.",
        ]
    );
}

#[test]
fn a_parked_operation_is_a_note_without_an_owner() {
    let parked = OperationView {
        error: Some(ErrorView {
            code: "no-drone".to_owned(),
            message: "none is free".to_owned(),
            step: Some("drone".to_owned()),
        }),
        ..operation("Error")
    };
    let found = message(&of_operation(Ok(parked), Some(&layout(None))));
    assert_eq!(found[0], format!("note  operation      {ID}: Error"));
    assert!(
        found.contains(&"note  error          no-drone at step drone: none is free".to_owned())
    );
    assert!(!found.iter().any(|line| line.contains("has it")));
}

#[test]
fn an_operation_without_its_workflow_is_bad_and_both_failures_are_shown() {
    let failure = |code: &str| ErrorView {
        code: code.to_owned(),
        message: "as it happens".to_owned(),
        step: Some("drone".to_owned()),
    };
    let parked = OperationView {
        error: Some(failure("undo-refused")),
        cause: Some(failure("suspended")),
        workflow_unknown: true,
        ..operation("CompensationFailed")
    };
    let found = message(&of_operation(Ok(parked), None));
    assert_eq!(
        found[1..],
        [
            "note  error          undo-refused at step drone: as it happens",
            "note  failed before  suspended at step drone: as it happens",
            "BAD   next           Its steps continue.",
        ]
    );
}

#[test]
fn operations_without_their_workflow_are_counted_by_version() {
    let items = [
        r#"{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "state": "Error", "since": "2030-01-01T09:00:00Z", "ageSeconds": 60, "workflow": "order", "workflowVersion": 1}"#,
        r#"{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "state": "Error", "since": "2030-01-01T09:00:00Z", "ageSeconds": 60, "workflow": "order", "workflowVersion": 2,
            "workflowUnknown": true}"#,
        r#"{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "state": "Error", "since": "2030-01-01T09:00:00Z", "ageSeconds": 60, "workflow": "nope", "workflowUnknown": true}"#,
    ];
    let items = items.map(|item| serde_json::from_str::<ItemView>(item).unwrap());
    let again = &items[1..2];
    let expected = [("version 2 of workflow order", 2), ("workflow nope", 1)];
    assert_eq!(
        count_stranded(items.iter().chain(again)),
        expected
            .map(|(workflow, count)| (workflow.to_owned(), count))
            .into()
    );
}

#[tokio::test]
async fn an_overloaded_api_is_not_bad() {
    let problem = json!({ "type": "/problems/overloaded", "detail": "Too many lists." });
    let refuse = async || (StatusCode::SERVICE_UNAVAILABLE, Json(problem));
    let router = Router::new().route("/v1/operations", get(refuse));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let asked = Api::asked_once(address.parse().unwrap(), &AccessArgs::default());
    let found = api(&asked.map_err(|error| error.to_string()), true).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].verdict == Verdict::Note);
    let message = &found[0].message;
    assert!(
        message.starts_with("it answers, but is overloaded: "),
        "{message}"
    );
    assert!(message.contains("Too many lists"), "{message}");
}

#[test]
fn unread_requests_are_bad_only_if_certainly_no_consumer_reads_them() {
    let found_text = |waiting, unknown_groups: &[&str], is_direct| {
        let unknown_groups: Vec<String> = unknown_groups
            .iter()
            .map(|group| (*group).to_owned())
            .collect();
        let found = unread("pay", "w.pay.v1", waiting, &unknown_groups, None, is_direct);
        found.map(|finding| finding.to_string())
    };
    let unread = "no consumer reads w.pay.v1, and";
    assert_eq!(
        found_text(7, &[], false).unwrap(),
        format!(
            "BAD   agents         {unread} requests wait there (7): no process runs the agent pay, or a workflow \
             misspells its name"
        )
    );
    assert_eq!(
        found_text(7, &[], true),
        found_text(7, &[], false),
        "a direct agent's topic has requests without a reader, too"
    );
    assert_eq!(
        found_text(0, &[], false).unwrap(),
        format!(
            "note  agents         {unread} no requests wait there: no process runs the agent pay"
        )
    );
    assert_eq!(
        found_text(0, &[], true),
        None,
        "a direct agent needs no topic"
    );
    for waiting in [0, 7] {
        let unsure = found_text(waiting, &["w-agents"], false).unwrap();
        assert!(unsure.starts_with("note  agents"), "{unsure}");
        assert!(unsure.ends_with(" w-agents"), "{unsure}");
    }
}

#[test]
fn breakers_are_reported_unless_they_are_closed() {
    let metrics = "# TYPE waybill_agent_breaker_state gauge\n\
                   waybill_agent_breaker_state{agent=\"drone\"} 2\n\
                   waybill_agent_breaker_state{agent=\"account\"} 0\n\
                   waybill_agent_breaker_state{agent=\"package\"} 1\n\
                   waybill_agent_calls_total{agent=\"drone\"} 2\n";
    assert_eq!(
        message(&breakers(metrics)),
        [
            "BAD   breakers       the breaker of drone is open: its service fails, and the agent does not call it",
            "note  breakers       the breaker of package is half open: it closes after successful test calls",
        ]
    );
}

#[test]
fn live_operations_that_were_due_long_ago_are_named() {
    let now: jiff::Timestamp = "2030-01-01T10:00:00Z".parse().unwrap();
    let item = |number: u128, due: Option<&str>| ItemView {
        id: uuid::Uuid::from_u128(number),
        next_due: due.map(str::to_owned),
        ..ItemView::default()
    };
    let well = [
        item(1, None),
        item(2, Some("2030-01-01T09:50:00.5Z")),
        item(3, Some("2030-01-01T11:00:00Z")),
    ];
    assert_eq!(overdue(well.iter(), now), None);
    let late = (4..20).map(|number| item(number, Some("2030-01-01T09:44:00Z")));
    let items: Vec<ItemView> = well.into_iter().chain(late).collect();
    let finding = overdue(items.iter(), now).unwrap();
    assert!(finding.is_bad());
    let message = finding.message;
    assert!(
        message.starts_with("16 live operations were due more than 15 minutes ago"),
        "{message}"
    );
    let named = |number: u128| message.contains(&uuid::Uuid::from_u128(number).to_string());
    assert!(named(4) && named(8) && !named(3) && !named(9), "{message}");
}

#[test]
fn a_low_disk_is_bad_and_bounds_beyond_it_are_notes() {
    let metrics = |low, free_mib: u64, size_gib: u64| {
        format!(
            "waybill_disk_free_bytes {}\nwaybill_disk_size_bytes {}\nwaybill_disk_free_min_bytes 536870912\n\
             waybill_disk_low {low}\nwaybill_broker_log_bytes 1073741824\n",
            free_mib << 20,
            size_gib << 30
        )
    };
    let config = Config::default();
    let dir = Some(Path::new("/var/waybill"));
    assert_eq!(
        message(&disk(&metrics(0, 900_000, 1_000), &config, dir)),
        ["ok    disk           900000 of 1024000 MiB are free, and storage.freeMin is 512 MiB"]
    );
    let small = message(&disk(&metrics(1, 100, 10), &config, dir));
    assert_eq!(
        small[0],
        "BAD   disk           100 of 10240 MiB are free, and storage.freeMin is 512 MiB: new requests get \
         503 until space is freed"
    );
    assert!(
        small[1].starts_with("note  disk           the topics of the embedded broker may grow to "),
        "{small:?}"
    );
    assert!(
        small[1]
            .contains("of 10GiB are free, less storage.freeMin of 512MiB; they take 1GiB already"),
        "{small:?}"
    );
    assert!(small[1].contains("/var/waybill"), "{small:?}");
    let unknown = disk(&metrics(1, 100, 10), &config, None);
    assert_eq!(message(&unknown), small[..1]);
    assert_eq!(disk("waybill_build_info 1\n", &config, dir), []);
}

#[test]
fn dead_letters_are_counted_by_topic_and_topics_that_may_not_be_described_are_named() {
    let found_text = |records: &[(&str, u64)], forbidden: &[&str]| {
        let records = records
            .iter()
            .map(|(topic, count)| ((*topic).to_owned(), *count));
        let forbidden: Vec<String> = forbidden.iter().map(|topic| (*topic).to_owned()).collect();
        message(&found(&records.collect(), &forbidden))
    };
    let none = "ok    dead letters   none: no records on 2 dead-letter topics";
    assert_eq!(found_text(&[("a.dlq", 0), ("b.dlq", 0)], &[]), [none]);
    let unknown = "note  dead letters   unknown for topics that this login has no permission to describe: c.dlq, d.dlq";
    assert_eq!(
        found_text(&[("a.dlq", 0), ("b.dlq", 0)], &["c.dlq", "d.dlq"]),
        [none, unknown]
    );
    assert_eq!(found_text(&[], &["c.dlq", "d.dlq"]), [unknown]);
    assert_eq!(
        found_text(&[("a.dlq", 1), ("b.dlq", 0), ("c.dlq", 7)], &[]),
        [
            "note  dead letters   8 records, receipts of replays included, on 2 of 3 dead-letter topics: c.dlq (7), \
             a.dlq (1); `waybill dlq list --open` lists dead letters that were not replayed"
        ]
    );
    let many = ["a", "b", "c", "d", "e", "f", "g"].map(|topic| (topic, 1));
    let found_text = found_text(&many, &[]).concat();
    assert!(found_text.contains("on 7 of 7"), "{found_text}");
    assert!(found_text.contains(" e (1) and 2 more; "), "{found_text}");
}
