//! Invalid requests: each answer names the error, and none reaches a topic.

use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use waybill_kafka::{Admin, TopicSpec};

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_input_gets_its_problem_and_reaches_no_topic() {
    let setup = Setup::start().await;
    let mut two_wrong = delivery();
    two_wrong["packageInfo"]["size"] = "Huge".into();
    two_wrong["deadline"] = "soon".into();
    let mut overdue = delivery();
    overdue["pickupTime"] = Value::Null;
    overdue["deadline"] = "2020-01-01T00:00:00Z".into();
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    let order_with = |field: &str, value: Value| {
        let mut body = order("o-1", 1);
        body[field] = value;
        body.to_string()
    };
    let cases: Vec<(&str, String, u16, &str, &[&str])> = vec![
        (
            DELIVERIES,
            "{\n  \"ownerId\": oops}".into(),
            400,
            "malformed-json",
            &[],
        ),
        (DELIVERIES, String::new(), 400, "malformed-json", &[]),
        (
            DELIVERIES,
            format!("{} x", delivery()),
            400,
            "malformed-json",
            &[],
        ),
        (
            DELIVERIES,
            r#"{"ownerId": "a", "ownerId": "b"}"#.into(),
            400,
            "duplicate-key",
            &["/ownerId"],
        ),
        (
            DELIVERIES,
            format!(r#"{{"packageInfo": {deep}}}"#),
            400,
            "nesting-too-deep",
            &["/packageInfo/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0"],
        ),
        (
            DELIVERIES,
            format!("\"{}\"", "x".repeat(65 * 1024)),
            413,
            "body-too-large",
            &[],
        ),
        (
            DELIVERIES,
            two_wrong.to_string(),
            422,
            "invalid-values",
            &["/deadline", "/packageInfo/size"],
        ),
        (DELIVERIES, "[]".into(), 422, "invalid-values", &[""]),
        (
            OPERATIONS,
            "{}".into(),
            422,
            "invalid-values",
            &["/workflow", "/input"],
        ),
        (
            OPERATIONS,
            order_with("workflow", json!("nope")),
            422,
            "invalid-values",
            &["/workflow"],
        ),
        (
            OPERATIONS,
            order_with("id", json!("a b")),
            422,
            "invalid-values",
            &["/id"],
        ),
        (
            OPERATIONS,
            order_with("replyTo", json!("elsewhere")),
            422,
            "invalid-values",
            &["/replyTo"],
        ),
        (
            OPERATIONS,
            order_with("deadline", json!("2030")),
            422,
            "invalid-values",
            &["/deadline"],
        ),
        (
            OPERATIONS,
            order_with("deadline", json!("2020-01-01T00:00:00Z")),
            422,
            "invalid-values",
            &["/deadline"],
        ),
        (
            DELIVERIES,
            overdue.to_string(),
            422,
            "invalid-values",
            &["/deadline"],
        ),
        (
            OPERATIONS,
            json!({
                "workflow": "drone-delivery", "id": "d-1", "input": overdue,
                "deadline": "2020-01-02T00:00:00Z", "extra": 1,
            })
            .to_string(),
            422,
            "invalid-values",
            &["/deadline", "/extra", "/input/deadline"],
        ),
        (
            OPERATIONS,
            order_with("tenant", json!("a\u{0}")),
            422,
            "invalid-values",
            &["/tenant"],
        ),
        (
            OPERATIONS,
            order_with("extra", json!(1)),
            422,
            "invalid-values",
            &["/extra"],
        ),
        (
            OPERATIONS,
            order_with("notify", json!(["mailto:anna@example.org", "tel:+1", 7])),
            422,
            "invalid-values",
            &["/notify/0", "/notify/1", "/notify/2"],
        ),
        (
            DELIVERIES,
            {
                let mut body = delivery();
                body["notify"] = "mailto:anna@example.org".into();
                body["ownerId"] = Value::Null;
                body.to_string()
            },
            422,
            "invalid-values",
            &["/notify", "/ownerId"],
        ),
        (
            DELIVERIES,
            {
                let mut body = delivery();
                body["deliveryId"] = "has space".into();
                body["ownerId"] = Value::Null;
                body.to_string()
            },
            422,
            "invalid-values",
            &["/deliveryId", "/ownerId"],
        ),
        (
            OPERATIONS,
            order_with("input", json!({"deliveryId": "has space"}))
                .replace("\"order\"", "\"drone-delivery\"")
                .replace("\"o-1\"", "\"o 1\""),
            422,
            "invalid-values",
            &[
                "/id",
                "/input/deliveryId",
                "/input/dropOffLocation",
                "/input/ownerId",
                "/input/packageInfo",
                "/input/pickupLocation",
            ],
        ),
    ];
    for (path, body, status, kind, pointers) in cases {
        let shown = body.chars().take(80).collect::<String>();
        let (got_status, got_kind, problem) =
            problem(setup.post(path, body).send().await.unwrap()).await;
        assert_eq!(
            (got_status, got_kind.as_str()),
            (status, kind),
            "{shown}: {problem}"
        );
        let mut got: Vec<_> = problem["errors"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|error| error["pointer"].as_str().unwrap())
            .collect();
        got.sort_unstable();
        let mut pointers = pointers.to_vec();
        pointers.sort_unstable();
        assert_eq!(got, pointers, "{shown}");
    }

    let malformed = setup
        .post(DELIVERIES, "{\n  \"ownerId\": oops}")
        .send()
        .await
        .unwrap();
    let (.., malformed) = problem(malformed).await;
    assert_eq!(malformed["detail"], "Line 2, column 14: expected value.");

    let invalid_utf8 = setup
        .post(DELIVERIES, "")
        .body(b"{\"ownerId\": \"\xff\"}".to_vec());
    let (status, kind, _) = problem(invalid_utf8.send().await.unwrap()).await;
    assert_eq!((status, kind.as_str()), (400, "malformed-json"));

    for media_type in [
        "text/plain",
        "application/json; charset=utf-16",
        "application/x-ndjson",
    ] {
        let request = setup
            .http
            .post(setup.url(DELIVERIES))
            .header(CONTENT_TYPE, media_type);
        let (status, kind, _) = problem(request.body("{}").send().await.unwrap()).await;
        assert_eq!(
            (status, kind.as_str()),
            (415, "unsupported-media-type"),
            "{media_type}"
        );
    }

    let two_ids = setup
        .post(OPERATIONS, order("o-1", 1))
        .header("idempotency-key", "o-2");
    assert_eq!(
        problem(two_ids.send().await.unwrap()).await.1,
        "invalid-values"
    );
    assert_eq!(setup.records().len(), 0);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_addresses_and_methods_are_answered_with_problems() {
    let setup = Setup::start().await;
    for path in [
        "/nope",
        "/api/deliveryrequests/",
        "/v1",
        "/problems/nope",
        "/v1/operations/a%ff",
    ] {
        let (status, kind, _) =
            problem(setup.http.get(setup.url(path)).send().await.unwrap()).await;
        assert_eq!((status, kind.as_str()), (404, "not-found"), "{path}");
    }
    for path in [
        "/v1/operations/x",
        "/api/deliveryrequests/00000000-0000-0000-0000-000000000000",
    ] {
        let (status, kind, _) =
            problem(setup.http.get(setup.url(path)).send().await.unwrap()).await;
        assert_eq!(
            (status, kind.as_str()),
            (404, "unknown-or-expired"),
            "{path}"
        );
    }
    for (path, allow) in [
        (DELIVERIES, "POST"),
        (OPERATIONS, "GET, HEAD, POST"),
        (BATCH, "POST"),
        ("/v1/operations/x", "GET, HEAD"),
        ("/docs", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ] {
        let response = setup
            .http
            .put(setup.url(path))
            .body("{}")
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["allow"], allow, "{path}");
        assert_eq!(problem(response).await.1, "method-not-allowed");
    }
    let wrong_token = setup
        .http
        .get(setup.url("/v1/operations/x?at=1-2"))
        .send()
        .await
        .unwrap();
    assert_eq!(problem(wrong_token).await.0, 422);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_existing_reply_topics_are_accepted() {
    let setup = Setup::on_embedded_broker(&[]).await;
    let admin = Admin::new(&setup.kafka, "test").unwrap();
    let topic = TopicSpec::new("replies.there", 1);
    admin.create_topics(&[topic]).await.unwrap();
    let order = |id: &str, topic: &str| {
        let mut body = order(id, 1);
        body["replyTo"] = topic.into();
        body
    };
    let refused = setup.post(OPERATIONS, order("o-1", "replies.nowhere"));
    let refused = refused.send().await.unwrap();
    assert_eq!(refused.status(), 422);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["errors"][0]["pointer"], "/replyTo", "{problem}");
    let taken = setup.post(OPERATIONS, order("o-2", "replies.there"));
    assert_eq!(taken.send().await.unwrap().status(), 202);

    let lines = [
        order("o-3", "replies.nowhere"),
        order("o-4", "replies.there"),
    ];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let answers = setup.post(BATCH, lines).send().await.unwrap();
    let answers = answers.text().await.unwrap();
    let answers = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let statuses: Vec<Value> = answers
        .map(|answer: Value| answer["status"].clone())
        .collect();
    assert_eq!(statuses, [422, 202]);

    // Another client creates the topic.
    let topic = TopicSpec::new("replies.nowhere", 1);
    admin.create_topics(&[topic]).await.unwrap();
    let began = Instant::now();
    loop {
        let again = setup.post(OPERATIONS, order("o-1", "replies.nowhere"));
        let status = again.send().await.unwrap().status();
        if status == 202 {
            break;
        }
        assert_eq!(status, 422);
        assert!(began.elapsed() < PATIENCE, "the new topic is not seen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_query_parameters_are_refused_by_name() {
    let setup = Setup::start().await;
    setup.request(order("known", 1)).await;
    let known = format!("{OPERATIONS}/known");
    let one = ["tennant"].as_slice();
    let cases = [
        (Method::POST, DELIVERIES.to_owned(), one),
        (Method::POST, OPERATIONS.to_owned(), one),
        (Method::POST, BATCH.to_owned(), &["tennant", "tenant"]),
        (Method::GET, OPERATIONS.to_owned(), one),
        (Method::GET, known.clone(), &["tennant", "at"]),
        (Method::GET, format!("{known}/events"), one),
        (Method::POST, format!("{known}:cancel"), one),
        (Method::POST, format!("{known}:resubmit"), &["reason"]),
        (Method::DELETE, format!("{DELIVERIES}/known"), one),
        (Method::PATCH, format!("{DELIVERIES}/known"), one),
    ];
    for (method, path, wrong) in cases {
        let query = wrong.join("=acme&");
        let media_type = match &*path {
            BATCH => "application/x-ndjson",
            _ => "application/json",
        };
        let asked = setup
            .http
            .request(method.clone(), setup.url(&format!("{path}?{query}=acme")))
            .header(CONTENT_TYPE, media_type)
            .body(match (&method, &*path) {
                (&Method::POST, OPERATIONS | BATCH) => order("new", 1).to_string(),
                (&Method::POST, DELIVERIES) => delivery().to_string(),
                _ => "{}".to_owned(),
            });
        let (status, kind, problem) = problem(asked.send().await.unwrap()).await;
        assert_eq!((status, &*kind), (422, "invalid-values"), "{method} {path}");
        let errors = problem["errors"].as_array().unwrap().iter();
        let named: Vec<_> = errors.map(|error| error["parameter"].as_str()).collect();
        let wrong: Vec<_> = wrong.iter().map(|name| Some(*name)).collect();
        assert_eq!(named, wrong, "{method} {path}: {problem}");
        assert!(problem["errors"][0].get("pointer").is_none(), "{problem}");
    }
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}
