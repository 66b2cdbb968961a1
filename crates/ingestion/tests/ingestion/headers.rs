//! Headers that every answer may have: request ids, and the permission of web pages.

use reqwest::header::{AUTHORIZATION, HOST, ORIGIN, VARY};
use reqwest::{Method, Response, StatusCode};
use serde_json::json;
use waybill_http::{Cors, Hosts};
use waybill_ingestion::Guards;

use super::access::Guarded;
use super::setup::*;

const X_REQUEST_ID: &str = "x-request-id";
const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const CONSOLE: &str = "https://console.example";

fn id(response: &Response) -> String {
    let mut ids = response.headers().get_all(X_REQUEST_ID).iter();
    let id = ids.next().expect("every answer has an id");
    assert!(ids.next().is_none(), "one id");
    id.to_str().unwrap().to_owned()
}

/// Guards of a listener without authentication that permits pages of this origin.
fn permitting(origin: &str) -> Guards {
    Guards {
        hosts: Hosts::local(&[], false),
        cors: Cors::new(&[origin.to_owned()]),
        ..Guards::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_the_id_of_its_request() {
    let setup = Setup::start().await;
    let accepted = setup
        .post(OPERATIONS, order("o-1", 1))
        .header(X_REQUEST_ID, "shop/checkout-17");
    let accepted = accepted.send().await.unwrap();
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    assert_eq!(id(&accepted), "shop/checkout-17");

    let mut fresh = Vec::new();
    for path in ["/openapi.json", "/nothing", OPERATIONS] {
        let request = setup.http.get(setup.url(path));
        fresh.push(id(&request.send().await.unwrap()));
    }
    let malformed = setup.http.get(setup.url("/nothing"));
    let malformed = malformed.header(X_REQUEST_ID, "a\"}, {\"forged");
    fresh.push(id(&malformed.send().await.unwrap()));
    fresh.sort();
    fresh.dedup();
    assert_eq!(fresh.len(), 4, "{fresh:?}");

    let refused = setup
        .raw(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
        .await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(
        refused.to_lowercase().contains("\r\nx-request-id: "),
        "{refused}"
    );
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_problem_names_the_id_of_its_request() {
    let setup = Setup::start().await;
    let refused = setup.post(OPERATIONS, json!({"workflow": 1}));
    let refused = refused.header(X_REQUEST_ID, "abc-1").send().await.unwrap();
    let (status, problem) = answer(refused).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["requestId"], "abc-1");

    let unknown = setup.http.get(setup.url("/v1/operations/none"));
    let unknown = unknown.send().await.unwrap();
    let made = id(&unknown);
    assert_eq!(answer(unknown).await.1["requestId"], made);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_listed_origin_may_use_the_api() {
    let setup = Setup::guarded(permitting(CONSOLE), |_| {}).await;
    let from = |request: reqwest::RequestBuilder, origin: &str| {
        let request = request.header(ORIGIN, origin);
        request.header("sec-fetch-site", "cross-site")
    };
    let post = |origin: &str| from(setup.post(OPERATIONS, order("o-1", 1)), origin);
    let accepted = post(CONSOLE).send().await.unwrap();
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    assert_eq!(accepted.headers()[ALLOW_ORIGIN], CONSOLE);
    let exposed = accepted.headers()["access-control-expose-headers"].to_str();
    let exposed = exposed.unwrap();
    for name in ["location", "etag", "retry-after", X_REQUEST_ID] {
        assert!(
            exposed.split(", ").any(|it| it == name),
            "{name}: {exposed}"
        );
    }

    let other = post("https://other.example").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    assert!(!other.headers().contains_key(ALLOW_ORIGIN));

    let unknown = from(setup.http.get(setup.url("/v1/operations/none")), CONSOLE);
    let unknown = unknown.send().await.unwrap();
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(unknown.headers()[ALLOW_ORIGIN], CONSOLE, "refusals, too");
    assert_eq!(unknown.headers()[VARY], "Origin");

    let rebound = post(CONSOLE).header(HOST, "console.example").send().await;
    assert_eq!(rebound.unwrap().status(), StatusCode::MISDIRECTED_REQUEST);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_request_needs_no_token_and_reveals_nothing() {
    let guards = Guards {
        cors: Cors::new(&[CONSOLE.to_owned()]),
        ..Guards::default()
    };
    let guarded = Guarded::guarded(guards, |_| {}).await;
    let preflight = |path: &str, origin: &str| {
        let options = guarded
            .setup
            .http
            .request(Method::OPTIONS, guarded.setup.url(path));
        options
            .header(ORIGIN, origin)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,content-type",
            )
    };
    for path in [OPERATIONS, "/v1/operations/some", "/nothing"] {
        let answer = preflight(path, CONSOLE).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT, "{path}");
        assert_eq!(answer.headers()[ALLOW_ORIGIN], CONSOLE);
        let allowed = answer.headers()["access-control-allow-headers"].to_str();
        let allowed = allowed.unwrap().to_owned();
        for name in ["authorization", "content-type", "idempotency-key"] {
            assert!(allowed.split(", ").any(|it| it == name), "{name}");
        }
        let methods = answer.headers()["access-control-allow-methods"].to_str();
        assert!(methods.unwrap().contains("DELETE"));
        assert!(
            !answer
                .headers()
                .contains_key("access-control-allow-credentials")
        );
    }
    let other = preflight(OPERATIONS, "https://other.example").send().await;
    let other = other.unwrap();
    assert_eq!(other.status(), StatusCode::UNAUTHORIZED);
    assert!(!other.headers().contains_key(ALLOW_ORIGIN));

    let post = guarded.setup.post(OPERATIONS, order("o-1", 1));
    let without_token = post.header(ORIGIN, CONSOLE).send().await.unwrap();
    assert_eq!(without_token.status(), StatusCode::UNAUTHORIZED);
    let post = guarded.setup.post(OPERATIONS, order("o-1", 1));
    let bearer = format!("Bearer {}", guarded.token("acme"));
    let with_token = post.header(ORIGIN, CONSOLE).header(AUTHORIZATION, bearer);
    let with_token = with_token.send().await.unwrap();
    assert_eq!(with_token.status(), StatusCode::ACCEPTED);
    guarded.setup.ingestion.shutdown().await;
}
