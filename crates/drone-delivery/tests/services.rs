//! The five services over real HTTP: effects and repeats, undos in either order, faults, bad input,
//! and what the ledger keeps when the services die.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use waybill_drone_delivery::services::{
    Faults, LedgerError, SLOTS_MAX, Services, ServicesConfig, StartError,
};

/// Long enough for anything that does happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long to see that nothing happens.
const SILENCE: Duration = Duration::from_millis(300);

struct Site {
    services: Services,
    client: Client,
}

impl Site {
    async fn start(directory: &Path) -> Self {
        Self::start_with(config(directory)).await
    }

    async fn start_with(config: ServicesConfig) -> Self {
        let services = Services::start(config).await.expect("the services start");
        let client = Client::builder()
            .timeout(PATIENCE)
            .build()
            .expect("a client");
        Self { services, client }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.services.address())
    }

    async fn send(&self, method: &str, path: &str, key: &str, body: Value) -> Response {
        self.request(method, path)
            .header("Idempotency-Key", key)
            .json(&body)
            .send()
            .await
            .expect("an answer")
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, self.url(path))
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer.json().await.expect("JSON")
    }

    async fn faults(&self, service: &str, faults: Value) {
        let path = format!("/faults/{service}");
        let answer = self.request("PUT", &path).json(&faults).send().await;
        assert_eq!(answer.expect("an answer").status(), StatusCode::OK);
    }

    /// The ledger of one operation as (step, action, repeat).
    async fn entries(&self, operation: &str) -> Vec<(String, String, bool)> {
        let entries = self.get(&format!("/ledger?operation={operation}")).await;
        let entries = entries.as_array().expect("an array").clone();
        entries
            .iter()
            .map(|entry| {
                let step = entry["step"].as_str().expect("a step");
                assert_eq!(entry["operation"], operation);
                assert_eq!(entry["key"], format!("{operation}/{step}"));
                assert!(entry["at"].as_str().is_some_and(|at| at.ends_with('Z')));
                (
                    step.to_owned(),
                    entry["action"].as_str().expect("an action").to_owned(),
                    entry["repeat"].as_bool().expect("a flag"),
                )
            })
            .collect()
    }

    /// Waits for the ledger of an operation to have this many entries.
    async fn wait_for_entries(&self, operation: &str, count: usize) {
        let end = Instant::now() + PATIENCE;
        while self.entries(operation).await.len() != count {
            assert!(Instant::now() < end, "no {count} entries of {operation}");
            tokio::task::yield_now().await;
        }
    }
}

fn config(directory: &Path) -> ServicesConfig {
    ServicesConfig::new(([127, 0, 0, 1], 0).into(), directory.to_owned())
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn entry(step: &str, action: &str, repeat: bool) -> (String, String, bool) {
    (step.to_owned(), action.to_owned(), repeat)
}

async fn code(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    assert_eq!(
        answer.headers()["content-type"],
        "application/problem+json",
        "{status}"
    );
    let problem: Value = answer.json().await.expect("JSON");
    assert_eq!(problem["status"], status);
    for field in ["type", "title", "detail"] {
        assert!(problem[field].is_string(), "{problem}");
    }
    (status, problem["code"].as_str().expect("a code").to_owned())
}

fn locations(pickup: &str, drop_off: &str) -> Value {
    json!({ "pickupLocation": pickup, "dropOffLocation": drop_off })
}

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
    assert_eq!(
        site.get("/ledger/summary").await,
        json!({
            "operations": 2,
            "effects": {
                "delivery": { "run": 1, "compensate": 0 },
                "drone": { "run": 1, "compensate": 0 },
                "package": { "run": 2, "compensate": 0 },
            },
            "repeats": 3, "tombstones": 0, "double": 0
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
async fn third_party_transport_is_booked_only_where_it_is_needed() {
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
    let site = Site::start_with(ServicesConfig {
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
async fn an_undo_is_counted_once_and_bars_the_key() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let (path, key) = ("/api/DroneDeliveries/d", "op/drone");
    site.send("PUT", path, key, json!({})).await;
    for _ in 0..2 {
        let undone = site.send("DELETE", path, key, json!(null)).await;
        assert_eq!(undone.status(), StatusCode::NO_CONTENT);
    }
    let late = site.send("PUT", path, key, json!({})).await;
    assert_eq!(code(late).await, (409, "undone".to_owned()));
    assert_eq!(
        site.entries("op").await,
        [
            entry("drone", "run", false),
            entry("drone", "compensate", false),
            entry("drone", "compensate", true),
        ]
    );
    let summary = site.get("/ledger/summary").await;
    assert_eq!(
        summary["effects"],
        json!({ "drone": { "run": 1, "compensate": 1 } })
    );
    assert_eq!(summary["repeats"], 1);
}

#[test]
fn an_undo_that_comes_first_bars_the_key_also_after_a_restart() {
    let directory = directory();
    let (path, key) = ("/api/Deliveries/d", "op/delivery");
    let first = Runtime::new().expect("a runtime");
    first.block_on(async {
        let site = Site::start(directory.path()).await;
        for _ in 0..2 {
            let undone = site.send("DELETE", path, key, json!(null)).await;
            assert_eq!(undone.status(), StatusCode::NO_CONTENT);
        }
        let late = site.send("PUT", path, key, json!({})).await;
        assert_eq!(code(late).await, (409, "undone-first".to_owned()));
        std::mem::forget(site.services);
    });
    drop(first);
    Runtime::new().expect("a runtime").block_on(async {
        let site = Site::start(directory.path()).await;
        let late = site.send("PUT", path, key, json!({})).await;
        assert_eq!(code(late).await, (409, "undone-first".to_owned()));
        assert_eq!(site.entries("op").await, []);
        let with_tombstones = site.get("/ledger?operation=op&tombstones=true").await;
        assert_eq!(with_tombstones[0]["tombstone"], true);
        assert_eq!(with_tombstones[0]["action"], "compensate");
        let summary = site.get("/ledger/summary").await;
        assert_eq!(
            (&summary["tombstones"], &summary["repeats"]),
            (&json!(1), &json!(0))
        );
        assert_eq!(
            summary["effects"],
            json!({ "delivery": { "run": 0, "compensate": 0 } })
        );
    });
}

#[test]
fn effects_survive_an_end_without_shutdown_and_a_torn_line_is_cut() {
    let directory = directory();
    let operation = "0197f3a0-7d2b-7c55-9d2e-3a4b5c6d7e8f";
    let key = format!("{operation}/package");
    let first = Runtime::new().expect("a runtime");
    first.block_on(async {
        let site = Site::start(directory.path()).await;
        site.send("PUT", "/api/packages/p", &key, json!({})).await;
        std::mem::forget(site.services);
    });
    drop(first);
    let path = directory.path().join("ledger.ndjson");
    let before = std::fs::read(&path).expect("the ledger");
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("the ledger");
    file.write_all(&before[..before.len() / 2])
        .expect("half a line");
    drop(file);
    Runtime::new().expect("a runtime").block_on(async {
        let site = Site::start(directory.path()).await;
        assert_eq!(std::fs::read(&path).expect("the ledger"), before);
        site.send("PUT", "/api/packages/p", &key, json!({})).await;
        assert_eq!(
            site.entries(operation).await,
            [
                entry("package", "run", false),
                entry("package", "run", true)
            ]
        );
        assert_eq!(site.get("/ledger/summary").await["double"], 0);
    });
}

#[tokio::test]
async fn a_ledger_with_a_second_effect_of_a_key_says_so() {
    let directory = directory();
    let line = |service: &str, at: u32| {
        json!({
            "operation": "op", "step": "s", "action": "run", "key": "op/s", "repeat": false,
            "at": format!("2030-01-01T00:00:{at:02}Z"), "service": service
        })
        .to_string()
    };
    let lines = [line("drone", 1), line("drone", 2), line("package", 3)].join("\n") + "\n";
    std::fs::write(directory.path().join("ledger.ndjson"), lines).expect("a ledger");
    let site = Site::start(directory.path()).await;
    assert_eq!(site.get("/ledger/summary").await["double"], 2);
}

#[tokio::test]
async fn a_ledger_that_is_damaged_or_in_use_is_not_opened() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let second = Services::start(config(directory.path())).await;
    assert!(matches!(
        second.expect_err("one process at a time"),
        StartError::Ledger(LedgerError::InUse { .. })
    ));
    site.services.shutdown().await;

    std::fs::write(directory.path().join("ledger.ndjson"), "{}\nrest").expect("a ledger");
    let damaged = Services::start(config(directory.path())).await;
    assert!(matches!(
        damaged.expect_err("a damaged ledger"),
        StartError::Ledger(LedgerError::Line { offset: 0, .. })
    ));
}

#[tokio::test]
async fn the_whole_ledger_is_streamed_and_an_operation_is_found_in_a_long_one() {
    let directory = directory();
    let operations = 5_000;
    let lines: String = (0..operations)
        .map(|number| {
            format!(
                "{{\"operation\":\"op-{number}\",\"step\":\"package\",\"action\":\"run\",\
                 \"key\":\"op-{number}/package\",\"repeat\":false,\
                 \"at\":\"2030-01-01T00:00:00Z\",\"service\":\"package\"}}\n"
            )
        })
        .collect();
    std::fs::write(directory.path().join("ledger.ndjson"), &lines).expect("a ledger");
    let site = Site::start(directory.path()).await;
    site.send("DELETE", "/api/Deliveries/d", "op-x/delivery", json!(null))
        .await;
    site.send("PUT", "/api/Deliveries/d", "op-17/delivery", json!({}))
        .await;
    assert_eq!(
        site.entries("op-17").await,
        [
            entry("package", "run", false),
            entry("delivery", "run", false)
        ]
    );
    assert_eq!(site.entries("op-170000").await, []);
    let answer = site.request("GET", "/ledger").send().await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.expect("text");
    assert!(text.starts_with(&lines));
    assert_eq!(text.lines().count(), operations + 1);
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).expect("a line of JSON");
        assert!(entry.get("tombstone").is_none());
    }
}

#[tokio::test]
async fn errors_have_no_effect() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "errorRate": 1 })).await;
    for method in ["PUT", "DELETE"] {
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
async fn refusals_have_no_effect_and_never_hit_what_was_made() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/Deliveries/d";
    site.send("PUT", path, "op-1/delivery", json!({})).await;
    site.faults("delivery", json!({ "refuseRate": 1.0 })).await;
    let refused = site.send("PUT", path, "op-2/delivery", json!({})).await;
    assert_eq!(code(refused).await, (422, "refused".to_owned()));
    let repeat = site.send("PUT", path, "op-1/delivery", json!({})).await;
    assert_eq!(repeat.status(), StatusCode::CREATED);
    let undo = site
        .send("DELETE", path, "op-1/delivery", json!(null))
        .await;
    assert_eq!(undo.status(), StatusCode::NO_CONTENT);
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
async fn a_hang_answers_nothing_and_does_nothing() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "hangRate": 1 })).await;
    let answer = site
        .request("PUT", "/api/packages/p")
        .header("Idempotency-Key", "op/package")
        .timeout(SILENCE)
        .send()
        .await;
    assert!(answer.expect_err("no answer").is_timeout());
    assert_eq!(site.entries("op").await, []);
}

#[tokio::test]
async fn do_then_time_out_makes_the_effect_and_answers_nothing() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.faults("package", json!({ "doThenTimeoutRate": 1 }))
        .await;
    let answer = site
        .request("PUT", "/api/packages/p")
        .header("Idempotency-Key", "op/package")
        .timeout(SILENCE)
        .send()
        .await;
    assert!(answer.expect_err("no answer").is_timeout());
    assert_eq!(site.entries("op").await, [entry("package", "run", false)]);
}

#[tokio::test]
async fn a_slow_service_performs_also_for_a_client_that_went_away() {
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
async fn a_put_of_faults_changes_only_what_it_names_and_a_delete_resets() {
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
            "latencyMs": 3, "jitterMs": 7
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
async fn wrong_faults_are_named_and_change_nothing() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let before = site.get("/faults/drone").await;
    for (name, value) in [
        ("errorRate", json!(1.1)),
        ("hangRate", json!(-0.1)),
        ("doThenTimeoutRate", json!("1")),
        ("refuseRate", json!(null)),
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
        ("GET", "/api/packages/a", "op/s", 405, "method-not-allowed"),
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
        ("GET", "/ledger?operation", "op/s", 400, "query-unknown"),
        ("GET", "/ledger?op=1", "op/s", 400, "query-unknown"),
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
    let no_key = site.request("PUT", "/api/packages/a").send().await;
    assert_eq!(
        code(no_key.expect("an answer")).await,
        (400, "idempotency-key-missing".to_owned())
    );
    let large = "x".repeat(70 * 1024);
    let large = site
        .send("PUT", "/api/packages/a", "op/s", json!(large))
        .await;
    assert_eq!(code(large).await, (413, "body-too-large".to_owned()));
    assert_eq!(site.get("/ledger/summary").await["operations"], 0);
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
async fn steps_beyond_what_the_ledger_can_tell_apart_are_refused() {
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
async fn concurrent_twins_make_one_effect_also_over_http_2() {
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
