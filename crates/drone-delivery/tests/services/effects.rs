//! The reaction of each service to requests, repeats and invalid requests.

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use waybill_drone_delivery::services::{SLOTS_MAX, ServicesSettings};

use crate::site::{Site, code, config, directory, entry, locations};

#[tokio::test]
async fn an_effect_is_made_once_and_a_repeat_gets_the_same_answer() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    for (path, step) in [
        ("/api/packages/p1", "package"),
        ("/api/DroneDeliveries/d1", "drone"),
        ("/api/Deliveries/d1", "delivery"),
    ] {
        let key = format!("op-1/{step}");
        let first = site.send("PUT", path, &key, json!({})).await;
        assert_eq!(first.status(), StatusCode::CREATED);
        let again = site.send("PUT", path, &key, json!({ "other": 1 })).await;
        assert_eq!(again.status(), StatusCode::CREATED);
        assert_eq!(
            first.bytes().await.expect("a body"),
            again.bytes().await.expect("a body")
        );
    }
    let other = site
        .send("PUT", "/api/packages/p1", "op-2/package", json!({}))
        .await;
    assert_eq!(other.status(), StatusCode::CREATED);
    assert_eq!(
        site.entries("op-1").await,
        [
            entry("package", "run", false),
            entry("package", "run", true),
            entry("drone", "run", false),
            entry("drone", "run", true),
            entry("delivery", "run", false),
            entry("delivery", "run", true),
        ]
    );
    let counts = |effects: u32| {
        json!({
            "run": effects, "compensate": 0, "standing": effects, "tombstones": 0, "refused": 0,
            "repeats": 1, "double": 0
        })
    };
    assert_eq!(
        site.get("/ledger/summary").await,
        json!({
            "operations": 2, "complete": 1, "partial": 1, "halfUndone": 0, "undone": 0,
            "effects": { "delivery": counts(1), "drone": counts(1), "package": counts(2) },
            "repeats": 3, "tombstones": 0, "refused": 0, "double": 0
        })
    );
    site.services.shutdown().await;
}

#[tokio::test]
async fn accounts_are_checked_without_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    for path in ["/api/Account/myowner", "/api/account/my%20owner"] {
        assert_eq!(site.get(path).await, json!({ "suspended": false }));
    }
    for path in ["/api/Account/suspended-7", "/api/Account/%73uspended-7"] {
        let answer = site.request("GET", path).send().await.expect("an answer");
        assert_eq!(code(answer).await, (403, "owner-suspended".to_owned()));
    }
    assert_eq!(site.get("/ledger/summary").await["operations"], 0);
}

#[tokio::test]
async fn third_party_transport_is_booked_only_if_needed() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/ThirdPartyDeliveries/op";
    let key = "op-near/third-party";
    for _ in 0..2 {
        let answer = site.send("PUT", path, key, locations("a", "b")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(answer, json!({ "required": false }));
    }
    assert_eq!(site.entries("op-near").await, []);
    for (operation, body) in [
        ("op-1", locations("a remote island", "b")),
        ("op-2", locations("a", "remote")),
        (
            "op-3",
            json!({ "pickupLocation": "a", "dropoffLocation": "\u{e4}remote\n" }),
        ),
    ] {
        let key = format!("{operation}/third-party");
        let answer = site.send("PUT", path, &key, body).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(answer["required"], true);
        assert_eq!(
            site.entries(operation).await,
            [entry("third-party", "run", false)]
        );
    }
    for body in [json!([]), json!({ "pickupLocation": "a" })] {
        let answer = site.send("PUT", path, "op-4/third-party", body).await;
        assert_eq!(code(answer).await, (422, "locations-missing".to_owned()));
    }
}

#[tokio::test]
async fn prefixes_and_markers_come_from_the_configuration() {
    let directory = directory();
    let site = Site::start_with(ServicesSettings {
        suspended_prefix: "bad".to_owned(),
        remote_marker: String::new(),
        ..config(directory.path())
    })
    .await;
    site.get("/api/Account/suspended-7").await;
    let answer = site.request("GET", "/api/Account/bad1").send().await;
    assert_eq!(answer.expect("an answer").status(), StatusCode::FORBIDDEN);
    let path = "/api/ThirdPartyDeliveries/x";
    let answer = site
        .send("PUT", path, "op/third-party", locations("remote", "b"))
        .await;
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_past_its_complete_by_is_not_performed() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    for (complete_by, status, expected) in [
        ("2001-01-01T00:00:00Z", 503, "complete-by-past"),
        ("soon", 400, "complete-by-invalid"),
    ] {
        let answer = site
            .request("PUT", "/api/packages/p")
            .header("Idempotency-Key", "op/package")
            .header("Waybill-Complete-By", complete_by)
            .send()
            .await;
        let answer = code(answer.expect("an answer")).await;
        assert_eq!(answer, (status, expected.to_owned()));
    }
    assert_eq!(site.entries("op").await, []);
    let in_time = site
        .request("PUT", "/api/packages/p")
        .header("Idempotency-Key", "op/package")
        .header("Waybill-Complete-By", "2100-01-01T00:00:00.123456Z")
        .send()
        .await;
    assert_eq!(in_time.expect("an answer").status(), StatusCode::CREATED);
}

#[tokio::test]
async fn steps_beyond_the_limit_of_the_ledger_are_refused() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/packages/p";
    for number in 0..SLOTS_MAX {
        let key = format!("op/step-{number}");
        let answer = site.send("PUT", path, &key, json!({})).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    for method in ["PUT", "DELETE"] {
        let answer = site.send(method, path, "op/one-more", json!({})).await;
        assert_eq!(code(answer).await, (422, "too-many-steps".to_owned()));
    }
    let known = site.send("PUT", path, "op-2/step-0", json!({})).await;
    assert_eq!(known.status(), StatusCode::CREATED);
    assert_eq!(site.get("/ledger/summary").await["double"], 0);
}

#[tokio::test]
async fn concurrent_duplicates_have_one_effect_also_over_http2() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let http2 = Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let url = site.url("/api/Deliveries/d");
    let twins: Vec<_> = (0..32)
        .map(|number| {
            let client = if number % 2 == 0 {
                &http2
            } else {
                &site.client
            };
            let request = client.put(&url).header("Idempotency-Key", "op/delivery");
            tokio::spawn(request.send())
        })
        .collect();
    for twin in twins {
        let answer = twin.await.expect("no panic").expect("an answer");
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    let entries = site.entries("op").await;
    assert_eq!(entries.len(), 32);
    assert_eq!(entries.iter().filter(|(_, _, repeat)| !repeat).count(), 1);
}

#[tokio::test]
async fn bad_requests_get_a_problem_and_have_no_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let long = format!("op/{}", "x".repeat(300));
    let cases = [
        ("GET", "/", "op/s", 404, "not-found"),
        ("GET", "/api/packages", "op/s", 404, "not-found"),
        ("PUT", "/api/packages/", "op/s", 404, "not-found"),
        ("PUT", "/api/packages/a/b", "op/s", 404, "not-found"),
        ("PUT", "/api/parcels/a", "op/s", 404, "not-found"),
        ("POST", "/api/packages/a", "op/s", 405, "method-not-allowed"),
        ("POST", "/api/Account/a", "op/s", 405, "method-not-allowed"),
        ("GET", "/api/Account/%ff", "op/s", 400, "owner-id-invalid"),
        (
            "PUT",
            "/api/packages/a",
            "op",
            400,
            "idempotency-key-invalid",
        ),
        (
            "PUT",
            "/api/packages/a",
            "op/",
            400,
            "idempotency-key-invalid",
        ),
        (
            "PUT",
            "/api/packages/a",
            "\"op\"/s",
            400,
            "idempotency-key-invalid",
        ),
        (
            "DELETE",
            "/api/packages/a",
            &long,
            400,
            "idempotency-key-invalid",
        ),
        (
            "GET",
            "/api/packages/a",
            "op",
            400,
            "idempotency-key-invalid",
        ),
        ("GET", "/ledger?operation", "op/s", 400, "query-unknown"),
        ("GET", "/ledger?op=1", "op/s", 400, "query-unknown"),
        (
            "GET",
            "/ledger/operations?x=1",
            "op/s",
            400,
            "query-unknown",
        ),
        (
            "GET",
            "/ledger/operations?after=%ff",
            "op/s",
            400,
            "query-unknown",
        ),
        (
            "GET",
            "/ledger/operations?limit=0",
            "op/s",
            400,
            "limit-invalid",
        ),
        (
            "GET",
            "/ledger/operations?limit=10001",
            "op/s",
            400,
            "limit-invalid",
        ),
        (
            "GET",
            "/ledger/operations?limit=all",
            "op/s",
            400,
            "limit-invalid",
        ),
        (
            "GET",
            "/ledger/operations?after=op",
            "op/s",
            404,
            "operation-unknown",
        ),
        (
            "POST",
            "/ledger/operations",
            "op/s",
            405,
            "method-not-allowed",
        ),
        ("DELETE", "/ledger", "op/s", 405, "method-not-allowed"),
        ("POST", "/faults/drone", "op/s", 405, "method-not-allowed"),
        ("GET", "/faults/drones", "op/s", 404, "service-unknown"),
    ];
    for (method, path, key, status, expected) in cases {
        let answer = site.send(method, path, key, json!({})).await;
        let allow = answer.headers().get("allow").cloned();
        assert_eq!(allow.is_some(), status == 405, "{method} {path}");
        assert_eq!(
            code(answer).await,
            (status, expected.to_owned()),
            "{method} {path} {key}"
        );
    }
    for method in ["PUT", "DELETE", "GET"] {
        let no_key = site.request(method, "/api/packages/a").send().await;
        assert_eq!(
            code(no_key.expect("an answer")).await,
            (400, "idempotency-key-missing".to_owned())
        );
    }
    let large = "x".repeat(70 * 1024);
    let large = site
        .send("PUT", "/api/packages/a", "op/s", json!(large))
        .await;
    assert_eq!(code(large).await, (413, "body-too-large".to_owned()));
    assert_eq!(site.get("/ledger/summary").await["operations"], 0);
}
