//! Callers' changes: cancel and reschedule.

use std::sync::Arc;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_engine::{
    Amendment, Attempt, Created, OperationId, ProcessState, StepProgress, StepState, Timestamp,
    partition_for,
};
use waybill_store::RowWrite;
use waybill_test_support::rows::{created, untouched};

use super::super::setup::*;
use super::*;

const STATES: [ProcessState; 7] = [
    ProcessState::Processing,
    ProcessState::Processed,
    ProcessState::Error,
    ProcessState::Compensating,
    ProcessState::Compensated,
    ProcessState::Cancelled,
    ProcessState::CompensationFailed,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_follows_its_pending_request_and_a_repeat_has_the_same_id() {
    let setup = Setup::start().await;
    let accepted = setup.request(order("o-1", 1)).await;
    let pending_at = location(&accepted);
    let cancel = |key: &'static str, body: Value| {
        setup
            .post(&format!("{OPERATIONS}/o-1:cancel"), body)
            .header("idempotency-key", key)
    };
    let id = id_of("o-1");
    let mut asked = Vec::new();
    for (key, body) in [
        ("k-1", json!({"reason": "twice", "by": "kim"})),
        ("k-1", json!({"reason": "twice", "by": "kim"})),
        ("k-2", json!({"reason": "again"})),
    ] {
        let response = cancel(key, body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        assert_eq!(location(&response), pending_at);
        let (_, view) = answer(response).await;
        assert_eq!(view["id"], id.to_string());
        assert_eq!(view["verb"], "cancel");
        asked.push(view["requestId"].clone());
    }
    assert_eq!(asked[0], asked[1]);
    assert_ne!(asked[0], asked[2]);

    let created = &setup.records()[0];
    let amendments = setup.amendments();
    assert_eq!(amendments.len(), 3);
    for ((record, amend), asked) in amendments.iter().zip(&asked) {
        assert_eq!(
            (record.partition, &record.key),
            (created.partition, &created.key)
        );
        assert!(record.offset > created.offset);
        assert_eq!(*asked, amend.id.to_string());
        assert_eq!(
            (amend.operation, amend.caller_id.as_deref()),
            (id, Some("o-1"))
        );
    }
    let requester_and_reason =
        |(_, amend): &(Lying, AmendRequest)| (amend.asked_by.clone(), amend.reason.clone());
    assert_eq!(
        requester_and_reason(&amendments[0]),
        ("kim".to_owned(), "twice".to_owned())
    );
    assert_eq!(
        requester_and_reason(&amendments[2]),
        (String::new(), "again".to_owned())
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_refused_only_where_the_operation_was_final_when_read() {
    let setup = Setup::start().await;
    for state in STATES {
        let name = format!("d-{}", state.as_str());
        setup
            .write(row(id_of(&name), "drone-delivery", state))
            .await;
        let path = format!("{DELIVERIES}/{name}?reason=too+late%3F");
        let response = setup.ask(Method::DELETE, &path).send().await.unwrap();
        match state {
            ProcessState::Processed | ProcessState::Compensated => {
                let (status, kind, problem) = problem(response).await;
                assert_eq!(
                    (status, kind.as_str()),
                    (409, "operation-final"),
                    "{state:?}"
                );
                assert_eq!(problem["code"], "final");
                let (id, state) = (id_of(&name), state.as_str());
                assert_eq!(
                    problem["detail"],
                    format!("Cannot cancel {id}: it is already {state}.")
                );
            }
            ProcessState::CompensationFailed => {
                let (status, kind, problem) = problem(response).await;
                assert_eq!((status, kind.as_str()), (409, "verb-refused"));
                assert_eq!(problem["code"], "compensation-failed");
                let id = id_of(&name);
                let expected = format!(
                    "Cannot cancel {id}: it is parked in CompensationFailed. Allowed: abandon, resubmit-as-new."
                );
                assert_eq!(problem["detail"], expected);
            }
            ProcessState::Cancelled => {
                let (status, view) = answer(response).await;
                assert_eq!(status, StatusCode::OK);
                assert_eq!(view["state"], "Cancelled");
                assert_eq!(view["request"]["ownerId"], "myowner");
            }
            _ => {
                assert_eq!(response.status(), StatusCode::ACCEPTED, "{state:?}");
                let expected = format!("{DELIVERIES}/{}", id_of(&name));
                assert_eq!(location(&response), expected);
            }
        }
    }
    let state = ProcessState::CompensationFailed;
    let mut abandoned = row(id_of("left"), "drone-delivery", state);
    abandoned.state.abandoned = true;
    setup.write(abandoned).await;
    let (status, problem) = setup.verb(id_of("left"), "cancel", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("final")));
    let expected = format!(
        "Cannot cancel {}: it was abandoned in CompensationFailed.",
        id_of("left")
    );
    assert_eq!(problem["detail"], expected);
    setup
        .write(row(id_of("always"), "reversible", ProcessState::Processed))
        .await;
    let (status, _) = setup.verb(id_of("always"), "cancel", json!({})).await;
    assert_eq!(status, 202);

    let amendments = setup.amendments();
    assert_eq!(amendments.len(), 4);
    let reasons: Vec<&str> = amendments.iter().map(|(_, a)| a.reason.as_str()).collect();
    assert_eq!(
        reasons
            .iter()
            .filter(|reason| **reason == "too late?")
            .count(),
        3
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_refused_after_an_irreversible_step() {
    let setup = Setup::start().await;
    for (name, pay, expected) in [
        ("before", StepState::Running, 202),
        ("behind", StepState::Completed, 409),
    ] {
        let id = id_of(name);
        let created = Created {
            caller_id: Some(name.to_owned()),
            ..created("one-way", &["pay", "ship"])
        };
        let mut state = untouched(ProcessState::Processing, 2, Timestamp(3));
        state.steps[0].state = pay;
        setup
            .write(RowWrite {
                created: Some(Arc::new(created)),
                state,
                ..state_only(id, ProcessState::Processing, Timestamp(3))
            })
            .await;
        let (status, answer) = setup.verb(id, "cancel", json!({})).await;
        assert_eq!(status, expected, "{name}: {answer}");
        if expected == 409 {
            assert_eq!(answer["code"], "past-pivot");
            assert_eq!(
                answer["detail"],
                format!("Cannot cancel {id}: a completed step cannot be undone.")
            );
        }
    }
    assert_eq!(setup.amendments().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_cancel_requires_a_callers_id() {
    let setup = Setup::start().await;
    let path = format!("{DELIVERIES}/not-yet");
    let response = setup.ask(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let place = location(&response);
    let (status, pending) = setup.get(&place).await;
    assert_eq!(
        (status, &pending["state"]),
        (StatusCode::OK, &json!("Pending"))
    );

    let amendments = setup.amendments();
    let [(record, amend)] = amendments.as_slice() else {
        panic!("one cancel")
    };
    assert_eq!(amend.operation, id_of("not-yet"));
    assert_eq!(record.partition, partition_for(amend.operation, PARTITIONS));
    let workflow = "drone-delivery".to_owned();
    assert_eq!(amend.amendment, Amendment::Cancel { workflow });
    let at = format!("?at={}-{}-00000000", record.partition, record.offset);
    assert_eq!(place, format!("{DELIVERIES}/{}{at}", amend.operation));

    let mut tombstone = row(amend.operation, "drone-delivery", ProcessState::Cancelled);
    tombstone.state.tombstone = true;
    tombstone.state.cancelled = true;
    setup.write(tombstone).await;
    let (_, cancelled) = setup.get(&place).await;
    assert_eq!(cancelled["state"], "Cancelled");
    assert_eq!(cancelled["cancel"], "applied");
    assert_eq!(
        cancelled["request"],
        Value::Null,
        "the request never arrived"
    );
    // A late create is accepted, and the scheduler ends it.
    let mut late = delivery();
    late["deliveryId"] = json!("not-yet");
    let response = setup.post(DELIVERIES, late.clone()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let mut tombstone = row(id_of("nor-this"), "order", ProcessState::Cancelled);
    tombstone.state.tombstone = true;
    setup.write(tombstone).await;
    let batch = setup
        .post(BATCH, order("nor-this", 1))
        .send()
        .await
        .unwrap();
    let line: Value = serde_json::from_str(&batch.text().await.unwrap()).unwrap();
    assert_eq!(line["status"], 202, "{line}");

    let mut of_server = uuid_of_server(&setup).await;
    of_server.replace_range(0..2, "00");
    for unknown in [of_server, id_of("never").to_string()] {
        let path = format!("{DELIVERIES}/{unknown}");
        let response = setup.ask(Method::DELETE, &path).send().await.unwrap();
        let (status, kind, _) = problem(response).await;
        assert_eq!(
            (status, kind.as_str()),
            (404, "unknown-or-expired"),
            "{unknown}"
        );
    }
    assert_eq!(setup.amendments().len(), 1);
    setup.ingestion.shutdown().await;
}

/// An ID that the server created.
async fn uuid_of_server(setup: &Setup) -> String {
    let accepted = setup.post(DELIVERIES, delivery()).send().await.unwrap();
    answer(accepted).await.1["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_cancelled_only_by_its_tenant() {
    let setup = Setup::start().await;
    let body = json!({"workflow": "order", "tenant": "acme", "id": "o-1", "input": {}});
    let accepted = setup.post(OPERATIONS, body).send().await.unwrap();
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    let id = OperationId::of_caller("acme", "o-1");
    for (path, expected) in [
        (format!("{OPERATIONS}/o-1:cancel?tenant=acme"), 202),
        (format!("{OPERATIONS}/{id}:cancel?tenant=acme"), 202),
        (format!("{OPERATIONS}/{id}:cancel?tenant=other"), 404),
        (format!("{OPERATIONS}/{id}:cancel"), 202),
        (format!("{OPERATIONS}/{id}:abandon?tenant=other"), 404),
        (format!("{OPERATIONS}/{id}:abandon"), 409),
    ] {
        let body = match path.contains("abandon") {
            true => json!({"reason": "no"}),
            false => json!({}),
        };
        let response = setup.post(&path, body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{path}");
    }
    for (_, amend) in setup.amendments() {
        assert_eq!((amend.operation, amend.tenant.as_str()), (id, "acme"));
    }

    let records = setup.records();
    setup.schedule(&records[0], ProcessState::Processing).await;
    for (tenant, expected) in [("", 202), ("?tenant=acme", 202), ("?tenant=other", 404)] {
        let path = format!("{OPERATIONS}/{id}:cancel{tenant}");
        let response = setup.post(&path, json!({})).send().await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{path}");
    }
    let amendments = setup.amendments();
    assert_eq!(amendments.len(), 5);
    assert!(amendments.iter().all(|(_, amend)| amend.tenant == "acme"));
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_location_determines_the_tenant_of_a_forgotten_pending_request() {
    let setup = Setup::with(|config| config.recent_accepted_max = 0).await;
    let body = json!({"workflow": "drone-delivery", "tenant": "acme", "input": delivery()});
    let accepted = setup.post(OPERATIONS, body).send().await.unwrap();
    let place = location(&accepted);
    let (address, at) = place.split_once('?').unwrap();
    let id: OperationId = address.rsplit('/').next().unwrap().parse().unwrap();
    let change = json!({"deadline": "2031-05-08T20:00:00Z"});
    for (query, expected) in [
        (format!("?{at}"), 202),
        (format!("?{at}&tenant=acme"), 202),
        (format!("?{at}&tenant=other"), 404),
        // Nothing shows its tenant, or that it exists.
        (String::new(), 404),
        ("?tenant=acme".to_owned(), 404),
    ] {
        let path = format!("{DELIVERIES}/{id}{query}");
        let cancel = setup.ask(Method::DELETE, &path).send().await.unwrap();
        assert_eq!(cancel.status().as_u16(), expected, "{path}");
        let patch = setup.ask(Method::PATCH, &path).json(&change);
        let patched = patch.send().await.unwrap();
        assert_eq!(patched.status().as_u16(), expected, "{path}");
    }
    let asked = setup.amendments();
    let requested = asked
        .iter()
        .map(|(_, amend)| (amend.operation, amend.tenant.as_str()));
    assert_eq!(requested.collect::<Vec<_>>(), [(id, "acme"); 4]);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reschedule_is_checked_against_the_request_and_passed_on() {
    let setup = Setup::start().await;
    setup
        .write(row(id_of("d"), "drone-delivery", ProcessState::Processing))
        .await;
    setup
        .write(row(id_of("o"), "order", ProcessState::Processing))
        .await;
    let patch = |name: &str, change: Value| {
        let request = setup.ask(Method::PATCH, &format!("{DELIVERIES}/{name}"));
        request.json(&change).send()
    };
    let response = patch("d", json!({"pickupTime": "2030-05-08T21:00:00+01:00"}))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(location(&response), format!("{DELIVERIES}/{}", id_of("d")));
    assert_eq!(answer(response).await.1["verb"], "reschedule");
    let deadline = json!({"deadline": "2030-05-09T20:00:00Z"});
    assert_eq!(
        patch("d", deadline).await.unwrap().status(),
        StatusCode::ACCEPTED
    );

    let asked = |fields: &str, deadline: Option<i64>| Amendment::Reschedule {
        fields: fields.as_bytes().to_vec(),
        deadline: deadline.map(|seconds| Timestamp(seconds * 1_000_000)),
    };
    let amendments = setup.amendments();
    assert_eq!(
        [&amendments[0].1.amendment, &amendments[1].1.amendment],
        [
            &asked(r#"{"pickupTime":"2030-05-08T20:00:00Z"}"#, None),
            &asked(
                r#"{"deadline":"2030-05-09T20:00:00Z"}"#,
                Some(1_904_587_200)
            ),
        ]
    );

    for (name, change, status, pointer) in [
        (
            "d",
            json!({"pickupTime": "2030-05-08T22:00:01Z"}),
            422,
            "/pickupTime",
        ),
        (
            "d",
            json!({"deadline": "2030-05-08T19:00:00Z"}),
            422,
            "/deadline",
        ),
        (
            "d",
            json!({"deadline": "2020-05-08T19:00:00Z"}),
            422,
            "/deadline",
        ),
        ("d", json!({"ownerId": "other"}), 422, "/ownerId"),
        ("d", json!({}), 422, ""),
        ("o", json!({"pickupTime": "2030-05-08T21:00:00Z"}), 404, ""),
        (
            "nobody",
            json!({"pickupTime": "2030-05-08T21:00:00Z"}),
            404,
            "",
        ),
    ] {
        let (found, _, problem) = problem(patch(name, change.clone()).await.unwrap()).await;
        assert_eq!(found, status, "{name} {change}");
        if status == 422 {
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{change}");
        }
    }
    assert_eq!(setup.amendments().len(), 2);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reschedule_is_refused_with_the_reason() {
    let setup = Setup::start().await;
    let mut sent = row(id_of("sent"), "drone-delivery", ProcessState::Processing);
    sent.state.steps[0] = StepProgress {
        state: StepState::Running,
        attempt: Attempt(1),
        complete_by: Some(Timestamp(9)),
        ..StepProgress::default()
    };
    setup.write(sent).await;
    setup
        .write(row(
            id_of("final"),
            "drone-delivery",
            ProcessState::Processed,
        ))
        .await;
    setup
        .write(row(
            id_of("undone"),
            "drone-delivery",
            ProcessState::Compensating,
        ))
        .await;
    setup
        .write(row(id_of("parked"), "drone-delivery", ProcessState::Error))
        .await;
    let mut stranded = row(id_of("stranded"), "drone-delivery", ProcessState::Error);
    std::sync::Arc::make_mut(stranded.created.as_mut().unwrap()).workflow_version = 9;
    setup.write(stranded).await;
    let unknown = (409, "verb-refused", "workflow-unknown");
    for (name, change, expected) in [
        ("sent", "pickupTime", (409, "step-sent", "step-sent")),
        ("final", "pickupTime", (409, "operation-final", "final")),
        ("undone", "pickupTime", (409, "verb-refused", "failed")),
        ("parked", "pickupTime", (409, "verb-refused", "failed")),
        ("stranded", "pickupTime", unknown),
    ] {
        let change = json!({change: "2030-05-08T21:00:00Z"});
        let request = setup.ask(Method::PATCH, &format!("{DELIVERIES}/{name}"));
        let (status, kind, problem) = problem(request.json(&change).send().await.unwrap()).await;
        let code = problem["code"].as_str().unwrap();
        assert_eq!((status, kind.as_str(), code), expected, "{name}");
        let detail = problem["detail"].as_str().unwrap();
        let is_parked = ["parked", "stranded"].contains(&name);
        assert_eq!(detail.contains(" Allowed: "), is_parked, "{detail}");
        let has_advice = detail.contains("Restore the file of that version");
        assert_eq!(has_advice, name == "stranded", "{detail}");
    }
    let other_field = json!({"deadline": "2030-05-09T21:00:00Z"});
    let request = setup.ask(Method::PATCH, &format!("{DELIVERIES}/sent"));
    let response = request.json(&other_field).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED, "no step uses it");
    setup.ingestion.shutdown().await;
}
