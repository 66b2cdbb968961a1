//! Performing a step: the requests, and the meaning of answers.

use super::*;

#[tokio::test]
async fn a_step_is_one_request_with_key_deadline_and_trace() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "request:\n  method: PUT\n  path: /packages/{{input.id}}?dry={{attempt}}\n  headers: { X-Tenant: '<{{tenant}}>' }\n  body: { size: '{{input.size}}', op: '{{operation}}' }\n",
    );
    let operation: OperationId = "0197a6b0-1234-7000-8000-000000000001".parse().unwrap();
    let mut request = request()
        .operation(operation)
        .tenant("acme")
        .attempt(Attempt(3))
        .build();
    request.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    request.complete_by = Timestamp(request.complete_by.0 / 1_000_000 * 1_000_000);
    let complete_by = crate::template::rfc3339(request.complete_by);
    let done = attempt(&agent, request).await.unwrap();
    assert_eq!(done, Outcome::Success { outputs: vec![] });

    let asked = &service.asked()[0];
    let header = |name: &str| asked.headers[name].to_str().unwrap();
    assert_eq!(asked.method, Method::PUT);
    assert_eq!(asked.uri, "/base/packages/p%201?dry=3");
    assert_eq!(header("idempotency-key"), format!("{operation}/create"));
    assert_eq!(header("waybill-complete-by"), complete_by);
    assert_eq!(header("x-tenant"), "<acme>");
    assert_eq!(header("content-type"), "application/json");
    assert!(header("traceparent").starts_with("00-0af765"));
    let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"size": 2, "op": operation.to_string()})
    );
}

#[tokio::test]
async fn each_step_has_its_own_request_and_an_unknown_step_fails() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "steps:\n  create: { method: POST, path: /create }\n  close: { method: DELETE, path: /close }\n",
    );
    for step in ["create", "close"] {
        let request = StepRequestBuilder::new("package", step).build();
        attempt(&agent, request).await.unwrap();
    }
    let uris: Vec<String> = service
        .asked()
        .iter()
        .map(|asked| asked.uri.to_string())
        .collect();
    assert_eq!(uris, ["/base/create", "/base/close"]);
    let other = StepRequestBuilder::new("package", "other").build();
    let refused = attempt(&agent, other).await.unwrap();
    assert_eq!(kind_and_code(&refused), ("permanent", "step-unknown"));
}

#[tokio::test]
async fn statuses_are_classified_as_configured() {
    let service = Service::start().await;
    let defaults = agent(&service.url, &format!("retries: {{ max: 0 }}\n{PUT}"));
    for (status, body, expected) in [
        (200, "", ("success", "")),
        (204, "", ("success", "")),
        (301, "", ("permanent", "http-301")),
        (400, r#"{"code": "bad-size"}"#, ("permanent", "bad-size")),
        (404, "not json", ("permanent", "http-404")),
        (409, r#"{"code": "has space"}"#, ("permanent", "http-409")),
        (422, r#"{"code": 7}"#, ("permanent", "http-422")),
        (408, "", ("transient", "http-408")),
        (425, "", ("transient", "http-425")),
        (429, r#"{"code": "slow-down"}"#, ("transient", "slow-down")),
        (503, "", ("transient", "http-503")),
        (500, "", ("unknown", "http-500")),
        (502, "", ("unknown", "http-502")),
        (504, "", ("unknown", "http-504")),
        (501, "", ("unknown", "http-501")),
    ] {
        service.answers(move |_| json(status, body));
        let outcome = outcome(&defaults).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status}");
    }

    let custom = agent(
        &service.url,
        &format!(
            "retries: {{ max: 0 }}\nerrorCode: /error/id\nstatuses:\n  success: [200-299, 404]\n  transient: [500-599]\n  unknown: [409]\n  permanent: [202]\n{PUT}"
        ),
    );
    for (status, expected) in [
        (200, ("success", "")),
        (404, ("success", "")),
        (202, ("permanent", "E1")),
        (409, ("unknown", "E1")),
        (500, ("transient", "E1")),
        (400, ("permanent", "E1")),
    ] {
        service.answers(move |_| json(status, r#"{"error": {"id": "E1"}}"#));
        let outcome = outcome(&custom).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status}");
    }
}

#[tokio::test]
async fn the_error_message_contains_the_answer_of_the_service() {
    let service = Service::start().await;
    let agent = agent(&service.url, PUT);
    service.answers(|_| json(422, r#"{"title": "no", "detail": "the size is odd"}"#));
    let Outcome::Permanent { error } = outcome(&agent).await else {
        panic!("not permanent");
    };
    assert!(
        error.message.ends_with(": the size is odd"),
        "{}",
        error.message
    );
    service.answers(|_| (StatusCode::BAD_REQUEST, "ü".repeat(4_000)).into_response());
    let Outcome::Permanent { error } = outcome(&agent).await else {
        panic!("not permanent");
    };
    assert!(error.message.len() < 400, "{}", error.message.len());
}

#[tokio::test]
async fn kept_values_of_an_answer_become_outputs() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "responseBytesMax: 100\nrequest: { method: PUT, path: /, keep: { id: /drone/id, required: /required, rest: '/rest?' } }",
    );
    service.answers(|_| json(200, r#"{"drone": {"id": "d1"}, "required": false}"#));
    assert_eq!(
        outcome(&agent).await,
        Outcome::Success {
            outputs: vec![
                ("id".to_owned(), "d1".to_owned()),
                ("required".to_owned(), "false".to_owned())
            ]
        }
    );
    // A kept value may identify a resource of the service: it must equal the answer's, to the last
    // digit.
    service.answers(|_| {
        let body = r#"{"drone": {"id": 18446744073709551617}, "required": {"b": 1.50, "a": []}}"#;
        json(200, body)
    });
    assert_eq!(
        outcome(&agent).await,
        Outcome::Success {
            outputs: vec![
                ("id".to_owned(), "18446744073709551617".to_owned()),
                ("required".to_owned(), r#"{"b": 1.50, "a": []}"#.to_owned())
            ]
        }
    );
    for (body, code) in [
        ("{", "answer-not-json"),
        (
            r#"{"drone": {"id": "\ud800"}, "required": 1}"#,
            "answer-not-json",
        ),
        (
            r#"{"drone": {"id": null}, "required": 1}"#,
            "answer-value-missing",
        ),
        (&format!("\"{}\"", "x".repeat(100)), "answer-too-large"),
    ] {
        let body = body.to_owned();
        service.answers(move |_| json(200, &body));
        assert_eq!(kind_and_code(&outcome(&agent).await), ("unknown", code));
    }
}

#[tokio::test]
async fn a_value_that_is_missing_is_permanent_and_nothing_is_sent() {
    let service = Service::start().await;
    let agent = agent(&service.url, PUT);
    let request = StepRequestBuilder::new("package", "create").build();
    let outcome = attempt(&agent, request).await.unwrap();
    assert_eq!(
        kind_and_code(&outcome),
        ("permanent", "template-value-missing")
    );
    assert!(format!("{outcome:?}").contains("input.id"));
    let crlf = agent_with_header(&service.url);
    let request = StepRequestBuilder::new("package", "create").input(r#"{"id": "a\r\nX: y"}"#);
    let outcome = attempt(&crlf, request.build()).await.unwrap();
    assert_eq!(
        kind_and_code(&outcome),
        ("permanent", "template-value-unsuitable")
    );
    assert!(service.asked().is_empty());
}

fn agent_with_header(service: &str) -> HttpAgent {
    agent(
        service,
        "request: { method: PUT, path: /, headers: { X-Id: '{{input.id}}' } }",
    )
}

#[tokio::test]
async fn an_unreachable_service_is_a_transient_failure() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let agent = agent(&url, WITH_INVERSES);
    for action in ACTIONS {
        assert_eq!(
            kind_and_code(&outcome_of(&agent, action).await),
            ("transient", "connect-failed"),
            "{action:?}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_is_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Reads part of the request, and closes the connection.
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 16])
                .await
                .unwrap();
        }
    });
    let agent = agent(&url, WITH_INVERSES);
    for action in ACTIONS {
        assert_eq!(
            kind_and_code(&outcome_of(&agent, action).await),
            ("unknown", "outcome-unknown"),
            "{action:?}"
        );
    }
}

#[tokio::test]
async fn a_service_that_does_not_answer_in_time_is_unknown() {
    let service = Service::start().await;
    let _release = service.hold();
    let agent = agent(&service.url, &format!("timeout: 50ms\n{WITH_INVERSES}"));
    for action in ACTIONS {
        assert_eq!(
            kind_and_code(&outcome_of(&agent, action).await),
            ("unknown", "outcome-unknown"),
            "{action:?}"
        );
    }
}

#[tokio::test]
async fn an_attempt_past_complete_by_gets_no_answer() {
    let service = Service::start().await;
    let _release = service.hold();
    let agent = agent(&service.url, WITH_INVERSES);
    for (asked, action) in ACTIONS.into_iter().enumerate() {
        let request = || request().action(action);
        let past = request().complete_by(Timestamp(0)).build();
        assert_eq!(attempt(&agent, past).await, None, "{action:?}");
        assert_eq!(service.asked().len(), asked, "{action:?} was sent too late");
        let late = request().complete_within(Duration::from_millis(50)).build();
        assert_eq!(attempt(&agent, late).await, None, "{action:?}");
        assert_eq!(service.asked().len(), asked + 1, "{action:?}");
    }
}

#[tokio::test]
async fn a_transient_failure_is_tried_again_inside_the_attempt_with_the_same_key() {
    let service = Service::start().await;
    service.answers(|count| json(if count < 3 { 503 } else { 200 }, ""));
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 2, backoff: 1ms }}\n{PUT}"),
    );
    assert_eq!(outcome(&agent).await, Outcome::Success { outputs: vec![] });
    let asked = service.asked();
    assert_eq!(asked.len(), 3);
    let keys: std::collections::BTreeSet<_> = asked
        .iter()
        .map(|asked| asked.headers["idempotency-key"].to_str().unwrap())
        .collect();
    assert_eq!(keys.len(), 1);
}

#[tokio::test]
async fn retry_after_holds_the_next_try_back() {
    let service = Service::start().await;
    service.answers(|_| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response());
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 2, backoff: 1ms }}\n{PUT}"),
    );
    assert_eq!(
        kind_and_code(&outcome(&agent).await),
        ("transient", "http-429")
    );
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_not_tried_again_inside_the_attempt() {
    let service = Service::start().await;
    service.answers(|_| json(500, ""));
    let agent = agent(&service.url, PUT);
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "unknown");
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn http2_is_spoken_with_prior_knowledge() {
    let service = Service::start().await;
    let agent = agent(&service.url, &format!("http2: true\n{PUT}"));
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(outcome(&agent).await, Outcome::Success { outputs: vec![] });
    }
    // If small writes waited for acknowledgements (no TCP_NODELAY), each call would take 40 ms.
    assert!(start.elapsed() < Duration::from_secs(3));
}
