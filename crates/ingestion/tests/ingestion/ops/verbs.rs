//! Operators' verbs.

use reqwest::StatusCode;
use serde_json::{Value, json};
use waybill_engine::{
    Action, Amended, HistoryEntry, ProcessState, RecoveryVerb, StepState, Timestamp, partition_for,
};

use super::super::setup::*;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn verbs_become_recoveries_with_requester_and_reason() {
    let setup = Setup::start().await;
    let (error, undo) = (id_of("error"), id_of("undo"));
    setup.write(parked(error, Action::Run)).await;
    setup.write(parked(undo, Action::Compensate)).await;
    let body = json!({"reason": "repaired", "by": "kim"});
    let undone = json!({"reason": "by hand", "by": "kim", "step": "one"});
    let asked = [
        (error, "resubmit", &body, RecoveryVerb::Resubmit),
        (
            error,
            "compensate",
            &body,
            RecoveryVerb::Compensate { seen: None },
        ),
        (error, "abandon", &body, RecoveryVerb::Abandon),
        (
            undo,
            "retry-compensation",
            &body,
            RecoveryVerb::RetryCompensation,
        ),
        (
            undo,
            "undone",
            &undone,
            RecoveryVerb::Undone { step: "one".into() },
        ),
    ];
    let mut ids = Vec::new();
    for (id, verb, body, _) in &asked {
        let path = format!("{OPERATIONS}/{id}:{verb}");
        let response = setup.post(&path, body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED, "{verb}");
        assert_eq!(location(&response), format!("{OPERATIONS}/{id}"));
        let (_, view) = answer(response).await;
        assert_eq!(view["verb"], *verb);
        ids.push(view["requestId"].clone());
    }
    let mut recoveries = setup.recoveries();
    assert_eq!(recoveries.len(), asked.len());
    recoveries.sort_by_key(|(_, found)| asked.iter().position(|(.., verb)| *verb == found.verb));
    for ((record, found), ((id, .., verb), asked)) in recoveries.iter().zip(asked.iter().zip(&ids))
    {
        assert_eq!((found.operation, &found.verb), (*id, verb));
        assert_eq!(record.key, id.to_string());
        assert_eq!(record.partition, partition_for(*id, PARTITIONS));
        assert_eq!(found.asked_by, "kim");
        assert_eq!(*asked, found.id.to_string());
    }
    assert_eq!(recoveries[4].1.reason, "by hand");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_verb_with_a_key_is_one_recovery() {
    let setup = Setup::start().await;
    let id = id_of("error");
    setup.write(parked(id, Action::Run)).await;
    for key in ["a", "a", "b"] {
        let asked = setup
            .post(&format!("{OPERATIONS}/{id}:resubmit"), "")
            .header("idempotency-key", key)
            .header("waybill-operator", "kim")
            .send()
            .await
            .unwrap();
        assert_eq!(asked.status(), StatusCode::ACCEPTED);
    }
    let (_, _) = setup.verb(id, "compensate", json!({})).await;
    let recoveries = setup.recoveries();
    let ids: Vec<_> = recoveries.iter().map(|(_, found)| found.id).collect();
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
    let by: Vec<_> = recoveries
        .iter()
        .map(|(_, found)| found.asked_by.as_str())
        .collect();
    assert_eq!(by, ["kim", "kim", "kim", "operator"]);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_that_the_row_forbids_is_refused_with_the_engines_code() {
    let setup = Setup::start().await;
    let (error, undo, done) = (id_of("error"), id_of("undo"), id_of("done"));
    setup.write(parked(error, Action::Run)).await;
    setup.write(parked(undo, Action::Compensate)).await;
    setup
        .write(row(done, "order", ProcessState::Processed))
        .await;
    let mut unknown = row(id_of("odd"), "order", ProcessState::Error);
    let created = unknown.created.as_mut().map(std::sync::Arc::make_mut);
    created.unwrap().workflow = "gone".into();
    setup.write(unknown).await;
    let why = json!({"reason": "why", "step": "one"});
    for (id, verb, fields, code) in [
        (undo, "resubmit", vec!["reason"], "not-parked-in-error"),
        (undo, "compensate", vec!["reason"], "compensation-failed"),
        (done, "compensate", vec!["reason"], "final"),
        (done, "abandon", vec!["reason"], "not-parked"),
        (
            error,
            "retry-compensation",
            vec!["reason"],
            "not-compensation-failed",
        ),
        (error, "undone", vec!["reason", "step"], "not-to-be-undone"),
        (id_of("odd"), "resubmit", vec!["reason"], "workflow-unknown"),
    ] {
        let body = fields
            .into_iter()
            .map(|field| (field.to_owned(), why[field].clone()));
        let (status, problem) = setup.verb(id, verb, Value::Object(body.collect())).await;
        assert_eq!((status, &problem["code"]), (409, &json!(code)), "{verb}");
        assert_eq!(problem["type"], "/problems/verb-refused");
    }
    let (_, problem) = setup
        .verb(id_of("odd"), "resubmit", json!({"reason": "why"}))
        .await;
    assert_eq!(
        problem["detail"],
        "Version 1 of workflow \"gone\" is unknown: its file is missing, or has another version now. \
         Restore the file of that version (steps one) to let the operation continue, and give \
         changes a new version."
    );
    let (status, _) = setup
        .verb(id_of("odd"), "abandon", json!({"reason": "why"}))
        .await;
    assert_eq!(status, 202);
    let (_, problem) = setup
        .verb(undo, "undone", json!({"reason": "x", "step": "two"}))
        .await;
    assert_eq!(problem["code"], "unknown-step");

    for (verb, body, status, kind) in [
        ("abandon", json!({}), 422, "invalid-values"),
        ("undone", json!({"reason": "x"}), 422, "invalid-values"),
        ("explode", json!({}), 404, "not-found"),
    ] {
        let (found, problem) = setup.verb(error, verb, body).await;
        assert_eq!(
            (found, &problem["type"]),
            (status, &json!(format!("/problems/{kind}")))
        );
    }
    let (status, _) = setup.verb(id_of("nobody"), "resubmit", json!({})).await;
    assert_eq!(status, 404);
    setup.request(order("pending", 1)).await;
    let (status, problem) = setup.verb(id_of("pending"), "compensate", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("pending")));
    let long = json!({"reason": "x".repeat(5_000)});
    assert_eq!(setup.verb(error, "abandon", long).await.0, 413);
    assert_eq!(setup.recoveries().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_cancelled_before_its_request_is_shown_to_need_no_action() {
    let setup = Setup::start().await;
    for (name, workflow) in [("ghost", ""), ("delivery", "drone-delivery")] {
        let mut tombstone = row(id_of(name), workflow, ProcessState::Cancelled);
        let created = tombstone.created.as_mut().map(std::sync::Arc::make_mut);
        let created = created.unwrap();
        (created.workflow_version, created.step_names) = (0, Vec::new());
        tombstone.state.steps.clear();
        (tombstone.state.tombstone, tombstone.state.cancelled) = (true, true);
        setup.write(tombstone).await;
        for (verb, body) in [
            ("resubmit", json!({})),
            ("resubmit", json!({"asNew": true})),
            ("compensate", json!({})),
            ("abandon", json!({"reason": "x"})),
            ("retry-compensation", json!({})),
            ("undone", json!({"reason": "x", "step": "one"})),
        ] {
            let (status, problem) = setup.verb(id_of(name), verb, body).await;
            assert_eq!((status, &problem["code"]), (409, &json!("never-created")));
            assert_eq!(
                problem["detail"],
                "The operation was cancelled before its request arrived. No step was started, so \
                 there is nothing to do."
            );
        }
        let (status, shown) = setup.verb(id_of(name), "cancel", json!({})).await;
        assert_eq!((status, &shown["state"]), (200, &json!("Cancelled")));
        assert_eq!(
            shown["whatNext"],
            "Nothing: it was cancelled before its request arrived. A request with this id will end \
             Cancelled."
        );
    }
    let path = format!("{DELIVERIES}/{}", id_of("delivery"));
    let change = json!({"deadline": "2099-01-01T00:00:00Z"});
    let asked = setup.ask(Method::PATCH, &path).json(&change).send().await;
    let (status, kind, _) = problem(asked.unwrap()).await;
    assert_eq!((status, kind.as_str()), (409, "operation-final"));
    assert!(setup.recoveries().is_empty() && setup.amendments().is_empty());
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undone_operation_runs_again_as_a_linked_new_one() {
    let setup = Setup::start().await;
    let old = id_of("old");
    let mut undone = row(old, "drone-delivery", ProcessState::Compensated);
    undone.state.error = failed("refused");
    setup.write(undone).await;
    let mut locations = Vec::new();
    for key in ["k", "k", "other"] {
        let asked = setup
            .post(
                &format!("{OPERATIONS}/{old}:resubmit"),
                json!({"asNew": true}),
            )
            .header("idempotency-key", key);
        let response = asked.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        locations.push(location(&response));
        let new = answer(response).await.1["resubmittedAs"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(locations.last(), Some(&format!("{OPERATIONS}/{new}")));
    }
    assert!(locations.iter().all(|location| *location == locations[0]));

    let created = setup.records();
    assert_eq!(created.len(), 3, "the scheduler takes them for one");
    let again = &created[0].request;
    assert_eq!(again.request_hash, created[1].request.request_hash);
    assert_eq!(again.resubmission_of, Some(old));
    assert_eq!((again.caller_id.as_deref(), again.deadline), (None, None));
    let mut input: Value = serde_json::from_slice(&again.input).unwrap();
    assert_eq!(input["deliveryId"], again.operation.to_string());
    input["deliveryId"] = Value::Null;
    let original: Value = serde_json::from_slice(&delivery_input()).unwrap();
    assert_eq!(input, original);
    let recoveries = setup.recoveries();
    assert_eq!(recoveries.len(), 3);
    let as_operation = again.operation;
    let noted = RecoveryVerb::Resubmitted { as_operation };
    assert_eq!(
        recoveries
            .iter()
            .filter(|(_, found)| found.verb == noted)
            .count(),
        3
    );

    for (name, state, code) in [
        ("standing", ProcessState::Error, "nothing-undone"),
        ("happy", ProcessState::Processed, "not-failed"),
        ("live", ProcessState::Processing, "not-final"),
    ] {
        setup.write(row(id_of(name), "order", state)).await;
        let (status, problem) = setup
            .verb(id_of(name), "resubmit", json!({"asNew": true}))
            .await;
        assert_eq!((status, &problem["code"]), (409, &json!(code)), "{name}");
    }
    // Two concurrent reschedules left it with a deadline before its pickup.
    let mut crossed = row(
        id_of("crossed"),
        "drone-delivery",
        ProcessState::Compensated,
    );
    let mut input: Value = serde_json::from_slice(&delivery_input()).unwrap();
    input["deadline"] = json!("2030-05-08T19:00:00Z");
    crossed.state.amended = Some(Box::new(Amended {
        input: Some(serde_json::to_vec(&input).unwrap().into()),
        ..Amended::default()
    }));
    setup.write(crossed).await;
    let sent = setup.records().len();
    let (status, problem) = setup
        .verb(id_of("crossed"), "resubmit", json!({"asNew": true}))
        .await;
    assert_eq!((status, &problem["code"]), (409, &json!("input-invalid")));
    assert_eq!(setup.records().len(), sent);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resubmitted_operation_is_not_resubmitted_again() {
    let setup = Setup::start().await;
    let (old, first, new) = (id_of("old"), id_of("first"), id_of("new"));
    let mut undone = row(old, "order", ProcessState::Compensated);
    for (key, second, made) in [("first", 4, first), ("other", 5, new)] {
        undone.state.history.push(HistoryEntry {
            id: old.event_id(&format!("resubmitted/{key}")),
            at: Timestamp(second * 1_000_000),
            by: "kim".to_owned(),
            verb: format!("resubmitted {made}"),
            reason: String::new(),
            refused: None,
        });
    }
    setup.write(undone).await;
    let resubmit = |key: &'static str| {
        let path = format!("{OPERATIONS}/{old}:resubmit");
        let asked = setup.post(&path, json!({"asNew": true}));
        asked.header("idempotency-key", key).send()
    };
    let (status, kind, problem) = problem(resubmit("second").await.unwrap()).await;
    assert_eq!((status, kind.as_str()), (409, "verb-refused"));
    assert_eq!(problem["code"], "resubmitted-before");
    assert_eq!(problem["id"], new.to_string());
    let expected = format!(
        "Cannot resubmit {old}: kim already resubmitted it as {new} at 1970-01-01T00:00:05Z. To run it once more, resubmit \
         {new}."
    );
    assert_eq!(problem["detail"], expected);
    // A repeat of the first request gets the first answer.
    let (status, asked) = answer(resubmit("first").await.unwrap()).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(asked["resubmittedAs"], first.to_string());
    assert!(setup.records().is_empty() && setup.recoveries().is_empty());
    let (_, shown) = setup.get(&format!("{OPERATIONS}/{old}")).await;
    assert!(shown.get("verbs").is_none(), "{shown}");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undone_for_an_undone_step_returns_the_operation_and_sends_nothing() {
    let setup = Setup::start().await;
    let id = id_of("undone");
    let mut row = parked(id, Action::Compensate);
    row.state.steps[0].state = StepState::Compensated;
    setup.write(row).await;
    let body = json!({"reason": "by hand", "step": "one"});
    let response = setup.post(&format!("{OPERATIONS}/{id}:undone"), &body);
    let response = response.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let (_, view) = answer(response).await;
    assert_eq!(view["steps"][0]["state"], "Compensated", "{view}");
    assert!(setup.recoveries().is_empty());
    setup.ingestion.shutdown().await;
}
