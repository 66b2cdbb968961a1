//! The answer to a request, and the later views of its operation.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use waybill_engine::{IdOrigin, Offset, OperationId, ProcessState, Timestamp, partition_for};

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_accepted_once_its_record_is_written() {
    let setup = Setup::start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let response = setup
        .post(DELIVERIES, delivery())
        .header("traceparent", trace)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = location(&response);
    let (_, accepted) = answer(response).await;

    let records = setup.records();
    let [record] = records.as_slice() else {
        panic!("one record")
    };
    let id = record.request.operation;
    assert_eq!(record.key, id.to_string());
    assert_eq!(record.partition, partition_for(id, PARTITIONS));
    assert_eq!(record.traceparent.as_deref(), Some(trace));
    assert_eq!(record.request.id_origin, IdOrigin::Server);
    assert_eq!(id.0.get_version_num(), 7);
    assert_eq!(record.request.workflow, "drone-delivery");

    assert_eq!(accepted["id"], id.to_string());
    assert_eq!(accepted["state"], "Pending");
    assert_eq!(accepted["request"]["deliveryId"], id.to_string());
    assert_eq!(accepted["request"]["dropOffLocation"], "drop off");
    let input: Value = serde_json::from_slice(&record.request.input).unwrap();
    assert_eq!(accepted["request"], input);

    let prefix = &record.request.request_hash.to_string()[..8];
    let token = format!("{}-{}-{prefix}", record.partition, record.offset);
    assert_eq!(location, format!("{DELIVERIES}/{id}?at={token}"));
    for path in [
        location,
        format!("{DELIVERIES}/{id}"),
        format!("{OPERATIONS}/{id}"),
    ] {
        let (status, pending) = setup.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(
            (&pending["state"], &pending["ahead"]),
            (&json!("Pending"), &json!(0))
        );
        assert_eq!(pending["workflow"], "drone-delivery");
        assert_eq!(
            pending["steps"],
            json!([{"name": "one", "state": "NotStarted", "attempt": 0}])
        );
        let shown = match path.starts_with(DELIVERIES) {
            true => &accepted["request"],
            false => &Value::Null,
        };
        assert_eq!(&pending["request"], shown, "{path}");
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_location_distinguishes_pending_rejected_and_forgotten() {
    // The server remembers nothing, so the token in the `Location` must be enough.
    let setup = Setup::with(|config| config.recent_accepted_max = 0).await;
    let mut locations = Vec::new();
    for number in [1, 2] {
        let response = setup
            .post(OPERATIONS, order("twin", number))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        locations.push(location(&response));
    }
    let id = OperationId::of_caller("", "twin");
    for (ahead, location) in locations.iter().enumerate() {
        let (_, pending) = setup.get(location).await;
        assert_eq!(
            (&pending["state"], &pending["ahead"]),
            (&json!("Pending"), &json!(ahead))
        );
        assert_eq!(pending["id"], id.to_string());
        assert_eq!(
            (&pending["workflow"], &pending["callerId"]),
            (&json!("order"), &json!("twin"))
        );
        let as_delivery = location.replace(OPERATIONS, DELIVERIES);
        let (status, _) = setup.get(&as_delivery).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "an order is no delivery");
    }

    let records = setup.records();
    let winner = records.iter().min_by_key(|record| record.offset).unwrap();
    setup.consumed(winner.partition, Offset(2)).await;
    for location in &locations {
        // The offset of consumption may have been read before the change.
        let deadline = Instant::now() + Duration::from_secs(30);
        let gone = loop {
            match setup.get(location).await {
                (StatusCode::NOT_FOUND, gone) => break gone,
                (_, pending) => assert_eq!(pending["state"], "Pending"),
            }
            assert!(Instant::now() < deadline, "{location} stays pending");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(gone["type"], "/problems/unknown-or-expired");
    }

    setup.schedule(winner, ProcessState::Processed).await;
    assert_eq!(setup.get(&locations[0]).await.1["state"], "Processed");
    let (status, rejected) = setup.get(&locations[1]).await;
    assert_eq!(
        (status, &rejected["state"]),
        (StatusCode::OK, &json!("Rejected"))
    );
    assert_eq!(rejected["error"]["code"], "id-conflict");
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_row_is_a_problem_of_its_own_id_only() {
    let setup = Setup::start().await;
    let bad = OperationId::of_caller("", "bad");
    let row = state_only(bad, ProcessState::Processing, Timestamp(1));
    setup.write(row).await;

    let (status, unreadable) = setup.get(&format!("{OPERATIONS}/bad")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(unreadable["type"], "/problems/row-unreadable");
    assert_eq!(unreadable["id"], bad.to_string());

    let single = setup.post(OPERATIONS, order("bad", 1)).send().await;
    let (status, _, single) = problem(single.unwrap()).await;
    assert_eq!((status, &single["type"]), (500, &unreadable["type"]));

    let lines = [order("good", 1), order("bad", 1), order("fine", 1)];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let answers = setup.post(BATCH, lines).send().await.unwrap();
    let answers = answers.text().await.unwrap();
    let statuses: Vec<_> = answers
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone())
        .collect();
    assert_eq!(statuses, [202, 500, 202], "{answers}");
    assert_eq!(setup.records().len(), 2);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_describes_itself() {
    let setup = Setup::start().await;
    let (status, openapi) = setup.get("/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    for path in [DELIVERIES, OPERATIONS, BATCH] {
        assert!(openapi["paths"][path]["post"].is_object(), "{path}");
    }
    let home = setup.http.get(setup.url("/")).send().await.unwrap();
    assert_eq!(
        (home.status(), location(&home).as_str()),
        (StatusCode::FOUND, "/docs")
    );
    for page in ["/docs", "/problems/id-conflict"] {
        let response = setup.http.get(setup.url(page)).send().await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(
            response
                .text()
                .await
                .unwrap()
                .starts_with("<!doctype html>")
        );
        let head = setup.http.head(setup.url(page)).send().await.unwrap();
        assert_eq!(head.status(), StatusCode::OK);
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invented_location_is_not_found() {
    let setup = Setup::with(|config| config.recent_accepted_max = 0).await;
    let accepted = setup.post(DELIVERIES, delivery()).send().await.unwrap();
    let location = location(&accepted);
    let (_, at) = location.split_once("?at=").unwrap();
    let id = setup.records()[0].request.operation;
    let in_partition = |text: &String| {
        let id = OperationId::of_caller("", text);
        partition_for(id, PARTITIONS) == setup.records()[0].partition
    };
    let other = (0..).map(|n| format!("other-{n}")).find(in_partition);
    let other = other.unwrap();
    let (place, hash) = at.rsplit_once('-').unwrap();
    let (partition, _) = place.split_once('-').unwrap();
    for made_up in [
        format!("{other}?at={at}"),
        format!("{other}?at={place}-00000000"),
        format!("{id}?at={partition}-7-{hash}"),
        format!("{id}?at={partition}-0-12345678"),
        format!("{id}?at=99-0-{hash}"),
        format!("{id}/events?at={partition}-7-{hash}"),
    ] {
        let (status, problem) = setup.get(&format!("{OPERATIONS}/{made_up}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{made_up}: {problem}");
    }
    let (_, pending) = setup.get(&location).await;
    assert_eq!(pending["request"]["deliveryId"], id.to_string());
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_delivery_without_the_scope_read_has_no_request() {
    let setup = Setup::with(|config| config.pending_reads_max = 0).await;
    let accepted = setup.post(DELIVERIES, delivery()).send().await.unwrap();
    let (status, pending) = setup.get(&location(&accepted)).await;
    assert_eq!(
        (status, &pending["state"], &pending["workflow"]),
        (StatusCode::OK, &json!("Pending"), &json!("drone-delivery"))
    );
    assert_eq!(pending["request"], Value::Null);
    setup.ingestion.shutdown().await;
}
