//! Two tenants, and every way in which one could reach the other's operations.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_engine::{Action, OperationId, ProcessState, StepProgress, StepState, partition_for};

use super::super::setup::*;
use super::Guarded;

/// Every request about one operation: method, path, body.
fn askings(id: &str, query: &str) -> Vec<(Method, String, Option<Value>)> {
    let operation = format!("{OPERATIONS}/{id}");
    let delivery = format!("{DELIVERIES}/{id}{query}");
    let verb = |verb: &str, body: Value| {
        (
            Method::POST,
            format!("{operation}:{verb}{query}"),
            Some(body),
        )
    };
    vec![
        (Method::GET, format!("{operation}{query}"), None),
        (Method::GET, delivery.clone(), None),
        (Method::DELETE, delivery.clone(), None),
        (
            Method::PATCH,
            delivery,
            Some(json!({"deadline": "2031-05-08T20:00:00Z"})),
        ),
        verb("cancel", json!({})),
        verb("resubmit", json!({})),
        verb("resubmit", json!({"asNew": true})),
        verb("compensate", json!({})),
        verb("abandon", json!({"reason": "no"})),
        verb("retry-compensation", json!({})),
        verb("undone", json!({"reason": "no", "step": "one"})),
    ]
}

/// The answer, without any trace of the ID itself.
async fn answered(
    guarded: &Guarded,
    who: &str,
    id: &str,
    query: &str,
) -> Vec<(String, u16, String)> {
    let mut answers = Vec::new();
    for (method, path, body) in askings(id, query) {
        let mut request = guarded.ask(who, method.clone(), &path);
        if let Some(body) = body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }
        // Otherwise each answer would have an id of its own.
        request = request.header("x-request-id", "same");
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap().replace(id, "ID");
        answers.push((format!("{method} {}", path.replace(id, "ID")), status, text));
    }
    answers
}

/// Makes a request of `acme`. Returns its ID and the query of its `Location`.
async fn made_for_acme(guarded: &Guarded, path: &str, body: Value) -> (String, String) {
    let response = guarded.post("acme", path, body).send().await.unwrap();
    assert_eq!(response.status(), 202);
    let location = location(&response);
    let (address, at) = location.split_once('?').unwrap();
    let id = address.rsplit('/').next().unwrap();
    (id.to_owned(), format!("?{at}"))
}

async fn answers_as_for_an_unknown_id(guarded: &Guarded, id: &str, at: &str) {
    // The partition is no secret: it follows from the ID.
    let partition = partition_for(id.parse().unwrap(), PARTITIONS);
    let nobody = std::iter::repeat_with(|| OperationId(Uuid::now_v7()))
        .find(|id| partition_for(*id, PARTITIONS) == partition);
    let nobody = nobody.unwrap().to_string();
    let before = guarded.setup.requests().len();
    for query in ["", at, "?tenant=zeta"] {
        let anothers = answered(guarded, "zeta", id, query).await;
        let none = answered(guarded, "zeta", &nobody, query).await;
        assert_eq!(anothers, none, "with {query:?}");
        let is_unknown = anothers.iter().all(|(_, status, _)| *status == 404);
        assert!(is_unknown, "{anothers:?}");
    }
    assert_eq!(
        guarded.setup.requests().len(),
        before,
        "no verb was recorded"
    );
    assert_eq!(guarded.setup.recoveries().len(), 0, "no verb was recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn remembered_operations_of_another_tenant_are_not_found() {
    let guarded = Guarded::start().await;
    let without_id = json!({"workflow": "order", "input": {}});
    for (path, body) in [(OPERATIONS, without_id), (DELIVERIES, delivery())] {
        let (id, at) = made_for_acme(&guarded, path, body).await;
        let (status, view) = guarded.get("acme", &format!("{OPERATIONS}/{id}")).await;
        assert_eq!((status, &view["state"]), (200, &json!("Pending")));
        answers_as_for_an_unknown_id(&guarded, &id, &at).await;
    }
    let tenants: Vec<_> = guarded
        .setup
        .records()
        .into_iter()
        .map(|taken| taken.request.tenant)
        .collect();
    assert_eq!(tenants, ["acme", "acme"], "in which tenant they were made");
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_requests_of_another_tenant_are_not_found() {
    let guarded = Guarded::with(|config| config.recent_accepted_max = 0).await;
    let (id, at) = made_for_acme(&guarded, DELIVERIES, delivery()).await;
    let path = format!("{DELIVERIES}/{id}{at}");
    let (_, own) = guarded.get("payload", &path).await;
    assert_eq!(own["request"]["ownerId"], "myowner", "{own}");
    answers_as_for_an_unknown_id(&guarded, &id, &at).await;

    let cancelled = guarded
        .ask("acme", Method::DELETE, &path)
        .send()
        .await
        .unwrap();
    assert_eq!(cancelled.status(), 202, "its own tenant decides");
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_another_tenant_are_not_found() {
    let guarded = Guarded::start().await;
    let (id, at) = made_for_acme(&guarded, DELIVERIES, delivery()).await;
    let taken = guarded.setup.records().pop().unwrap();
    for state in [
        ProcessState::Processing,
        ProcessState::Error,
        ProcessState::CompensationFailed,
        ProcessState::Cancelled,
    ] {
        guarded.setup.schedule(&taken, state).await;
        answers_as_for_an_unknown_id(&guarded, &id, &at).await;
    }
    guarded
        .setup
        .consumed(taken.partition, waybill_engine::Offset(taken.offset.0 + 1))
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let gone = answered(&guarded, "zeta", &id, &at).await;
    assert!(gone.iter().all(|(_, status, _)| *status == 404), "{gone:?}");
    for who in ["acme", "all"] {
        let (status, view) = guarded.get(who, &format!("{OPERATIONS}/{id}")).await;
        assert_eq!((status, &view["tenant"]), (200, &json!("acme")), "{who}");
    }
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_another_tenant_are_not_sent_even_to_an_earlier_follower() {
    // While the topic cannot be read, the owner of the request is unknown.
    let guarded = Guarded::with(|config| config.pending_reads_max = 0).await;
    let (id, at) = made_for_acme(&guarded, OPERATIONS, order("order-1", 1)).await;
    let events = format!("{OPERATIONS}/{id}/events");
    let refused = guarded
        .ask("zeta", Method::GET, &events)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 404);
    let open = async |who: &str| {
        let path = format!("{events}{at}");
        let response = guarded.ask(who, Method::GET, &path).send().await.unwrap();
        assert_eq!(response.status(), 200, "{who}");
        response
    };
    let (mut own, mut anothers) = (open("acme").await, open("zeta").await);
    let taken = guarded.setup.records().pop().unwrap();
    guarded
        .setup
        .schedule(&taken, ProcessState::Processing)
        .await;
    let mut end = state_only(
        taken.request.operation,
        ProcessState::Processed,
        waybill_engine::Timestamp(9),
    );
    end.state.steps = vec![StepProgress {
        state: StepState::Completed,
        action: Action::Run,
        ..StepProgress::default()
    }];
    end.stamp = waybill_engine::Stamp(2);
    guarded.setup.write(end).await;

    let mut received_text = String::new();
    while let Some(chunk) = within(own.chunk()).await.unwrap() {
        received_text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(received_text.contains("event: final"), "{received_text}");
    // By now the row was read for both.
    let first = within(anothers.chunk()).await.unwrap().unwrap();
    assert_eq!(&first[..], b"retry: 1000\n\n");
    let more = tokio::time::timeout(Duration::from_secs(1), anothers.chunk()).await;
    assert!(more.is_err(), "{more:?}");
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_of_two_callers_is_two_operations() {
    let guarded = Guarded::start().await;
    for (who, number) in [("acme", 1), ("zeta", 2)] {
        let made = guarded.post(who, OPERATIONS, order("order-1", number));
        assert_eq!(made.send().await.unwrap().status(), 202, "{who}");
        let again = guarded.post(who, OPERATIONS, order("order-1", number));
        assert!(again.send().await.unwrap().status().is_success(), "{who}");
    }
    let ids: Vec<OperationId> = ["acme", "zeta"]
        .map(|tenant| OperationId::of_caller(tenant, "order-1"))
        .into();
    for (who, id) in [("acme", ids[0]), ("zeta", ids[1])] {
        let (status, view) = guarded.get(who, &format!("{OPERATIONS}/order-1")).await;
        assert_eq!((status, &view["id"]), (200, &json!(id)), "{who}");
    }
    let (status, _) = guarded.get("all", &format!("{OPERATIONS}/order-1")).await;
    assert_eq!(status, 404, "a caller for all tenants must name the tenant");
    let (_, view) = guarded
        .get("all", &format!("{OPERATIONS}/order-1?tenant=zeta"))
        .await;
    assert_eq!(view["id"], json!(ids[1]));
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_is_refused_in_every_field() {
    let guarded = Guarded::start().await;
    let (id, _) = made_for_acme(&guarded, OPERATIONS, order("order-1", 1)).await;
    for (method, path, body) in askings(&id, "?tenant=acme") {
        let mut request = guarded.ask("zeta", method.clone(), &path);
        if let Some(body) = body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }
        let (status, kind, _) = problem(request.send().await.unwrap()).await;
        assert_eq!((status, &*kind), (403, "another-tenant"), "{method} {path}");
    }
    for path in [DELIVERIES, OPERATIONS, BATCH] {
        let path = format!("{path}?tenant=acme");
        let asked = guarded.ask("zeta", Method::POST, &path).body("{}");
        let (status, kind, _) = problem(asked.send().await.unwrap()).await;
        assert_eq!((status, &*kind), (403, "another-tenant"), "{path}");
    }
    for path in [
        format!("{OPERATIONS}?tenant=acme"),
        format!("{OPERATIONS}/{id}/events?tenant=acme"),
    ] {
        let response = guarded
            .ask("zeta", Method::GET, &path)
            .send()
            .await
            .unwrap();
        let (status, kind, _) = problem(response).await;
        assert_eq!((status, &*kind), (403, "another-tenant"), "{path}");
    }
    let mut named = order("order-2", 1);
    named["tenant"] = json!("acme");
    let response = guarded
        .post("zeta", OPERATIONS, &named)
        .send()
        .await
        .unwrap();
    assert_eq!(problem(response).await.1, "another-tenant");
    let response = guarded
        .post("all", OPERATIONS, &named)
        .send()
        .await
        .unwrap();
    assert_eq!(
        response.status(),
        202,
        "a caller for all tenants may name any"
    );

    // Each line of a batch is authorized separately.
    let own = json!({"workflow": "order", "id": "order-3", "tenant": "zeta", "input": {}});
    let lines = format!("{}\n{named}\n{own}\n", order("order-4", 4));
    let response = guarded.post("zeta", BATCH, lines).send().await.unwrap();
    let text = response.text().await.unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].clone()).collect();
    assert_eq!(statuses, [202, 403, 202]);
    assert_eq!(lines[1]["problem"]["type"], "/problems/another-tenant");
    let mut tenants: Vec<_> = guarded
        .setup
        .records()
        .into_iter()
        .map(|taken| (taken.request.caller_id.unwrap(), taken.request.tenant))
        .collect();
    tenants.sort();
    let expected = [
        ("order-1", "acme"),
        ("order-2", "acme"),
        ("order-3", "zeta"),
        ("order-4", "zeta"),
    ];
    assert_eq!(
        tenants,
        expected.map(|(id, tenant)| (id.to_owned(), tenant.to_owned()))
    );
    guarded.setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_cancel_applies_to_its_own_tenant_only() {
    let guarded = Guarded::start().await;
    let cancelled = guarded
        .ask("zeta", Method::DELETE, &format!("{DELIVERIES}/order-1"))
        .send()
        .await
        .unwrap();
    assert_eq!(cancelled.status(), 202);
    let (_, request) = guarded.setup.requests().pop().unwrap();
    let waybill_engine::OperationRequest::Amend(amend) = request else {
        panic!("a cancel was sent");
    };
    assert_eq!(amend.operation, OperationId::of_caller("zeta", "order-1"));
    assert_eq!(amend.tenant, "zeta");
    guarded.setup.ingestion.shutdown().await;
}
