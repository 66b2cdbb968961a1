//! Which callers see which parts of the inputs of operations and the outputs of steps.

use serde_json::{Value, json};
use waybill_engine::{OperationId, ProcessState};

use super::super::setup::*;
use super::Guarded;

/// Writes an operation of `acme` with a sensitive input and sensitive outputs.
async fn write(setup: &Setup, name: &str, version: u32) {
    let id = OperationId::of_caller("acme", name);
    let mut row = row(id, "confidential", ProcessState::Processed);
    let mut created = row.created.as_deref().unwrap().clone();
    let input = json!({"card": {"number": "4111", "month": 7}, "amount": 12});
    created.input = input.to_string().into_bytes().into();
    created.tenant = "acme".into();
    created.workflow_version = version;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    created.traceparent = Some(traceparent.into());
    row.created = Some(created.into());
    let outputs = [("token", "t-1"), ("receipt", "r-1")];
    let outputs = outputs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    row.state.steps[0].outputs = outputs.to_vec();
    setup.write(row).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_need_their_scope_and_never_show_sensitive_fields() {
    let guarded = Guarded::start().await;
    write(&guarded.setup, "o-1", 1).await;
    let path = format!("{OPERATIONS}/o-1");
    let (_, shown) = guarded.get("payload", &path).await;
    let masked = json!({"card": {"number": "***", "month": 7}, "amount": 12});
    assert_eq!(shown["input"], masked);
    let step = &shown["steps"][0];
    assert_eq!(step["outputs"], json!({"token": "***", "receipt": "r-1"}));
    assert_eq!(step["agent"], "agent");
    assert_eq!(shown["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(shown["payloadWithheld"], Value::Null);

    let (_, without) = guarded.get("read", &path).await;
    assert_eq!(without["input"], Value::Null);
    assert_eq!(without["steps"][0]["outputs"], Value::Null);
    assert_eq!(
        without["payloadWithheld"],
        "The token lacks the scope payload."
    );
    assert_eq!(without["steps"][0]["agent"], "agent");
    assert_eq!(guarded.get("zeta", &path).await.0, 404);
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_an_unknown_workflow_version_is_withheld() {
    let setup = Setup::start().await;
    write(&setup, "old", 7).await;
    write(&setup, "known", 1).await;
    let (_, old) = setup.get(&format!("{OPERATIONS}/old?tenant=acme")).await;
    assert_eq!(
        (&old["input"], &old["steps"][0]["outputs"]),
        (&Value::Null, &Value::Null)
    );
    let why = old["payloadWithheld"].as_str().unwrap();
    assert!(why.contains("version of the workflow"), "{why}");

    let (_, known) = setup.get(&format!("{OPERATIONS}/known?tenant=acme")).await;
    assert_eq!(known["input"]["amount"], 12, "without authentication");
    assert_eq!(known["input"]["card"]["number"], "***");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_shows_its_request_to_the_scope_payload_only() {
    let guarded = Guarded::start().await;
    let created = guarded.post("acme", DELIVERIES, delivery());
    let path = location(&created.send().await.unwrap());
    let check = async || {
        let (_, with) = guarded.get("payload", &path).await;
        assert_eq!(with["request"]["ownerId"], "myowner", "{with}");
        assert_eq!(with["input"], Value::Null, "not twice");
        let (status, without) = guarded.get("read", &path).await;
        assert_eq!((status, &without["request"]), (200, &Value::Null));
        assert_eq!(
            without["payloadWithheld"],
            "The token lacks the scope payload."
        );
    };
    check().await;
    let record = &guarded.setup.records()[0];
    guarded
        .setup
        .schedule(record, ProcessState::Processed)
        .await;
    check().await;
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_shows_the_input_to_the_scope_payload_only() {
    let guarded = Guarded::start().await;
    let create = async |token: &str| {
        let request = guarded.post(token, OPERATIONS, order("o-1", 1));
        answer(request.send().await.unwrap()).await.1
    };
    create("payload").await;
    let record = &guarded.setup.records()[0];
    guarded
        .setup
        .schedule(record, ProcessState::Processed)
        .await;
    assert_eq!(create("payload").await["input"], json!({"number": 1}));
    let without = create("acme").await;
    assert_eq!(without["input"], Value::Null);
    assert_eq!(
        without["payloadWithheld"],
        "The token lacks the scope payload."
    );
    guarded.setup.ingestion.shutdown().await;
}
