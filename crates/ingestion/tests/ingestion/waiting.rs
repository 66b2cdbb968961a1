//! Requests that wait for the result of an operation, and clients that already have its state.

use std::time::Duration;

use reqwest::header::{CONTENT_LENGTH, ETAG, IF_NONE_MATCH};
use reqwest::{Method, StatusCode};
use serde_json::json;
use waybill_engine::{OperationId, ProcessState, RequestHash, Stamp};
use waybill_store::RowWrite;

use super::access::Guarded;
use super::setup::*;

/// Longer than a test takes.
const LONG: &str = "wait=60s";
/// Short enough to expire in a test.
const SHORT: &str = "wait=200ms";

fn at(id: OperationId, stamp: i64, state: ProcessState) -> RowWrite {
    RowWrite {
        stamp: Stamp(stamp),
        ..row(id, "order", state)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_waits_until_the_operation_has_ended_or_is_parked() {
    let setup = Setup::start().await;
    for (name, end) in [
        ("o-1", ProcessState::Processed),
        ("o-2", ProcessState::Error),
    ] {
        setup.request(order(name, 1)).await;
        let id = OperationId::of_caller("", name);
        let waiting = setup
            .http
            .get(setup.url(&format!("{OPERATIONS}/{name}?{LONG}")));
        let waiting = tokio::spawn(waiting.send());
        setup.write(at(id, 1, ProcessState::Processing)).await;
        // The waiting request also sees this state, or begins with it.
        let path = format!("{OPERATIONS}/{name}?{SHORT}");
        assert_eq!(setup.get(&path).await.1["state"], "Processing");
        assert!(!waiting.is_finished());
        setup.write(at(id, 2, end)).await;
        let response = within(waiting).await.unwrap().unwrap();
        let (status, view) = answer(response).await;
        assert_eq!(
            (status, &view["state"]),
            (StatusCode::OK, &json!(end.as_str()))
        );
        let ended = format!("{OPERATIONS}/{name}?{LONG}");
        assert_eq!(within(setup.get(&ended)).await.0, StatusCode::OK, "at once");
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_request_waits_for_its_result() {
    let setup = Setup::start().await;
    for (path, workflow, body) in [
        (OPERATIONS, "order", order("o-1", 1)),
        (DELIVERIES, "drone-delivery", delivery()),
    ] {
        let waiting = tokio::spawn(setup.post(&format!("{path}?{LONG}"), body).send());
        let record = within(async {
            loop {
                let mut records = setup.records().into_iter();
                match records.find(|record| record.request.workflow == workflow) {
                    Some(record) => return record,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        setup.schedule(&record.await, ProcessState::Processed).await;
        let response = within(waiting).await.unwrap().unwrap();
        let address = location(&response);
        let (status, view) = answer(response).await;
        assert_eq!(
            (status, &view["state"]),
            (StatusCode::OK, &json!("Processed")),
            "{path}"
        );
        assert!(address.contains("?at="), "{address}");
        assert_eq!(setup.get(&address).await.1, view);
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_without_a_result_is_202() {
    let setup = Setup::start().await;
    let path = format!("{OPERATIONS}?{SHORT}");
    let create = || setup.post(&path, order("o-1", 1)).send();
    let response = create().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert!(location(&response).starts_with(OPERATIONS));
    assert_eq!(answer(response).await.1["state"], "Pending");

    let record = &setup.records()[0];
    setup.schedule(record, ProcessState::Processing).await;
    let repeat = create().await.unwrap();
    assert_eq!(repeat.status(), StatusCode::ACCEPTED);
    assert!(location(&repeat).starts_with(OPERATIONS));
    assert_eq!(answer(repeat).await.1["state"], "Processing");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_lost_its_id_to_another_one_is_a_conflict() {
    let setup = Setup::start().await;
    let path = format!("{OPERATIONS}?{LONG}");
    let waiting = tokio::spawn(setup.post(&path, order("o-1", 1)).send());
    let id = OperationId::of_caller("", "o-1");
    let mut other = at(id, 1, ProcessState::Processed);
    let mut created = other.created.as_deref().unwrap().clone();
    created.request_hash = RequestHash([7; 16]);
    other.created = Some(created.into());
    within(async {
        while setup.records().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    setup.write(other).await;
    let (status, kind, _) = problem(within(waiting).await.unwrap().unwrap()).await;
    assert_eq!((status, &*kind), (409, "id-conflict"));
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_event_streams_share_a_limit_and_an_accepted_request_is_never_refused() {
    let setup = Setup::with(|config| config.event_streams_max = 1).await;
    setup.request(order("o-1", 1)).await;
    let events = setup
        .http
        .get(setup.url(&format!("{OPERATIONS}/o-1/events")));
    let stream = events.send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let wait = setup
        .http
        .get(setup.url(&format!("{OPERATIONS}/o-1?{LONG}")));
    let (status, kind, _) = problem(within(wait.send()).await.unwrap()).await;
    assert_eq!((status, &*kind), (503, "overloaded"));
    let create = setup.post(&format!("{OPERATIONS}?{LONG}"), order("o-2", 1));
    let created = within(create.send()).await.unwrap();
    assert_eq!(created.status(), StatusCode::ACCEPTED);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_at_the_limit_and_at_shutdown() {
    let limit = Duration::from_millis(300);
    let setup = Setup::with(|config| config.wait_max = limit).await;
    setup.request(order("o-1", 1)).await;
    let path = format!("{OPERATIONS}/o-1?{LONG}");
    assert_eq!(within(setup.get(&path)).await.1["state"], "Pending");
    setup.ingestion.shutdown().await;

    let setup = Setup::start().await;
    setup.request(order("o-1", 1)).await;
    let waiting = tokio::spawn(setup.http.get(setup.url(&path)).send());
    let short = format!("{OPERATIONS}/o-1?{SHORT}");
    assert_eq!(setup.get(&short).await.0, StatusCode::OK);
    within(setup.ingestion.shutdown()).await;
    let response = within(waiting).await.unwrap().unwrap();
    assert_eq!(answer(response).await.1["state"], "Pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_needs_the_scope_read_and_finds_only_operations_of_its_tenant() {
    let guarded = Guarded::start().await;
    let create = format!("{OPERATIONS}?{LONG}");
    let refused = guarded.post("submit", &create, order("o-1", 1));
    let (status, kind, _) = problem(refused.send().await.unwrap()).await;
    assert_eq!((status, &*kind), (403, "insufficient-scope"));
    assert_eq!(guarded.setup.records().len(), 0, "nothing was accepted");

    let accepted = guarded.post("acme", OPERATIONS, order("o-1", 1));
    let accepted = accepted.send().await.unwrap();
    let path = location(&accepted);
    let (status, _) = within(guarded.get("acme", &path)).await;
    assert_eq!(status, 200);
    let (status, _) = within(guarded.get("zeta", &format!("{path}&{LONG}"))).await;
    assert_eq!(status, 404);
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_wait_is_refused() {
    let setup = Setup::start().await;
    for wait in ["wait=", "wait=30", "wait=-1s", "wait=soon"] {
        let path = format!("{OPERATIONS}/none?{wait}");
        let get = setup.http.get(setup.url(&path)).send().await.unwrap();
        let post = setup.post(&format!("{OPERATIONS}?{wait}"), order("o-1", 1));
        for response in [get, post.send().await.unwrap()] {
            let (status, _, problem) = problem(response).await;
            assert_eq!(status, 422);
            assert_eq!(problem["errors"][0]["parameter"], "wait");
        }
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_the_state_gets_304() {
    let setup = Setup::start().await;
    let id = OperationId::of_caller("", "o-1");
    setup.write(at(id, 1, ProcessState::Processing)).await;
    let get = async |method: Method, query: &str, tag: Option<&str>| {
        let path = format!("{OPERATIONS}/o-1{query}");
        let mut request = setup.http.request(method, setup.url(&path));
        if let Some(tag) = tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        within(request.send()).await.unwrap()
    };
    let first = get(Method::GET, "", None).await;
    assert_eq!(first.status(), StatusCode::OK);
    let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
    for method in [Method::GET, Method::HEAD] {
        let same = get(method, "", Some(&tag)).await;
        assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(same.headers()[ETAG], *tag);
        assert!(!same.headers().contains_key(CONTENT_LENGTH));
        assert_eq!(same.text().await.unwrap(), "");
    }
    let waited = get(Method::GET, &format!("?{SHORT}"), Some(&tag)).await;
    assert_eq!(waited.status(), StatusCode::NOT_MODIFIED);

    setup.write(at(id, 2, ProcessState::Processed)).await;
    let changed = get(Method::GET, "", Some(&tag)).await;
    assert_eq!(changed.status(), StatusCode::OK);
    assert_ne!(changed.headers()[ETAG], *tag);
    setup.ingestion.shutdown().await;
}
