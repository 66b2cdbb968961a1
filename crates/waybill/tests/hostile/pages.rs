//! Web pages that attack through a user's browser.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn dns_rebinding_reads_and_changes_nothing() {
    let site = Site::start();
    site.deliver("private").await;
    for (listener, path) in [
        ("http", "/v1/operations/private"),
        ("http", "/v1/operations"),
        ("admin", "/schedulers"),
        ("admin", "/metrics"),
        ("admin", "/backup"),
    ] {
        let url = site.url(listener, path);
        for method in [reqwest::Method::GET, reqwest::Method::POST] {
            let request = site.http.request(method, &url);
            let rebound = request.header("host", "attacker.example").send();
            let rebound = rebound.await.unwrap();
            assert_eq!(rebound.status(), StatusCode::MISDIRECTED_REQUEST, "{url}");
            assert!(!rebound.text().await.unwrap().contains("Harbour Street"));
        }
    }
    let named = site.http.get(site.url("http", "/v1/operations/private"));
    let named = named.header("host", "waybill.example").send();
    assert_eq!(named.await.unwrap().status(), StatusCode::OK, "configured");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_changes_nothing() {
    let site = Site::start();
    site.deliver("finished").await;
    let verb = |name: &str| site.url("http", &format!("/v1/operations/finished:{name}"));
    for name in ["cancel", "resubmit", "compensate", "abandon"] {
        // What a page may send without a preflight request: no body, or one of three media types.
        let bare = site.http.post(verb(name)).send().await.unwrap();
        assert_eq!(bare.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{name}");
        for (header, value) in [
            ("origin", "http://attacker.example"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let request = site.http.post(verb(name)).json(&json!({}));
            let foreign = request.header(header, value).send().await.unwrap();
            assert_eq!(foreign.status(), StatusCode::FORBIDDEN, "{name} {header}");
        }
    }
    let backup = site.http.post(site.url("admin", "/backup"));
    let bare = backup.try_clone().expect("it has no body").send();
    assert_eq!(
        bare.await.unwrap().status(),
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let backup = backup.header("origin", "http://attacker.example").send();
    assert_eq!(backup.await.unwrap().status(), StatusCode::FORBIDDEN);
    let log = site.http.put(site.url("admin", "/log"));
    let log = log.header("sec-fetch-site", "cross-site").send();
    assert_eq!(log.await.unwrap().status(), StatusCode::FORBIDDEN);
}
