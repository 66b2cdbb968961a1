//! Each fault has its effect on each kind of request.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};
use waybill_drone_delivery::services::{Faults, Services};

use crate::site::{SILENCE, Site, code, config, directory, entry};

#[tokio::test]
async fn a_page_of_another_origin_sets_no_faults() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let own = site.url("");
    let own_host = own.trim_start_matches("http://").trim_end_matches('/');
    let put = async |host: &str, origin: Option<&str>| {
        let mut request = site
            .request("PUT", "/faults/drone")
            .header("host", host)
            .json(&json!({ "errorRate": 1 }));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap()
    };
    let foreign = (403, "foreign-origin".to_owned());
    let page = put(own_host, Some("http://evil.example")).await;
    assert_eq!(code(page).await, foreign);
    // A host name of the foreign page that resolves to this machine.
    let rebound = put("evil.example", Some("http://evil.example")).await;
    assert_eq!(code(rebound).await, foreign);
    assert_eq!(site.get("/faults/drone").await["errorRate"], 0.0);

    // The services' own pages, and programs, whatever host name they use.
    let own_origin = format!("http://{own_host}");
    assert!(put(own_host, Some(&own_origin)).await.status().is_success());
    assert!(put("services.example", None).await.status().is_success());
}

#[tokio::test]
async fn errors_have_no_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "errorRate": 1 })).await;
    for method in ["PUT", "DELETE", "GET"] {
        let answer = site
            .send(method, "/api/packages/p", "op/package", json!({}))
            .await;
        assert_eq!(code(answer).await, (503, "service-error".to_owned()));
    }
    let drone = site
        .send("PUT", "/api/DroneDeliveries/d", "op/drone", json!({}))
        .await;
    assert_eq!(drone.status(), StatusCode::CREATED);
    site.faults("package", json!({ "errorRate": 0 })).await;
    let answer = site
        .send("PUT", "/api/packages/p", "op/package", json!({}))
        .await;
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(
        site.entries("op").await,
        [entry("drone", "run", false), entry("package", "run", false)]
    );
}

#[tokio::test]
async fn refusals_have_no_effect_and_never_affect_performed_steps() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/Deliveries/d";
    site.send("PUT", path, "op-1/delivery", json!({})).await;
    site.faults("delivery", json!({ "refuseRate": 1.0 })).await;
    let refused = site.send("PUT", path, "op-2/delivery", json!({})).await;
    assert_eq!(code(refused).await, (422, "refused".to_owned()));
    let repeat = site.send("PUT", path, "op-1/delivery", json!({})).await;
    assert_eq!(repeat.status(), StatusCode::CREATED);
    let made = site.send("GET", path, "op-1/delivery", json!(null)).await;
    assert_eq!(made.status(), StatusCode::OK);
    let not_made = site.send("GET", path, "op-2/delivery", json!(null)).await;
    assert_eq!(code(not_made).await, (422, "refused".to_owned()));
    for key in ["op-1/delivery", "op-2/delivery"] {
        let undo = site.send("DELETE", path, key, json!(null)).await;
        assert_eq!(undo.status(), StatusCode::NO_CONTENT);
        let undone = site.send("GET", path, key, json!(null)).await;
        assert_eq!(code(undone).await, (404, "not-performed".to_owned()));
    }
    assert_eq!(site.entries("op-2").await, []);

    site.faults("account", json!({ "refuseRate": 1.0 })).await;
    let account = site.request("GET", "/api/Account/o").send().await;
    assert_eq!(
        code(account.expect("an answer")).await,
        (422, "refused".to_owned())
    );
}

#[tokio::test]
async fn a_key_is_refused_each_time_or_never() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("drone", json!({ "refuseRate": 0.5 })).await;
    let mut refused = 0;
    for number in 0..100 {
        let key = format!("op-{number}/drone");
        let path = "/api/DroneDeliveries/d";
        let first = site.send("PUT", path, &key, json!({})).await.status();
        let second = site.send("PUT", path, &key, json!({})).await.status();
        assert_eq!(first, second, "{key}");
        refused += u32::from(first == StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert!((20..80).contains(&refused), "{refused} of 100");
}

#[tokio::test]
async fn a_hang_sends_no_answer_and_has_no_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "hangRate": 1 })).await;
    for method in ["PUT", "DELETE", "GET"] {
        assert_unanswered(&site, method).await;
    }
    assert_eq!(site.all_entries("op").await, []);
}

#[tokio::test]
async fn do_then_time_out_has_an_effect_and_sends_no_answer() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "doThenTimeoutRate": 1 }))
        .await;
    assert_unanswered(&site, "PUT").await;
    assert_eq!(site.entries("op").await, [entry("package", "run", false)]);
    assert_unanswered(&site, "GET").await;
    assert_unanswered(&site, "DELETE").await;
    assert_eq!(
        site.entries("op").await,
        [
            entry("package", "run", false),
            entry("package", "compensate", false)
        ]
    );
}

async fn assert_unanswered(site: &Site, method: &str) {
    let answer = site
        .request(method, "/api/packages/p")
        .header("Idempotency-Key", "op/package")
        .timeout(SILENCE)
        .send()
        .await;
    assert!(answer.expect_err("no answer").is_timeout(), "{method}");
}

#[tokio::test]
async fn latency_also_applies_to_undos_and_probes() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "latencyMs": 60 })).await;
    for (method, status) in [("PUT", 201), ("GET", 200), ("DELETE", 204)] {
        let begin = Instant::now();
        let answer = site
            .send(method, "/api/packages/p", "op/package", json!(null))
            .await;
        assert_eq!(answer.status().as_u16(), status);
        assert!(begin.elapsed() >= Duration::from_millis(60), "{method}");
    }
}

#[tokio::test]
async fn a_refused_undo_keeps_its_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/DroneDeliveries/d";
    site.send("PUT", path, "op-1/drone", json!({})).await;
    site.send("DELETE", path, "op-1/drone", json!(null)).await;
    site.faults("drone", json!({ "undoRefuseRate": 1 })).await;
    let made = site.send("PUT", path, "op-2/drone", json!({})).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    for key in ["op-2/drone", "op-3/drone"] {
        let refused = site.send("DELETE", path, key, json!(null)).await;
        assert_eq!(code(refused).await, (409, "undo-refused".to_owned()));
    }
    let probed = site.send("GET", path, "op-2/drone", json!(null)).await;
    assert_eq!(probed.status(), StatusCode::OK);
    let again = site.send("DELETE", path, "op-1/drone", json!(null)).await;
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    assert_eq!(site.all_entries("op-3").await, []);

    site.faults("drone", json!({ "undoRefuseRate": 0 })).await;
    let undone = site.send("DELETE", path, "op-2/drone", json!(null)).await;
    assert_eq!(undone.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        site.all_entries("op-2").await,
        [("drone".to_owned(), "made"), ("drone".to_owned(), "undone")]
    );
}

#[tokio::test]
async fn an_undo_is_refused_always_or_never() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let rates = json!({ "refuseRate": 0.5, "undoRefuseRate": 0.5 });
    site.faults("drone", rates).await;
    let path = "/api/DroneDeliveries/d";
    let (mut made, mut refused) = (0, 0);
    for number in 0..200 {
        let key = format!("op-{number}/drone");
        let forward = site.send("PUT", path, &key, json!({})).await.status();
        let first = site.send("DELETE", path, &key, json!(null)).await.status();
        let second = site.send("DELETE", path, &key, json!(null)).await.status();
        assert_eq!(first, second, "{key}");
        if forward == StatusCode::CREATED {
            made += 1;
            refused += u32::from(first == StatusCode::CONFLICT);
        }
    }
    assert!(made > 40, "{made} of 200");
    assert!(
        (made / 5..made * 4 / 5).contains(&refused),
        "{refused} of {made}"
    );
}

#[tokio::test]
async fn a_slow_service_performs_even_for_a_client_that_disconnected() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "latencyMs": 400, "jitterMs": 50 }))
        .await;
    let begin = Instant::now();
    let answer = site
        .request("PUT", "/api/packages/p")
        .header("Idempotency-Key", "op/package")
        .timeout(Duration::from_millis(50))
        .send()
        .await;
    assert!(answer.expect_err("no answer in time").is_timeout());
    site.wait_for_entries("op", 1).await;
    assert!(begin.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn hanging_requests_do_not_hold_up_the_shutdown() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "doThenTimeoutRate": 1 }))
        .await;
    let hanging = tokio::spawn(
        site.request("PUT", "/api/packages/p")
            .header("Idempotency-Key", "op/package")
            .send(),
    );
    site.wait_for_entries("op", 1).await;
    let begin = Instant::now();
    site.services.shutdown().await;
    assert!(begin.elapsed() < Duration::from_secs(4));
    assert!(hanging.await.expect("no panic").is_err());
}

#[tokio::test]
async fn put_changes_the_named_faults_and_delete_resets_all() {
    let directory = directory();
    let mut config = config(directory.path());
    config.faults.drone = Faults {
        latency_ms: 3,
        ..Faults::default()
    };
    let site = Site::start_with(config).await;
    site.faults("drone", json!({ "errorRate": 0.25 })).await;
    site.faults("drone", json!({ "jitterMs": 7 })).await;
    assert_eq!(
        site.get("/faults/drone").await,
        json!({
            "errorRate": 0.25, "hangRate": 0.0, "doThenTimeoutRate": 0.0, "refuseRate": 0.0,
            "undoRefuseRate": 0.0, "latencyMs": 3, "jitterMs": 7
        })
    );
    let all = site.get("/faults").await;
    assert_eq!(all["drone"]["jitterMs"], 7);
    assert_eq!(all["third-party"]["jitterMs"], 0);
    let reset = site.request("DELETE", "/faults/drone").send().await;
    assert_eq!(reset.expect("an answer").status(), StatusCode::OK);
    let drone = site.get("/faults/drone").await;
    assert_eq!(
        (&drone["errorRate"], &drone["latencyMs"]),
        (&json!(0.0), &json!(3))
    );
}

#[tokio::test]
async fn invalid_faults_are_refused_by_name() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let before = site.get("/faults/drone").await;
    for (name, value) in [
        ("errorRate", json!(1.1)),
        ("hangRate", json!(-0.1)),
        ("doThenTimeoutRate", json!("1")),
        ("refuseRate", json!(null)),
        ("undoRefuseRate", json!(2)),
        ("latencyMs", json!(1.5)),
        ("latencyMs", json!(60_001)),
        ("jitterMs", json!(-1)),
        ("errorrate", json!(0.1)),
    ] {
        let mut faults = json!({ "hangRate": 0.5 });
        faults[name] = value;
        let answer = site
            .request("PUT", "/faults/drone")
            .json(&faults)
            .send()
            .await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let problem: Value = answer.json().await.expect("JSON");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{name}"));
        assert_eq!(
            problem["errors"].as_array().map(Vec::len),
            Some(1),
            "{problem}"
        );
    }
    for (body, expected) in [("[]", "not-an-object"), ("{", "not-json"), ("", "not-json")] {
        let answer = site.request("PUT", "/faults/drone").body(body).send().await;
        let answer = answer.expect("an answer");
        assert_eq!(code(answer).await, (400, expected.to_owned()));
    }
    assert_eq!(site.get("/faults/drone").await, before);

    let mut config = config(directory.path());
    config.faults.drone.error_rate = f64::NAN;
    let refused = Services::start(config).await.expect_err("wrong faults");
    assert!(refused.to_string().contains("/errorRate"), "{refused}");
}
