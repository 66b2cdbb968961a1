//! Requests with an ID of the caller: repeats, conflicts, and concurrent duplicates.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::json;
use waybill_engine::{OperationId, ProcessState};

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_the_same_operation_and_another_body_is_a_conflict() {
    let setup = Setup::start().await;
    let first = setup.request(order("o-1", 1)).await;
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    let first_location = location(&first);
    let id = OperationId::of_caller("", "o-1").to_string();
    let (_, accepted) = answer(first).await;
    assert_eq!(
        accepted,
        json!({"id": id, "state": "Pending", "workflow": "order", "callerId": "o-1"})
    );
    let (_, pending) = setup.get(&first_location).await;
    assert_eq!(pending["callerId"], "o-1");

    let repeat = setup.request(order("o-1", 1)).await;
    assert_eq!(
        (repeat.status(), location(&repeat)),
        (StatusCode::ACCEPTED, first_location)
    );
    let other = setup.request(order("o-1", 2)).await;
    let (status, kind, conflict) = problem(other).await;
    assert_eq!(
        (status, kind.as_str(), &conflict["id"]),
        (409, "id-conflict", &json!("o-1"))
    );

    let records = setup.records();
    assert_eq!(records.len(), 1);
    setup.schedule(&records[0], ProcessState::Processing).await;
    let repeat = setup.request(order("o-1", 1)).await;
    assert_eq!(location(&repeat), format!("{OPERATIONS}/{id}"));
    let (status, operation) = answer(repeat).await;
    assert_eq!((status, &operation["id"]), (StatusCode::OK, &json!(id)));
    assert_eq!(
        (&operation["state"], &operation["callerId"]),
        (&json!("Processing"), &json!("o-1"))
    );
    let other = setup.request(order("o-1", 2)).await;
    assert_eq!(problem(other).await.0, 409);

    for path in [format!("{OPERATIONS}/o-1"), format!("{OPERATIONS}/{id}")] {
        let (status, found) = setup.get(&path).await;
        assert_eq!((status, &found), (StatusCode::OK, &operation), "{path}");
    }
    let (status, _) = setup.get(&format!("{DELIVERIES}/o-1")).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "an order is no delivery");
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_repeated_through_either_form_is_one_delivery() {
    let setup = Setup::start().await;
    let mut named = delivery();
    named["deliveryId"] = "d/1".into();
    let first = setup.post(DELIVERIES, &named).send().await.unwrap();
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    setup
        .schedule(&setup.records()[0], ProcessState::Processed)
        .await;

    let with_key = setup
        .post(DELIVERIES, delivery())
        .header("idempotency-key", "\"d/1\"");
    let (status, repeat) = answer(with_key.send().await.unwrap()).await;
    assert_eq!(
        (status, &repeat["state"]),
        (StatusCode::OK, &json!("Processed"))
    );
    assert_eq!(repeat["request"]["deliveryId"], "d/1");
    let general = json!({"workflow": "drone-delivery", "id": "d/1", "input": delivery()});
    let (status, _) = answer(setup.post(OPERATIONS, general).send().await.unwrap()).await;
    assert_eq!(status, StatusCode::OK);

    let (status, shown) = setup.get(&format!("{DELIVERIES}/d%2F1")).await;
    assert_eq!((status, &shown), (StatusCode::OK, &repeat));
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_with_one_id_share_an_answer_if_equal_and_conflict_otherwise() {
    let setup = Setup::start().await;
    let warm = setup.post(OPERATIONS, order("warm", 1)).send().await;
    assert_eq!(warm.unwrap().status(), StatusCode::ACCEPTED);
    setup
        .cluster
        .broker_round_trip_time(1, Duration::from_millis(300))
        .unwrap();
    let twins = (0..20).map(|n| setup.post(OPERATIONS, order("twin", n % 2)).send());
    let mut answers = [Vec::new(), Vec::new()];
    for (n, response) in join_all(twins).await.into_iter().enumerate() {
        let response = response.unwrap();
        let status = response.status().as_u16();
        let message = match status {
            202 => location(&response),
            _ => problem(response).await.1,
        };
        answers[n % 2].push((status, message));
    }
    setup
        .cluster
        .broker_round_trip_time(1, Duration::ZERO)
        .unwrap();
    answers.sort();
    let [accepted, refused] = answers;
    assert_eq!((accepted.len(), refused.len()), (10, 10));
    assert!(
        accepted[0].0 == 202 && accepted.iter().all(|answer| *answer == accepted[0]),
        "{accepted:?}"
    );
    let conflict = (409, "id-conflict".to_owned());
    assert!(
        refused.iter().all(|answer| *answer == conflict),
        "{refused:?}"
    );
    assert_eq!(setup.records().len(), 2, "one for all twins");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_answered_after_its_deadline() {
    let setup = Setup::start().await;
    let began = Instant::now();
    let (first, body, deadline) = loop {
        assert!(began.elapsed() < PATIENCE);
        let deadline = jiff::Timestamp::now() + Duration::from_secs(1);
        let mut body = order("soon", 1);
        body["deadline"] = deadline.to_string().into();
        let response = setup.post(OPERATIONS, &body).send().await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break (location(&response), body, deadline);
        }
        assert_eq!(problem(response).await.1, "invalid-values");
    };
    while jiff::Timestamp::now() <= deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let repeat = setup.post(OPERATIONS, &body).send().await.unwrap();
    assert_eq!(repeat.status(), StatusCode::ACCEPTED);
    assert_eq!(location(&repeat), first);
    let mut late = body;
    late["id"] = "late".into();
    let late = setup.post(OPERATIONS, late).send().await.unwrap();
    let (status, _, refused) = problem(late).await;
    assert_eq!(
        (status, &refused["errors"][0]["pointer"]),
        (422, &json!("/deadline"))
    );
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}
