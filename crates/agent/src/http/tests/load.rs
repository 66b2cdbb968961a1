//! Invalid files that are refused on loading.

use super::*;
use waybill_telemetry::chain;

#[test]
fn invalid_agents_are_refused_at_load() {
    let one = |http: &str| format!("agents:\n  - name: package\n    http:\n{}", indent(http));
    let put = format!("baseUrl: http://h\n{PUT}\n");
    for (yaml, expected) in [
        ("agents: 7".to_owned(), ""),
        (one(&format!("{put}tiemout: 1s")), "unknown field `tiemout`"),
        (one(&format!("{put}timeout: 10")), "10"),
        (one(&format!("{put}timeout: 0s")), "timeout"),
        (one(&format!("{put}statuses: {{ success: [99] }}")), "99"),
        (
            one(&format!("{put}statuses: {{ success: [300-200] }}")),
            "300-200",
        ),
        (one(&format!("{put}concurrencyMax: 0")), "concurrencyMax"),
        (
            one(&format!("{put}breaker: {{ failureRate: 1.5 }}")),
            "failureRate",
        ),
        (one(&format!("{put}errorCode: code")), "errorCode"),
        (one(&format!("{put}idempotencyKeyHeader: Host")), "Host"),
        (one("baseUrl: http://h"), "request"),
        (one(&format!("baseUrl: h\n{PUT}")), "baseUrl"),
        (one(&format!("baseUrl: ftp://h\n{PUT}")), "http"),
        (one(&format!("baseUrl: http://u:p@h\n{PUT}")), "login"),
        (one(&format!("baseUrl: http://h?x\n{PUT}")), "query"),
        (
            one(&format!("baseUrl: 'http://{{other}}'\n{PUT}")),
            "service",
        ),
        (
            one(&format!("baseUrl: 'http://{{other'\n{PUT}")),
            "not closed",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: PUT, path: '/{{env.X}}' }"),
            "{{env.X}}",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: put, path: / }"),
            "request.method",
        ),
        (
            one(
                "baseUrl: http://h\nrequest: { method: PUT, path: /, headers: { Content-Length: '1' } }",
            ),
            "Content-Length",
        ),
        (
            one("baseUrl: http://h\nrequest: { method: PUT, path: /, keep: { a: b } }"),
            "request.keep.a",
        ),
        (
            one(
                "baseUrl: http://h\nrequest: { method: PUT, path: /, compensate: { method: DELETE, path: away } }",
            ),
            "request.compensate.path",
        ),
        (
            one(
                "baseUrl: http://h\nrequest: { method: PUT, path: /, compensate: { path: /undo } }",
            ),
            "method",
        ),
        (
            one(
                "baseUrl: http://h\nsteps: { create: { method: PUT, path: /, probe: { method: get } } }",
            ),
            "steps.create.probe.method",
        ),
        (
            one(
                "baseUrl: http://h\nrequest: { method: PUT, path: /, probe: { method: GET, keep: { a: /a } } }",
            ),
            "unknown field `keep`",
        ),
        (one(&format!("{put}statuses: {{ absent: [4040] }}")), "4040"),
        (
            format!("agents:\n  - name: Package\n    http: {{ baseUrl: http://h, {PUT} }}"),
            "lower-case",
        ),
    ] {
        let error = load(&yaml, "http://127.0.0.1:1").expect_err(&yaml);
        let message = chain(&error);
        assert!(message.contains(expected), "{yaml}\n{message}");
    }
}

#[test]
fn two_agents_of_one_name_are_refused() {
    let agent = format!("  - name: a\n    http: {{ baseUrl: http://h, {PUT} }}\n");
    let file = AgentsFile::from_yaml(&format!("agents:\n{agent}{agent}")).unwrap();
    assert!(file.load(&Variables::default()).is_err());
}

#[test]
fn the_committed_agents_can_be_loaded() {
    for (path, variable) in [
        ("workflows/drone-delivery-agents.yaml", "services"),
        ("examples/order-fulfilment/agents.yaml", "services"),
    ] {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        let yaml = std::fs::read_to_string(&path).unwrap();
        let program = [(variable.to_owned(), "http://127.0.0.1:1".to_owned())];
        let variables = Variables::new(program.into(), Default::default());
        let loaded = AgentsFile::from_yaml(&yaml).and_then(|file| file.load(&variables));
        let loaded = loaded.unwrap_or_else(|error| panic!("{path}: {}", chain(&error)));
        assert!(!loaded.is_empty());
    }
}
