//! Undoing and probing a step.

use super::*;

/// The undo requests of the tests below, with every key that a request may have.
const ALL_SAID: &str = "\
request:
  method: PUT
  path: /packages/{{input.id}}
  headers: { X-Size: '{{input.size}}' }
  body: { size: '{{input.size}}' }
  keep: { shelf: /shelf, note: '/note?' }
  compensate:
    method: POST
    path: /returns/{{results.create.shelf}}?of={{idempotencyKey}}
    headers: { X-Reason: 'undo of {{operation}}' }
    body: { shelf: '{{results.create.shelf}}', note: '{{results.create.note?}}', order: '{{results.order.number}}' }
";

#[tokio::test]
async fn undo_and_probe_use_the_url_and_key_of_their_step() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "request: { method: PUT, path: '/packages/{{input.id}}', headers: { X-Size: '1' }, body: { size: 1 }, compensate: { method: DELETE }, probe: { method: GET } }",
    );
    let operation: OperationId = "0197a6b0-1234-7000-8000-000000000001".parse().unwrap();
    let mut request = request().operation(operation).build();
    for (attempt_number, action) in (1..).zip(ACTIONS) {
        request.attempt = Attempt(attempt_number);
        request.action = action;
        let done = attempt(&agent, request.clone()).await.unwrap();
        assert_eq!(done, Outcome::Success { outputs: vec![] }, "{action:?}");
    }

    let asked = service.asked();
    let methods: Vec<_> = asked.iter().map(|asked| &asked.method).collect();
    assert_eq!(methods, [Method::PUT, Method::DELETE, Method::GET]);
    for asked in &asked {
        assert_eq!(asked.uri, "/base/packages/p%201");
        assert_eq!(
            asked.headers["idempotency-key"],
            format!("{operation}/create")
        );
        assert_eq!(
            asked.headers["waybill-complete-by"],
            crate::template::rfc3339(request.complete_by)
        );
    }
    for inverse in &asked[1..] {
        assert_eq!(inverse.body, "");
        assert!(!inverse.headers.contains_key("x-size"));
        assert!(!inverse.headers.contains_key("content-type"));
    }
}

#[tokio::test]
async fn the_outputs_of_a_step_fill_path_headers_and_body_of_its_undo() {
    let service = Service::start().await;
    let agent = agent(&service.url, ALL_SAID);
    let operation: OperationId = "0197a6b0-1234-7000-8000-000000000001".parse().unwrap();
    let undo = request()
        .operation(operation)
        .action(Action::Compensate)
        .result("create", "shelf", "A/7")
        .result("order", "number", "17")
        .build();
    let done = attempt(&agent, undo).await.unwrap();
    assert_eq!(done, Outcome::Success { outputs: vec![] });

    let asked = &service.asked()[0];
    assert_eq!(asked.method, Method::POST);
    assert_eq!(
        asked.uri,
        format!("/base/returns/A%2F7?of={operation}%2Fcreate").as_str()
    );
    assert_eq!(asked.headers["x-reason"], format!("undo of {operation}"));
    assert_eq!(asked.headers["content-type"], "application/json");
    assert_eq!(asked.body, r#"{"order":"17","shelf":"A/7"}"#);
}

#[tokio::test]
async fn an_undo_without_a_value_that_it_needs_is_permanent_and_nothing_is_sent() {
    let service = Service::start().await;
    let agent = agent(&service.url, ALL_SAID);
    let refused = outcome_of(&agent, Action::Compensate).await;
    assert_eq!(
        kind_and_code(&refused),
        ("permanent", "template-value-missing")
    );
    assert!(format!("{refused:?}").contains("results.create.shelf"));
    assert!(service.asked().is_empty());
}

#[tokio::test]
async fn an_undo_succeeds_even_without_an_effect() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 0 }}\n{WITH_INVERSES}"),
    );
    for (status, body, expected) in [
        (200, "not what keep wants", ("success", "")),
        (204, "", ("success", "")),
        (404, r#"{"code": "unknown-package"}"#, ("success", "")),
        (410, "", ("success", "")),
        (400, r#"{"code": "no"}"#, ("permanent", "no")),
        (409, "", ("permanent", "http-409")),
        (301, "", ("permanent", "http-301")),
        (429, "", ("transient", "http-429")),
        (503, "", ("transient", "http-503")),
        (500, "", ("unknown", "http-500")),
        (502, "", ("unknown", "http-502")),
    ] {
        service.answers(move |_| json(status, body));
        let outcome = outcome_of(&agent, Action::Compensate).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status}");
        if expected.0 == "success" {
            assert_eq!(outcome, Outcome::Success { outputs: vec![] }, "{status}");
        }
    }
}

#[tokio::test]
async fn a_probe_returns_the_outputs_or_not_performed() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 0 }}\n{WITH_INVERSES}"),
    );
    service.answers(|_| json(200, r#"{"shelf": "A7", "more": 1}"#));
    assert_eq!(
        outcome_of(&agent, Action::Probe).await,
        Outcome::Success {
            outputs: vec![("shelf".to_owned(), "A7".to_owned())]
        }
    );
    for (status, body, expected) in [
        (404, r#"{"shelf": "A7"}"#, ("not-performed", "")),
        (410, "", ("not-performed", "")),
        (200, "{}", ("unknown", "answer-value-missing")),
        (200, "not json", ("unknown", "answer-not-json")),
        (403, r#"{"code": "not-you"}"#, ("permanent", "not-you")),
        (503, "", ("transient", "http-503")),
        (500, "", ("unknown", "http-500")),
    ] {
        service.answers(move |_| json(status, body));
        let outcome = outcome_of(&agent, Action::Probe).await;
        assert_eq!(kind_and_code(&outcome), expected, "{status} {body}");
    }
}

#[tokio::test]
async fn absence_statuses_are_configurable_and_do_not_apply_to_runs() {
    let service = Service::start().await;
    let defaults = agent(&service.url, WITH_INVERSES);
    service.answers(|_| json(404, ""));
    assert_eq!(
        kind_and_code(&outcome(&defaults).await),
        ("permanent", "http-404")
    );

    // `absent` takes precedence over every other list.
    let custom = agent(
        &service.url,
        &format!(
            "retries: {{ max: 0 }}\nstatuses: {{ absent: [409, 204], transient: [409], success: [200-299, 404] }}\n{WITH_INVERSES}"
        ),
    );
    for (status, action, expected) in [
        (409, Action::Run, "transient"),
        (409, Action::Compensate, "success"),
        (409, Action::Probe, "not-performed"),
        (204, Action::Probe, "not-performed"),
        (410, Action::Compensate, "permanent"),
        (404, Action::Compensate, "success"),
    ] {
        service.answers(move |_| json(status, ""));
        let outcome = outcome_of(&custom, action).await;
        assert_eq!(kind_and_code(&outcome).0, expected, "{status} {action:?}");
    }
}

#[tokio::test]
async fn a_step_without_such_a_request_cannot_be_undone_or_probed() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        "request: { method: PUT, path: /any, compensate: { method: DELETE }, probe: { method: GET } }\nsteps: { create: { method: PUT, path: /create } }",
    );
    for (action, code) in [
        (Action::Compensate, "compensation-unknown"),
        (Action::Probe, "probe-unknown"),
    ] {
        // Only the step's own entry counts: an undo for other steps need not undo this one.
        let refused = outcome_of(&agent, action).await;
        assert_eq!(kind_and_code(&refused), ("permanent", code));
        assert!(format!("{refused:?}").contains("create"), "{refused:?}");
        assert!(service.asked().is_empty());
    }
    let other = StepRequestBuilder::new("package", "other").action(Action::Compensate);
    let done = attempt(&agent, other.build()).await.unwrap();
    assert_eq!(done, Outcome::Success { outputs: vec![] });
    assert_eq!(service.asked()[0].uri, "/base/any");
}

#[tokio::test]
async fn a_transient_failure_to_undo_is_tried_again_inside_the_attempt() {
    let service = Service::start().await;
    service.answers(|count| json(if count < 3 { 503 } else { 204 }, ""));
    let agent = agent(
        &service.url,
        &format!("retries: {{ max: 2, backoff: 1ms }}\n{WITH_INVERSES}"),
    );
    assert_eq!(
        outcome_of(&agent, Action::Compensate).await,
        Outcome::Success { outputs: vec![] }
    );
    let asked = service.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|asked| asked.method == Method::DELETE));
}
