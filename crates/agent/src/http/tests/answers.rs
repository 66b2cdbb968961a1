//! The meaning of answers: rules, 202, problem details, `Retry-After` and redirects.

use axum::http::header::{AUTHORIZATION, LOCATION};

use super::*;

/// An action, the status, headers and body of the answer, and the outcome with its code.
type Case = (
    Action,
    u16,
    &'static [(&'static str, &'static str)],
    &'static str,
    (&'static str, &'static str),
);

/// The answer in a short form: status, headers and body.
fn answer(status: u16, headers: &[(&'static str, String)], body: &str) -> Answer {
    let mut answer = json(status, body);
    for (name, value) in headers {
        let value = value.parse().unwrap();
        answer.headers_mut().insert(*name, value);
    }
    answer
}

#[tokio::test]
async fn the_first_rule_that_matches_says_what_an_answer_means() {
    let service = Service::start().await;
    let agent = agent(
        &service.url,
        r#"
retries: { max: 0 }
statuses: { success: [200-299] }
answers:
  - { status: [500-599], headers: { X-Effect: none }, outcome: transient, code: no-effect }
  - { status: [404], outcome: absent }
request:
  method: POST
  path: /charges
  keep: { charge: /id, note: /note? }
  answers:
    - { status: [409], body: { /error/code: [duplicate, replayed] }, outcome: success, keep: { charge: /error/charge } }
    - { status: [409], outcome: unknown }
    - { status: [200], body: { /declined: true, /tries: 3 }, outcome: permanent, code: card-declined }
    - { status: [200], exists: [/retry], outcome: transient }
  probe:
    method: GET
    answers:
      - { body: { /state: none }, outcome: absent }"#,
    );
    let cases: &[Case] = &[
        (Action::Run, 200, &[], r#"{"id": "c-1"}"#, ("success", "")),
        (
            Action::Run,
            409,
            &[],
            r#"{"error": {"code": "duplicate", "charge": "c-1"}}"#,
            ("success", ""),
        ),
        // The value is not where the rule says: the effect may exist.
        (
            Action::Run,
            409,
            &[],
            r#"{"error": {"code": "replayed"}, "id": "c-1"}"#,
            ("unknown", "answer-value-missing"),
        ),
        (
            Action::Run,
            409,
            &[],
            r#"{"error": {"code": "other"}, "code": "E1"}"#,
            ("unknown", "E1"),
        ),
        (Action::Run, 409, &[], "duplicate", ("unknown", "http-409")),
        (
            Action::Run,
            200,
            &[],
            r#"{"declined": true, "tries": 3, "retry": 1, "code": "E1"}"#,
            ("permanent", "card-declined"),
        ),
        (
            Action::Run,
            200,
            &[],
            r#"{"declined": "true", "tries": 3, "id": "c-1"}"#,
            ("success", ""),
        ),
        (
            Action::Run,
            200,
            &[],
            r#"{"retry": null, "id": "c-1"}"#,
            ("success", ""),
        ),
        (
            Action::Run,
            200,
            &[],
            r#"{"retry": 1, "code": "E1"}"#,
            ("transient", "E1"),
        ),
        (
            Action::Run,
            502,
            &[("x-effect", "none")],
            "",
            ("transient", "no-effect"),
        ),
        (
            Action::Run,
            502,
            &[("x-effect", "None")],
            "",
            ("unknown", "http-502"),
        ),
        // Absence is for undos and probes.
        (Action::Run, 404, &[], "", ("permanent", "http-404")),
        (Action::Probe, 404, &[], "", ("not-performed", "")),
        (
            Action::Probe,
            200,
            &[],
            r#"{"state": "none"}"#,
            ("not-performed", ""),
        ),
        (
            Action::Probe,
            200,
            &[],
            r#"{"state": "paid", "id": "c-1"}"#,
            ("success", ""),
        ),
    ];
    for (action, status, headers, body, expected) in cases {
        let (status, body) = (*status, (*body).to_owned());
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        let sent = body.clone();
        service.answers(move |_| answer(status, &headers, &sent));
        let outcome = outcome_of(&agent, *action).await;
        assert_eq!(
            kind_and_code(&outcome),
            *expected,
            "{action:?} {status} {body}: {outcome:?}"
        );
        if let Outcome::Success { outputs } = outcome {
            assert_eq!(outputs, [("charge".to_owned(), "c-1".to_owned())], "{body}");
        }
    }
}

#[tokio::test]
async fn a_202_is_not_a_success_unless_the_file_says_so() {
    let service = Service::start().await;
    service.answers(|_| StatusCode::ACCEPTED.into_response());
    let actions = format!("retries: {{ max: 0 }}\n{WITH_INVERSES}");
    for action in ACTIONS {
        let outcome = outcome_of(&agent(&service.url, &actions), action).await;
        assert_eq!(kind_and_code(&outcome), ("unknown", "answer-accepted"));
    }
    for explicit in [
        "statuses: { success: [202] }",
        "statuses: { success: [200-299] }",
        "answers: [{ status: [202], outcome: success }]",
    ] {
        let agent = agent(&service.url, &format!("{explicit}\n{PUT}"));
        let outcome = outcome(&agent).await;
        assert_eq!(kind_and_code(&outcome).0, "success", "{explicit}");
    }
}

#[tokio::test]
async fn the_title_and_the_detail_of_problem_details_explain_a_failure() {
    let service = Service::start().await;
    let agent = agent(&service.url, PUT);
    for (media_type, expected) in [
        ("application/problem+json", "Out of stock: 2 of 3 are left"),
        ("Application/Problem+JSON; charset=utf-8", "Out of stock: 2"),
        ("application/json", "422 Unprocessable Entity: 2 of 3"),
    ] {
        service.answers(move |_| {
            let body = r#"{"title": "Out of stock", "detail": "2 of 3 are left", "status": 422}"#;
            answer(422, &[("content-type", media_type.to_owned())], body)
        });
        let refused = outcome(&agent).await;
        assert_eq!(kind_and_code(&refused), ("permanent", "http-422"));
        assert!(format!("{refused:?}").contains(expected), "{refused:?}");
    }
}

#[tokio::test]
async fn a_date_of_retry_after_counts_by_the_services_own_clock() {
    let service = Service::start().await;
    for (date, requests) in [
        // A century ago, and of its own clock's same second.
        (Some("Sun, 06 Nov 1994 08:49:37 GMT"), 2),
        (Some("Sun, 06 Nov 1994 08:00:00 GMT"), 1),
        (None, 1),
    ] {
        let before = service.asked().len();
        service.answers(move |count| match (count - before, date) {
            (1, Some(date)) => answer(
                503,
                &[
                    ("date", date.to_owned()),
                    ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
                ],
                "",
            ),
            (1, None) => answer(503, &[("retry-after", "3600".to_owned())], ""),
            _ => StatusCode::NO_CONTENT.into_response(),
        });
        outcome(&agent(&service.url, PUT)).await;
        assert_eq!(service.asked().len() - before, requests, "{date:?}");
    }
}

/// Redirects to `to` with this status, unless the request is for that path.
fn redirects(service: &Service, status: u16, to: String) {
    service.answers(move |count| match count {
        1 => answer(status, &[("location", to.clone())], ""),
        _ => StatusCode::NO_CONTENT.into_response(),
    });
}

const SECRET_TEMPLATE: &str = "request: { method: PUT, path: /a, headers: { Authorization: 'Bearer {{input.id}}', X-Other: '1' }, body: { size: '{{input.size}}' }, probe: { method: GET } }";

#[tokio::test]
async fn a_redirect_is_followed_only_if_the_agent_says_so() {
    let service = Service::start().await;
    redirects(&service, 307, "/b".to_owned());
    let refused = outcome(&agent(&service.url, SECRET_TEMPLATE)).await;
    assert_eq!(kind_and_code(&refused), ("permanent", "http-307"));
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn a_redirect_on_the_same_host_carries_method_body_and_credential() {
    let service = Service::start().await;
    for (action, status, requests) in [
        (Action::Run, 307, 2),
        (Action::Run, 308, 2),
        // What these mean for a PUT differs between services.
        (Action::Run, 301, 1),
        (Action::Run, 302, 1),
        (Action::Run, 303, 1),
        (Action::Probe, 302, 2),
        (Action::Probe, 303, 2),
    ] {
        service.asked.lock().unwrap().clear();
        redirects(&service, status, "/b?c=1#d".to_owned());
        let settings = format!("redirects: {{ max: 1 }}\n{SECRET_TEMPLATE}");
        outcome_of(&agent(&service.url, &settings), action).await;
        let asked = service.asked();
        assert_eq!(asked.len(), requests, "{action:?} {status}");
        let [first, last] = [asked.first(), asked.last()].map(Option::unwrap);
        assert_eq!(first.method, last.method);
        assert_eq!(first.body, last.body);
        if requests == 2 {
            assert_eq!(last.uri, "/b?c=1");
        }
        let of = |asked: &Asked| asked.headers.get(AUTHORIZATION).cloned();
        assert_eq!(of(first), of(last));
    }
}

#[tokio::test]
async fn another_host_must_be_named_and_gets_no_credential() {
    let [service, other] = [Service::start().await, Service::start().await];
    let host = other.url.strip_prefix("http://").unwrap();
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "s3cr3t").unwrap();
    let auth = format!(
        "auth: {{ apiKey: {{ header: X-Secret, keyFile: {} }} }}",
        secret.path().display()
    );
    for (hosts, expected) in [
        (format!("[{host}]"), ("success", "")),
        ("[]".to_owned(), ("permanent", "redirect-refused")),
        ("[127.0.0.1]".to_owned(), ("permanent", "redirect-refused")),
        (
            "[other.example]".to_owned(),
            ("permanent", "redirect-refused"),
        ),
    ] {
        service.asked.lock().unwrap().clear();
        redirects(&service, 307, format!("{}/b", other.url));
        let settings =
            format!("{auth}\nredirects: {{ max: 3, hosts: {hosts} }}\n{SECRET_TEMPLATE}");
        let outcome = outcome(&agent(&service.url, &settings)).await;
        assert_eq!(kind_and_code(&outcome), expected, "{hosts}: {outcome:?}");
        assert_eq!(service.asked()[0].headers["x-secret"], "s3cr3t");
    }
    let asked = other.asked();
    let [asked] = &asked[..] else {
        panic!("{} requests", asked.len());
    };
    assert_eq!(asked.body, r#"{"size":2}"#);
    assert!(asked.headers.contains_key("idempotency-key"));
    assert!(asked.headers.contains_key("x-other"));
    for name in ["authorization", "x-secret"] {
        assert!(!asked.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn a_401_of_another_host_does_not_renew_the_credential() {
    let [service, other] = [Service::start().await, Service::start().await];
    other.answers(|_| StatusCode::UNAUTHORIZED.into_response());
    redirects(&service, 307, format!("{}/b", other.url));
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "old").unwrap();
    let settings = format!(
        "auth: {{ bearer: {{ tokenFile: {} }} }}\nredirects: {{ max: 3, hosts: ['{}'] }}\n{PUT}",
        secret.path().display(),
        other.url.strip_prefix("http://").unwrap()
    );
    let agent = agent(&service.url, &settings);
    std::fs::write(secret.path(), "new").unwrap();
    let refused = outcome(&agent).await;
    assert_eq!(kind_and_code(&refused), ("permanent", "http-401"));
    assert_eq!((service.asked().len(), other.asked().len()), (1, 1));
}

#[tokio::test]
async fn endless_and_unreadable_redirects_end() {
    let service = Service::start().await;
    for to in [
        "/a",
        "a/b",
        "//evil.example/",
        "ftp://h/",
        "http://u:p@h/",
        "%",
    ] {
        service.asked.lock().unwrap().clear();
        service.answers(move |_| {
            let mut answer = StatusCode::PERMANENT_REDIRECT.into_response();
            answer.headers_mut().insert(LOCATION, to.parse().unwrap());
            answer
        });
        let settings = format!("redirects: {{ max: 2 }}\n{PUT}");
        let refused = outcome(&agent(&service.url, &settings)).await;
        assert_eq!(kind_and_code(&refused), ("permanent", "redirect-refused"));
        let requests = if to == "/a" { 3 } else { 1 };
        assert_eq!(service.asked().len(), requests, "{to}");
    }
}

#[test]
fn rules_and_redirects_that_cannot_work_are_refused_with_their_line() {
    let put = "request:\n  method: PUT\n  path: /\n  keep: { id: /id }";
    for (settings, expected, line) in [
        ("answers: [{ outcome: success }]".to_owned(), "no condition", 5),
        (
            "answers:\n  - { status: [200], outcome: success }\n  - status: [409]\n    outcome: success\n    code: E1"
                .to_owned(),
            "answers.1.code",
            9,
        ),
        (
            "answers: [{ status: [200], outcome: success, keep: { id: /a } }]".to_owned(),
            "answers.0.keep.id",
            5,
        ),
        (
            "answers: [{ body: { id: 1 }, outcome: success }]".to_owned(),
            "not a JSON pointer",
            5,
        ),
        (
            "answers: [{ headers: { 'a b': 1 }, outcome: success }]".to_owned(),
            "not a header",
            5,
        ),
        ("redirects: { max: 0 }".to_owned(), "redirects.max", 5),
        ("redirects: { max: 11 }".to_owned(), "redirects.max", 5),
        (
            "redirects: { max: 1, hosts: ['https://h/'] }".to_owned(),
            "redirects.hosts",
            5,
        ),
        (
            "redirects: { max: 1 }\nhttp2: true".to_owned(),
            "cannot be used with http2",
            5,
        ),
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n{}",
            indent(&format!("baseUrl: http://h\n{settings}\n{put}"))
        );
        assert_refused_at(&yaml, expected, line);
    }
    for (rule, expected) in [
        ("{ status: [404], outcome: absent }", "for undos and probes"),
        (
            "{ status: [404], outcome: success, keep: { other: /a } }",
            "answers.0.keep.other",
        ),
        (
            "{ status: [404], outcome: transient, keep: { id: /a } }",
            "for the outcome success",
        ),
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n{}",
            indent(&format!("baseUrl: http://h\n{put}\n  answers: [{rule}]"))
        );
        assert_refused_at(&yaml, expected, 9);
    }
    for rule in [
        "{ status: [404], outcome: done }",
        "{ status: [404] }",
        "{ body: { /a: null }, outcome: success }",
        "{ body: { /a: {} }, outcome: success }",
        "{ body: { /a: [] }, outcome: success }",
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n{}",
            indent(&format!("baseUrl: http://h\n{put}\nanswers: [{rule}]"))
        );
        assert!(AgentsFile::from_yaml(&yaml).is_err(), "{rule}");
    }
}

fn assert_refused_at(yaml: &str, expected: &str, line: u64) {
    let file = AgentsFile::from_yaml(yaml).unwrap_or_else(|error| panic!("{yaml}\n{error}"));
    let loaded = file.load(&Variables::default());
    let error = loaded.err().unwrap_or_else(|| panic!("{yaml}"));
    let message = chain(&error);
    assert!(message.contains(expected), "{yaml}\n{message}");
    assert_eq!(error.line(yaml), Some(line), "{yaml}\n{message}");
}
