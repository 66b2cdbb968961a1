//! Views and lists of operations that need attention.

use reqwest::StatusCode;
use serde_json::{Value, json};
use waybill_engine::{
    Action, Attempt, HistoryEntry, ProcessState, Stamp, StepProgress, StepState, Timestamp,
    partition_for,
};
use waybill_store::{AttentionEntry, RowWrite, Store as _, WriteBatch};

use super::super::setup::*;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn get_shows_the_history_the_next_action_and_the_possible_verbs() {
    let setup = Setup::start().await;
    let (error, undo, slow) = (id_of("error"), id_of("undo"), id_of("slow"));
    let mut row_of_error = parked(error, Action::Run);
    row_of_error.state.history = vec![HistoryEntry {
        id: uuid::Uuid::nil(),
        at: Timestamp(4_000_000),
        by: "caller".to_owned(),
        verb: "cancel".to_owned(),
        reason: String::new(),
        refused: Some("past-pivot".to_owned()),
    }];
    setup.write(row_of_error).await;
    let mut undoing = parked(undo, Action::Compensate);
    undoing.state.cancelled = true;
    setup.write(undoing).await;
    let mut running = row(slow, "order", ProcessState::Processing);
    running.state.steps[0] = StepProgress {
        state: StepState::Running,
        action: Action::Run,
        attempt: Attempt(2),
        complete_by: Some(Timestamp(9_000_000)),
        failure_count: 1,
        late_success: Some(Attempt(1)),
        changed_at: Timestamp(8_000_000),
        ..StepProgress::default()
    };
    running.state.next_due = Some(Timestamp(9_000_000));
    running.state.handed_off = true;
    setup.write(running).await;

    let (_, shown) = setup.get(&format!("{OPERATIONS}/{error}")).await;
    assert_eq!(shown["error"]["code"], "refused");
    assert_eq!(shown["cause"], Value::Null, "that is its error");
    assert_eq!(shown["cancel"], "refused");
    assert_eq!(
        shown["verbs"],
        json!(["cancel", "resubmit", "compensate", "abandon"])
    );
    assert_eq!(
        shown["whatNext"],
        "Waiting for an operator: resubmit, compensate or abandon."
    );
    assert_eq!(
        shown["history"],
        json!([{"at": "1970-01-01T00:00:04Z", "by": "caller", "verb": "cancel",
                "refused": "past-pivot"}])
    );

    let (_, shown) = setup.get(&format!("{OPERATIONS}/{undo}")).await;
    assert_eq!(
        shown["error"]["code"], "undo-refused",
        "why it is where it is"
    );
    assert_eq!(shown["cause"]["code"], "refused", "and why it was undone");
    assert_eq!(shown["workflowVersion"], 1);
    assert_eq!(shown["workflowUnknown"], Value::Null);
    assert_eq!(shown["cancel"], "requested");
    assert_eq!(
        shown["verbs"],
        json!(["retry-compensation", "undone", "abandon", "resubmit-as-new"])
    );

    let (_, shown) = setup.get(&format!("{OPERATIONS}/{slow}")).await;
    assert_eq!(
        shown["whatNext"],
        "Step one is running, attempt 2, until 1970-01-01T00:00:09Z."
    );
    assert_eq!(shown["nextDue"], "1970-01-01T00:00:09Z");
    assert_eq!(
        (&shown["handedOff"], &shown["epoch"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(
        shown["steps"],
        json!([{"name": "one", "state": "Running", "agent": "agent", "attempt": 2, "action": "Run",
                "failureCount": 1, "completeBy": "1970-01-01T00:00:09Z",
                "changedAt": "1970-01-01T00:00:08Z", "lateSuccess": 1}])
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_changed_workflow_is_shown_with_the_remedy() {
    let setup = Setup::start().await;
    let mut batch = WriteBatch::default();
    let mut stranded = |name: &str, change: fn(&mut waybill_engine::Created)| {
        let mut row = parked(id_of(name), Action::Run);
        change(std::sync::Arc::make_mut(row.created.as_mut().unwrap()));
        let entry = AttentionEntry {
            at: Timestamp(7),
            operation: row.id,
        };
        batch
            .attention
            .push((partition_for(row.id, PARTITIONS), entry));
        batch.rows.push(row);
    };
    stranded("as-it-was", |_| {});
    stranded("gone", |created| created.workflow_version = 9);
    stranded("changed", |created| created.step_names = vec!["two".into()]);
    stranded("never", |created| {
        created.workflow = "nope".into();
        created.workflow_version = 0;
        created.step_names.clear();
    });
    // A row has as many steps as names.
    let never = batch.rows.iter_mut().find(|row| row.id == id_of("never"));
    never.unwrap().state.steps.clear();
    setup.store.write(batch).await.unwrap();

    let put_back = "to let the operation continue, and give changes a new version.";
    for (name, version, sentence) in [
        (
            "gone",
            json!(9),
            format!(
                "Waiting for an operator: abandon. Version 9 of workflow \"order\" is unknown: its file \
                 is missing, or has another version now. Restore the file of that version (steps \
                 one) {put_back}"
            ),
        ),
        (
            "changed",
            json!(1),
            format!(
                "Waiting for an operator: abandon. Version 1 of workflow \"order\" has other steps now than \
                 when the operation started: the file was changed. Restore the file of that version \
                 (steps two) {put_back}"
            ),
        ),
        (
            "never",
            Value::Null,
            "Waiting for an operator: abandon. Workflow \"nope\" did not exist when the request \
             arrived. Add the workflow, abandon the operation, and resubmit it as a new one."
                .to_owned(),
        ),
    ] {
        let path = format!("{OPERATIONS}/{}", id_of(name));
        let (_, shown) = setup.get(&path).await;
        assert_eq!(shown["whatNext"], sentence);
        assert_eq!(shown["workflowVersion"], version);
        assert_eq!(shown["workflowUnknown"], true);
    }
    let (_, page) = setup.get(OPERATIONS).await;
    let items = page["items"].as_array().unwrap().iter();
    let unknown: Vec<_> = items
        .map(|item| {
            (
                item["id"] == json!(id_of("as-it-was")),
                &item["workflowUnknown"],
            )
        })
        .collect();
    assert_eq!(unknown.len(), 4, "{page}");
    for (as_it_was, is_unknown) in unknown {
        let expected = if as_it_was { Value::Null } else { json!(true) };
        assert_eq!(is_unknown, &expected, "{page}");
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_shows_parked_operations_filtered_and_paged() {
    let setup = Setup::start().await;
    let mut batch = WriteBatch::default();
    let mut needs_attention = |row: RowWrite, at: i64| {
        let entry = AttentionEntry {
            at: Timestamp(at),
            operation: row.id,
        };
        batch
            .attention
            .push((partition_for(row.id, PARTITIONS), entry));
        batch.rows.retain(|other: &RowWrite| other.id != row.id);
        batch.rows.push(row);
    };
    for number in 0..5 {
        let row = parked(id_of(&format!("error-{number}")), Action::Run);
        needs_attention(row.clone(), 10 + number);
        needs_attention(row, 100 + number);
    }
    needs_attention(parked(id_of("undo"), Action::Compensate), 50);
    let mut abandoned = parked(id_of("abandoned"), Action::Run);
    abandoned.state.abandoned = true;
    needs_attention(abandoned, 60);
    needs_attention(row(id_of("happy"), "order", ProcessState::Processed), 70);
    setup.store.write(batch).await.unwrap();

    let list = async |query: &str| {
        let (status, page) = setup.get(&format!("{OPERATIONS}?{query}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let ids: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect();
        (ids, page)
    };
    let ids = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| id_of(name).to_string()).collect()
    };
    let errors = ["error-0", "error-1", "error-2", "error-3", "error-4"];
    let (all, page) = list("").await;
    assert_eq!(all, ids(&[&errors[..], &["undo"]].concat()), "each once");
    assert_eq!(page["next"], Value::Null);
    let item = &page["items"][5];
    assert_eq!(item["state"], "CompensationFailed");
    assert_eq!(
        (&item["step"], &item["error"]["code"]),
        (&json!("one"), &json!("undo-refused"))
    );
    assert_eq!(
        (&item["since"], &item["workflow"]),
        (&json!("1970-01-01T00:00:00.00005Z"), &json!("order"))
    );
    assert!(item["ageSeconds"].as_u64().unwrap() > 1_000_000);
    let fingerprint = item["fingerprint"].as_str().unwrap();

    assert_eq!(list("state=CompensationFailed").await.0, ids(&["undo"]));
    assert_eq!(
        list(&format!("error={fingerprint}")).await.0,
        ids(&["undo"])
    );
    assert_eq!(
        list("error=refused&step=one&workflow=order").await.0,
        ids(&errors)
    );
    assert_eq!(list("workflow=other").await.0, ids(&[]));
    assert_eq!(list("tenant=acme").await.0, ids(&[]));
    assert!(
        list("abandoned=true")
            .await
            .0
            .contains(&id_of("abandoned").to_string())
    );
    assert_eq!(list("olderThan=36500d").await.0, ids(&[]));
    assert_eq!(list("order=newest&limit=1").await.0, ids(&["error-4"]));

    let (mut found, mut page) = list("limit=2").await;
    assert_eq!(found, ids(&errors[..2]));
    while let Some(next) = page["next"].as_str() {
        let more;
        (more, page) = list(&format!("limit=2&cursor={next}")).await;
        assert!(more.len() <= 2);
        found.extend(more);
    }
    found.sort();
    found.dedup();
    let mut expected = all;
    expected.sort();
    assert_eq!(found, expected);

    let (status, problem) = setup
        .get(&format!("{OPERATIONS}?state=Broken&cursor=x"))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2);
    // Not every such operation has an entry, so an empty list would be wrong.
    let (status, problem) = setup.get(&format!("{OPERATIONS}?state=Processed")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("must be any of Processing, "),
        "{detail}"
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_row_is_listed() {
    let setup = Setup::start().await;
    let bad = id_of("bad");
    let entry = AttentionEntry {
        at: Timestamp(1),
        operation: bad,
    };
    let batch = WriteBatch {
        attention: vec![(partition_for(bad, PARTITIONS), entry)],
        rows: vec![RowWrite {
            stamp: Stamp(1),
            ..state_only(bad, ProcessState::Error, Timestamp(1))
        }],
        ..WriteBatch::default()
    };
    setup.store.write(batch).await.unwrap();
    for (query, listed) in [("", 1), ("?state=Unreadable", 1), ("?state=Error", 0)] {
        let (_, page) = setup.get(&format!("{OPERATIONS}{query}")).await;
        assert_eq!(page["items"].as_array().unwrap().len(), listed, "{query}");
    }
    setup.ingestion.shutdown().await;
}
