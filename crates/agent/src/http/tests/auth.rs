//! How an agent authenticates itself.

use std::path::PathBuf;

use axum::Json;
use hyper::header::AUTHORIZATION;
use tempfile::TempDir;
use waybill_test_support::certificate::Certificate;

use super::tls::written;
use super::*;

const SECRET: &str = "s3cr3t-of-the-test";

/// A file with a secret.
struct SecretFile {
    _directory: TempDir,
    path: PathBuf,
}

impl SecretFile {
    fn new(secret: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = Self {
            path: directory.path().join("secret"),
            _directory: directory,
        };
        file.write(secret);
        file
    }

    fn write(&self, secret: &str) {
        std::fs::write(&self.path, secret).unwrap();
    }

    fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

fn authorizations(service: &Service) -> Vec<String> {
    let asked = service.asked();
    let of = |asked: &Asked| {
        let value = asked.headers.get(AUTHORIZATION);
        value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    };
    asked.iter().map(of).collect()
}

/// Answers 401 unless the request has this header.
fn admits(service: &Arc<Service>, authorization: &'static str) {
    let asked = Arc::clone(service);
    service.answers(move |_| {
        let authorizations = authorizations(&asked);
        match authorizations
            .last()
            .is_some_and(|last| last == authorization)
        {
            true => StatusCode::NO_CONTENT.into_response(),
            false => StatusCode::UNAUTHORIZED.into_response(),
        }
    });
}

/// A token endpoint that issues `token-1`, `token-2` and so on.
async fn token_endpoint(expires_in: u64) -> Arc<Service> {
    let endpoint = Service::start().await;
    endpoint.answers(move |count| {
        Json(serde_json::json!({
            "access_token": format!("token-{count}"),
            "token_type": "bearer",
            "expires_in": expires_in,
        }))
        .into_response()
    });
    endpoint
}

fn oauth2(service: &Service, endpoint: &Service, secret: &SecretFile, more: &str) -> HttpAgent {
    let settings = format!(
        "auth:\n  oauth2:\n    tokenUrl: {}/token?tenant=a\n    clientId: waybill\n    \
         clientSecretFile: {}\n    {more}\nretries: {{ max: 0 }}\n{PUT}",
        endpoint.url,
        secret.path()
    );
    agent(&service.url, &settings)
}

#[tokio::test]
async fn a_token_a_password_or_a_key_comes_from_a_file() {
    let service = Service::start().await;
    let secret = SecretFile::new(&format!("{SECRET}\n"));
    let path = secret.path();
    for (auth, header, expected) in [
        (
            format!("bearer: {{ tokenFile: {path} }}"),
            "authorization",
            format!("Bearer {SECRET}"),
        ),
        (
            format!("basic: {{ user: waybill, passwordFile: {path} }}"),
            "authorization",
            "Basic d2F5YmlsbDpzM2NyM3Qtb2YtdGhlLXRlc3Q=".to_owned(),
        ),
        (
            format!("apiKey: {{ header: X-Api-Key, keyFile: {path} }}"),
            "x-api-key",
            SECRET.to_owned(),
        ),
    ] {
        let agent = agent(&service.url, &format!("auth: {{ {auth} }}\n{PUT}"));
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
        let asked = service.asked();
        let value = &asked.last().unwrap().headers[header];
        assert_eq!(value.to_str().unwrap(), expected);
        assert!(!format!("{agent:?}").contains(SECRET));
    }
}

#[tokio::test]
async fn a_changed_file_is_read_again_when_the_service_refuses_the_old_secret() {
    let service = Service::start().await;
    admits(&service, "Bearer new");
    let secret = SecretFile::new("old");
    let bearer = format!(
        "auth: {{ bearer: {{ tokenFile: {} }} }}\n{PUT}",
        secret.path()
    );
    let agent = agent(&service.url, &bearer);
    let refused = outcome(&agent).await;
    assert_eq!(kind_and_code(&refused), ("permanent", "http-401"));
    assert_eq!(service.asked().len(), 1, "there is no other secret to try");
    secret.write("new");
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    let last = authorizations(&service).pop();
    assert_eq!(last.as_deref(), Some("Bearer new"));
}

#[tokio::test]
async fn a_secret_that_the_service_repeats_is_not_passed_on() {
    let service = Service::start().await;
    let secret = SecretFile::new(SECRET);
    for auth in [
        format!("bearer: {{ tokenFile: {} }}", secret.path()),
        format!("basic: {{ user: a, passwordFile: {} }}", secret.path()),
    ] {
        let agent = agent(&service.url, &format!("auth: {{ {auth} }}\n{PUT}"));
        let asked = Arc::clone(&service);
        service.answers(move |_| {
            let headers = format!("{:?}", authorizations(&asked));
            let encoded = format!("no such user: {headers} {SECRET}");
            json(
                403,
                &serde_json::json!({"code": SECRET, "detail": encoded}).to_string(),
            )
        });
        let refused = outcome(&agent).await;
        assert_eq!(kind_and_code(&refused), ("permanent", "http-403"));
        let shown = format!("{refused:?}");
        assert!(shown.contains("no such user"), "{shown}");
        for hidden in [SECRET, "YTpzM2NyM3Q"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }
}

#[tokio::test]
async fn one_access_token_serves_all_calls_until_it_is_renewed_before_its_end() {
    let service = Service::start().await;
    let endpoint = token_endpoint(3600).await;
    let secret = SecretFile::new("p:ss");
    let settings = "scopes: [stock.write, stock.read]\n    audience: https://stock.example";
    let agent = oauth2(&service, &endpoint, &secret, settings);
    let release = endpoint.hold();
    let calls = async { tokio::join!(outcome(&agent), outcome(&agent), outcome(&agent)) };
    let hold = async {
        while endpoint.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        *endpoint.hold.lock().unwrap() = None;
        release.notify_one();
    };
    let ((first, second, third), ()) = tokio::join!(calls, hold);
    for outcome in [first, second, third] {
        assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    }
    assert_eq!(authorizations(&service), ["Bearer token-1"; 3]);
    let asked = endpoint.asked();
    let [asked] = &asked[..] else {
        panic!("{} requests for a token", asked.len());
    };
    assert_eq!(asked.method, Method::POST);
    assert_eq!(asked.uri.path(), "/token");
    assert_eq!(
        asked.body,
        "grant_type=client_credentials&scope=stock.write%20stock.read\
         &audience=https%3A%2F%2Fstock.example"
    );
    // `waybill:p%3Ass`
    let login = asked.headers[AUTHORIZATION].to_str().unwrap();
    assert_eq!(login, "Basic d2F5YmlsbDpwJTNBc3M=");
    assert!(!format!("{agent:?}").contains("token-1"));
}

#[tokio::test]
async fn an_expired_token_is_replaced_before_the_call() {
    let service = Service::start().await;
    let endpoint = token_endpoint(0).await;
    let secret = SecretFile::new(SECRET);
    let agent = oauth2(&service, &endpoint, &secret, "clientAuth: body");
    // A token is used for a second at least.
    let began = Instant::now();
    while authorizations(&service).last().map(String::as_str) != Some("Bearer token-2") {
        assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it is not renewed"
        );
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(authorizations(&service)[0], "Bearer token-1");
    let body = &endpoint.asked()[0].body;
    assert!(
        body.ends_with(&format!("&client_id=waybill&client_secret={SECRET}")),
        "{body}"
    );
    assert_eq!(authorizations(&endpoint), ["", ""]);
}

#[tokio::test]
async fn a_refused_access_token_is_replaced_once() {
    let service = Service::start().await;
    let endpoint = token_endpoint(3600).await;
    let secret = SecretFile::new(SECRET);
    let agent = oauth2(&service, &endpoint, &secret, "");
    admits(&service, "Bearer token-2");
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    assert_eq!(
        authorizations(&service),
        ["Bearer token-1", "Bearer token-2"]
    );

    // The service refuses every token now: no call requests another one.
    admits(&service, "Bearer token-99");
    for _ in 0..3 {
        let refused = outcome(&agent).await;
        assert_eq!(kind_and_code(&refused), ("permanent", "http-401"));
    }
    assert_eq!(endpoint.asked().len(), 2);
}

#[tokio::test]
async fn without_an_access_token_a_step_fails_without_effect_and_the_breaker_stays_closed() {
    let service = Service::start().await;
    let endpoint = Service::start().await;
    let answer = format!(r#"{{"error": "invalid_client", "error_description": "not {SECRET}"}}"#);
    endpoint.answers(move |_| json(401, &answer));
    let secret = SecretFile::new(SECRET);
    let settings = "breaker: { calls: 1 }";
    let agent = oauth2(&service, &endpoint, &secret, &format!("\n{settings}"));
    let began = Instant::now();
    for _ in 0..3 {
        let failed = outcome(&agent).await;
        assert_eq!(kind_and_code(&failed), ("transient", "token-unavailable"));
        let shown = format!("{failed:?}");
        let named = format!("no access token from {}/token: ", endpoint.url);
        assert!(shown.contains(&named), "{shown}");
        assert!(shown.contains("invalid_client, not (redacted)"), "{shown}");
        assert!(!shown.contains("tenant=a"), "{shown}");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    let asked = endpoint.asked().len();
    assert!(
        asked <= 1 + seconds,
        "a failure counts for a second: {asked}"
    );
    assert!(service.asked().is_empty());
}

#[tokio::test]
async fn a_call_waits_for_a_slow_token_endpoint_until_its_timeout() {
    let service = Service::start().await;
    let endpoint = token_endpoint(3600).await;
    let _release = endpoint.hold();
    let secret = SecretFile::new(SECRET);
    let agent = oauth2(&service, &endpoint, &secret, "timeout: 50ms");
    let failed = outcome(&agent).await;
    assert_eq!(kind_and_code(&failed), ("transient", "token-unavailable"));
    assert!(format!("{failed:?}").contains("did not answer in time"));
}

#[tokio::test]
async fn a_call_that_gets_no_token_before_its_deadline_had_no_effect() {
    let service = Service::start().await;
    let endpoint = token_endpoint(3600).await;
    let _release = endpoint.hold();
    let secret = SecretFile::new(SECRET);
    let agent = oauth2(&service, &endpoint, &secret, "timeout: 1m");
    let sent = Instant::now();
    let call = StepCall {
        request: request().build(),
        sent,
        deadline: sent + Duration::from_millis(50),
    };
    let failed = agent.run(&call).await;
    assert_eq!(kind_and_code(&failed), ("transient", "token-unavailable"));
    assert!(service.asked().is_empty());
}

#[tokio::test]
async fn a_credential_that_a_service_repeats_is_redacted_as_json_escapes_it_too() {
    let service = Service::start().await;
    service.answers(|_| json(422, r#"{"detail": "wrong: s3\"cr\\3t"}"#));
    let secret = SecretFile::new(r#"s3"cr\3t"#);
    let auth = format!("bearer: {{ tokenFile: {} }}", secret.path());
    let agent = agent(&service.url, &format!("auth:\n  {auth}\n{PUT}"));
    let shown = format!("{:?}", outcome(&agent).await);
    assert!(shown.contains("(redacted)"), "{shown}");
    assert!(!shown.contains("cr"), "{shown}");
}

#[tokio::test]
async fn responses_that_hold_no_usable_token_are_refused() {
    let service = Service::start().await;
    let secret = SecretFile::new(SECRET);
    for body in [
        "<html>",
        "{}",
        r#"{"access_token": "abc-1", "token_type": "mac"}"#,
        r#"{"access_token": "", "token_type": "bearer"}"#,
        r#"{"access_token": "abc-1\r\nX-Evil: 1", "token_type": "bearer"}"#,
        r#"{"access_token": 7, "token_type": "bearer"}"#,
    ] {
        let endpoint = Service::start().await;
        endpoint.answers(move |_| json(200, body));
        let agent = oauth2(&service, &endpoint, &secret, "");
        let failed = outcome(&agent).await;
        assert_eq!(kind_and_code(&failed), ("transient", "token-unavailable"));
        assert!(!format!("{failed:?}").contains("abc-1"), "{failed:?}");
    }
    assert!(service.asked().is_empty());
}

#[test]
fn what_cannot_authenticate_is_refused_with_the_line_of_the_key() {
    let files = tempfile::tempdir().unwrap();
    let one = written(&Certificate::new(), files.path(), "one");
    let other = written(&Certificate::new(), files.path(), "other");
    let mismatch = format!(
        "baseUrl: https://h\ntls:\n  certFile: {}\n  keyFile: {}\n{PUT}",
        one.0.display(),
        other.1.display()
    );
    let http = |rest: &str| format!("baseUrl: http://h\n{rest}");
    let secret = SecretFile::new(SECRET);
    let path = secret.path();
    let put = |header: &str| {
        http(&format!(
            "request:\n  method: PUT\n  path: /\n  headers:\n    X-One: '1'\n    {header}"
        ))
    };
    // The line counts from `baseUrl`, which is line 4.
    for (settings, expected, line) in [
        (put("Authorization: Bearer ${TOKEN}"), "is not replaced", 10),
        (put("Authorization: Bearer abc"), "tokenFile", 10),
        (put("authorization: Basic YTpi"), "auth: { bearer", 10),
        (put("X-Api-Key: abc"), "apiKey", 10),
        (put("X-Trace: ${TRACE}"), "is not replaced", 10),
        (
            http(
                "steps:\n  a.b:\n    method: PUT\n    path: /\n    probe:\n      method: GET\n      \
                  headers:\n        Authorization: x",
            ),
            "steps.a.b.probe.headers.Authorization",
            12,
        ),
        (
            http(&format!(
                "auth: {{ bearer: {{ tokenFile: /nowhere/at-all }} }}\n{PUT}"
            )),
            "/nowhere/at-all cannot be read",
            5,
        ),
        (
            http(&format!(
                "auth: {{ basic: {{ user: 'a:b', passwordFile: {path} }} }}\n{PUT}"
            )),
            "auth.basic.user",
            5,
        ),
        (
            http(&format!(
                "auth: {{ bearer: {{ tokenFile: {path} }} }}\nidempotencyKeyHeader: \
                 Authorization\n{PUT}"
            )),
            "`auth` sets the header authorization",
            6,
        ),
        (
            http(&format!(
                "auth:\n  oauth2:\n    tokenUrl: http://id.example/token\n    clientId: a\n    \
                 clientSecretFile: {path}\n{PUT}"
            )),
            "must begin with https://",
            7,
        ),
        (
            http(&format!(
                "auth:\n  oauth2:\n    clientId: a\n    clientSecretFile: {path}\n    tokenUrl: \
                 https://a:b@id.example/\n{PUT}"
            )),
            "no login",
            9,
        ),
        (
            http(&format!("tls: {{ caFile: {path} }}\n{PUT}")),
            "https://",
            5,
        ),
        (
            format!("baseUrl: https://h\ntls: {{ caFile: {path} }}\n{PUT}"),
            "no certificate",
            5,
        ),
        (
            format!("baseUrl: https://h\ntls: {{ certFile: {path} }}\n{PUT}"),
            "belong together",
            5,
        ),
        (mismatch, "does not match", 6),
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n{}",
            indent(&settings)
        );
        let file = AgentsFile::from_yaml(&yaml).unwrap_or_else(|error| panic!("{yaml}\n{error}"));
        let error = file
            .load(&Variables::default())
            .err()
            .unwrap_or_else(|| panic!("{yaml}"));
        let message = chain(&error);
        assert!(message.contains(expected), "{yaml}\n{message}");
        assert!(!message.contains(SECRET), "{message}");
        assert_eq!(error.line(&yaml), Some(line), "{yaml}\n{message}");
    }
}

#[test]
fn exactly_one_way_to_authenticate_is_accepted() {
    for auth in [
        "{}",
        "{ bearer: { tokenFile: a }, basic: { user: a, passwordFile: b } }",
        "{ bearer: { token: abc } }",
        "{ digest: {} }",
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n      baseUrl: http://h\n      auth: {auth}\n{}",
            indent(PUT)
        );
        assert!(AgentsFile::from_yaml(&yaml).is_err(), "{yaml}");
    }
}

#[test]
fn the_settings_of_a_file_can_be_checked_without_its_secrets() {
    let yaml = format!(
        "agents:\n  - name: package\n    http:\n      baseUrl: http://h\n      auth: {{ bearer: {{ \
         tokenFile: /nowhere/at-all }} }}\n{}",
        indent(PUT)
    );
    let file = AgentsFile::from_yaml(&yaml).unwrap();
    file.check_settings(&Variables::default()).unwrap();
    assert!(file.load(&Variables::default()).is_err());
}
