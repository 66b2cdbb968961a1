use std::sync::Mutex;

use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use tower::ServiceExt;

use waybill_engine::{Epoch, Offset, PartitionId};
use waybill_http::media_type;
use waybill_scheduler::control::{CheckpointView, SchedulerState};

use super::*;
use crate::shutdown::Signals;

/// A scheduler of partitions 0 and 1 that follows commands, but does not respond on partition 1.
#[derive(Debug)]
struct Fake(Mutex<SchedulerState>);

impl SchedulerControl for Fake {
    fn list(&self) -> Vec<SchedulerView> {
        let state = *self.0.lock().unwrap();
        let view = SchedulerView {
            shard: ShardId(0),
            partition: PartitionId(0),
            layout: 0,
            state,
            epoch: Some(Epoch(3)),
            checkpoint: CheckpointView {
                requests: Offset(10),
                high_priority: Offset(3),
                replies: Offset(70),
            },
            consumed: Offset(12),
            consumed_high_priority: Offset(4),
            waiting: 3,
            in_flight: 2,
            held_by: None,
            high_priority_held_by: None,
            reason: None,
        };
        vec![
            view.clone(),
            SchedulerView {
                shard: ShardId(1),
                partition: PartitionId(1),
                ..view
            },
        ]
    }

    fn set_running(
        &self,
        shard: ShardId,
        running: bool,
    ) -> BoxFuture<'_, Result<(), ControlError>> {
        Box::pin(async move {
            match shard {
                ShardId(0) => {
                    *self.0.lock().unwrap() = if running {
                        SchedulerState::Running
                    } else {
                        SchedulerState::Stopped
                    };
                    Ok(())
                }
                ShardId(1) => Err(ControlError::ShuttingDown),
                other => Err(ControlError::NotHere(other)),
            }
        })
    }
}

async fn ask(admin: &Admin, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, media_type::JSON)
        .body(Body::from(body.to_owned()))
        .unwrap();
    let answer = admin.router().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The listener of a process that starts.
fn starting_admin() -> Admin {
    Admin::new(Telemetry::detached(), Auth::default(), Hosts::any())
}

/// The listener of a process that has started.
fn admin() -> Admin {
    let admin = starting_admin();
    admin.set_started();
    admin
}

#[tokio::test]
async fn a_starting_process_answers_503_for_parts_that_start_later() {
    let admin = starting_admin();
    let requests = [
        ("GET", "/schedulers", "", 200),
        ("PUT", "/schedulers/0", r#"{"running": false}"#, 404),
        ("GET", "/shards", "", 404),
        ("PUT", "/shards", r#"{"perPartition": 2}"#, 404),
        ("GET", "/partitions", "", 404),
        ("GET", "/process", "", 404),
        ("PUT", "/partitions", r#"{"partitions": 8}"#, 404),
        ("POST", "/backup", "", 409),
    ];
    for (method, path, body, _) in requests {
        let (status, answer) = ask(&admin, method, path, body).await;
        assert_eq!(status, 503, "{method} {path}: {answer}");
        assert!(answer.contains("/problems/starting"), "{answer}");
    }
    admin.set_started();
    for (method, path, body, wanted) in requests {
        let (status, answer) = ask(&admin, method, path, body).await;
        assert_eq!(status, wanted, "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn readyz_names_everything_that_is_not_ready() {
    let admin = admin();
    assert_eq!(
        ask(&admin, "GET", "/readyz", "").await,
        (200, "ready\n".into())
    );

    let store = admin.readiness.expect("the store");
    let lease = admin.readiness.expect("lease of partition 2");
    store.set(true);
    let (status, body) = ask(&admin, "GET", "/readyz", "").await;
    assert_eq!(
        (status, body.as_str()),
        (503, "waiting for: lease of partition 2\n")
    );

    lease.set(true);
    assert_eq!(ask(&admin, "GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn livez_names_a_silent_loop() {
    let admin = admin();
    assert_eq!(
        ask(&admin, "GET", "/livez", "").await,
        (200, "alive\n".into())
    );

    let patient = admin.liveness.register("inbox", Duration::from_secs(3_600));
    let impatient = admin.liveness.register("scheduler", Duration::ZERO);
    let started = std::time::Instant::now();
    let (status, body) = loop {
        let answer = ask(&admin, "GET", "/livez", "").await;
        if answer.0 != 200 {
            break answer;
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it is never missed"
        );
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (status, body.as_str()),
        (503, "silent: scheduler for 0 s\n")
    );

    drop((patient, impatient));
    assert_eq!(ask(&admin, "GET", "/livez", "").await.0, 200);
}

#[tokio::test]
async fn metrics_are_rendered_in_the_text_format() {
    let (status, body) = ask(&admin(), "GET", "/metrics", "").await;
    assert_eq!(status, 200);
    let line = "# TYPE process_resident_memory_bytes gauge\n";
    assert!(body.contains(line), "{body}");
}

#[tokio::test]
async fn a_partition_is_stopped_and_started_by_put() {
    let admin = admin();
    admin.set_schedulers(Arc::new(Fake(Mutex::new(SchedulerState::Running))));

    let (status, body) = ask(&admin, "PUT", "/schedulers/0", r#"{"running": false}"#).await;
    assert_eq!(status, 200);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&body).unwrap(),
        serde_json::json!({
            "shard": 0, "partition": 0, "layout": 0, "state": "stopped", "epoch": 3,
            "checkpoint": {"requests": 10, "highPriority": 3, "replies": 70}, "consumed": 12,
            "consumedHighPriority": 4, "inFlight": 2, "waiting": 3, "heldBy": null, "highPriorityHeldBy": null,
        })
    );

    let (_, body) = ask(&admin, "PUT", "/schedulers/0", r#"{"running": true}"#).await;
    assert!(body.contains(r#""state":"running""#), "{body}");
    let (_, list) = ask(&admin, "GET", "/schedulers", "").await;
    assert!(
        list.starts_with('[') && list.contains(r#""partition":1"#),
        "{list}"
    );
}

#[test]
fn shards_that_were_not_started_or_stopped_are_named() {
    let (shard, wanted, cause) = (
        ShardId(9),
        "stopped",
        "its lease is held elsewhere".to_owned(),
    );
    let failed = ControlError::Failed {
        shard,
        wanted,
        cause,
    };
    let texts = [ControlError::NotHere(shard), failed].map(|error| error.to_string());
    let expected = [
        "this process does not run shard 9",
        "shard 9 could not be stopped: its lease is held elsewhere",
    ];
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn failed_control_requests_have_a_reason() {
    let admin = admin();
    let stop = r#"{"running": false}"#;
    assert_eq!(
        ask(&admin, "PUT", "/schedulers/0", stop).await.0,
        404,
        "no scheduler here"
    );
    assert_eq!(
        ask(&admin, "GET", "/schedulers", "").await,
        (200, "[]".into())
    );

    admin.set_schedulers(Arc::new(Fake(Mutex::new(SchedulerState::Running))));
    let cases = [
        ("PUT", "/schedulers/7", stop, 404, "partition-not-here", ""),
        ("PUT", "/schedulers/x", stop, 404, "not-found", ""),
        ("PUT", "/schedulers/1", stop, 503, "shutting-down", ""),
        ("PUT", "/schedulers/0", "", 400, "malformed-json", ""),
        (
            "PUT",
            "/schedulers/0",
            "[[[[[[[[[]]]]]]]]]",
            400,
            "nesting-too-deep",
            "/0/0/0/0/0/0/0/0",
        ),
        (
            "PUT",
            "/schedulers/0",
            "{}",
            422,
            "invalid-values",
            "/running",
        ),
        (
            "PUT",
            "/schedulers/0",
            r#"{"running": "no"}"#,
            422,
            "invalid-values",
            "/running",
        ),
        (
            "PUT",
            "/schedulers/0",
            r#"{"running": true, "fast": true}"#,
            422,
            "invalid-values",
            "/fast",
        ),
        ("GET", "/schedulers/0", "", 405, "method-not-allowed", ""),
        ("POST", "/metrics", "", 405, "method-not-allowed", ""),
        ("GET", "/nope", "", 404, "not-found", ""),
        ("GET", "/problems/nope", "", 404, "not-found", ""),
    ];
    for (method, path, body, status, kind, pointer) in cases {
        let (got, answer) = ask(&admin, method, path, body).await;
        assert_eq!(got, status, "{method} {path} {body}: {answer}");
        let problem: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(problem["type"], format!("/problems/{kind}"), "{answer}");
        assert_eq!(problem["status"], status, "{answer}");
        let pointed = problem["errors"][0]["pointer"].as_str().unwrap_or("");
        assert_eq!(pointed, pointer, "{answer}");
        let (status, page) = ask(&admin, "GET", &format!("/problems/{kind}"), "").await;
        assert_eq!(status, 200);
        assert!(page.starts_with("<!doctype html>"), "{page}");
    }
}

#[tokio::test]
async fn problems_have_their_headers() {
    let admin = admin();
    admin.set_schedulers(Arc::new(Fake(Mutex::new(SchedulerState::Running))));
    let stop = r#"{"running": false}"#;
    for (method, path, body, header, value) in [
        ("PUT", "/schedulers/1", stop, "retry-after", "1"),
        ("POST", "/metrics", "", "allow", "GET,HEAD"),
        (
            "GET",
            "/nope",
            "",
            "content-type",
            "application/problem+json",
        ),
    ] {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body)).unwrap();
        let answer = admin.router().oneshot(request).await.unwrap();
        assert_eq!(answer.headers()[header], value, "{method} {path}");
    }
}

#[tokio::test]
async fn the_listener_ends_on_a_stop_despite_an_open_connection() {
    let (admin, running) = (admin(), Running::new());
    let (signal, mut signals) = Signals::made_up();
    let open = Mutex::new(None);
    let start = async {
        let config = AdminConfig {
            listen: "127.0.0.1:0".parse()?,
            ..AdminConfig::default()
        };
        admin.start(&config, Tls::default(), &running).await?;
        let address = admin.address().expect("the listener is bound");
        *open.lock().unwrap() = Some(tokio::net::TcpStream::connect(address).await?);
        signal.send("SIGTERM").await?;
        Ok(())
    };
    let limit = Duration::from_secs(20);
    running.run(start, &mut signals, limit).await.unwrap();
}

#[tokio::test]
async fn the_log_filter_is_shown_and_changed() {
    let admin = admin();
    assert_eq!(
        ask(&admin, "GET", "/log", "").await,
        (200, r#"{"filter":"info"}"#.into())
    );
    let debug = r#"{"filter":"info,waybill=debug"}"#;
    assert_eq!(ask(&admin, "PUT", "/log", debug).await, (200, debug.into()));
    for (body, message) in [
        (r#"{"filter":"bananas"}"#, "neither a level"),
        (r#"{"filter":"waybil_kafka=debug"}"#, "waybill_kafka, "),
        (r#"{"filter":7}"#, "must be a level"),
        ("{}", "must be a level"),
    ] {
        let (status, answer) = ask(&admin, "PUT", "/log", body).await;
        assert!(
            status == 422 && answer.contains(message),
            "{status} {answer}"
        );
    }
    assert_eq!(ask(&admin, "GET", "/log", "").await, (200, debug.into()));
}

#[tokio::test]
async fn the_admin_port_requires_a_token_for_all_tenants_except_for_probes() {
    use waybill_http::auth::AuthConfig;
    use waybill_http::auth::NewToken;

    let file = tempfile::NamedTempFile::new().unwrap();
    let mut text = String::new();
    let mut tokens = Vec::new();
    for (name, scopes, tenant) in [
        ("read", "read", "*"),
        ("admin", "admin", "*"),
        ("submit", "submit, repair", "*"),
        ("acme", "read", "acme"),
    ] {
        let NewToken { token, hash } = NewToken::make();
        let hash = waybill_http::auth::to_hex(&hash);
        text.push_str(&format!(
            "- {{name: {name}, sha256: '{hash}', scopes: [{scopes}], tenant: '{tenant}'}}\n"
        ));
        tokens.push(Some(token));
    }
    tokens.push(None);
    std::fs::write(file.path(), text).unwrap();
    let config = AuthConfig {
        tokens_file: Some(file.path().to_owned()),
        ..AuthConfig::default()
    };
    let admin = Admin::new(
        Telemetry::detached(),
        Auth::load(&config).unwrap(),
        Hosts::any(),
    );
    admin.set_started();
    admin.set_schedulers(Arc::new(Fake(Mutex::new(SchedulerState::Running))));
    let status = async |method: &str, path: &str, token: Option<&waybill_config::Secret>| {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        let body = Body::from(r#"{"running": true}"#);
        let answer = admin.router().oneshot(request.body(body).unwrap()).await;
        let answer = answer.unwrap();
        let challenged = answer.headers().contains_key("www-authenticate");
        assert_eq!(answer.status() == 401, challenged && answer.status() != 403);
        answer.status().as_u16()
    };
    // Callers with the scopes: read, admin, submit and repair, read for one tenant, none.
    for (method, path, expected) in [
        ("GET", "/livez", [200; 5]),
        ("GET", "/readyz", [200; 5]),
        ("GET", "/metrics", [200; 5]),
        ("GET", "/problems/unauthenticated", [200; 5]),
        ("GET", "/schedulers", [200, 200, 403, 403, 401]),
        ("GET", "/shards", [404, 404, 403, 403, 401]),
        ("GET", "/partitions", [404, 404, 403, 403, 401]),
        ("PUT", "/schedulers/0", [403, 200, 403, 403, 401]),
        ("PUT", "/shards", [403, 422, 403, 403, 401]),
        ("PUT", "/partitions", [403, 422, 403, 403, 401]),
        ("GET", "/log", [200, 200, 403, 403, 401]),
        ("PUT", "/log", [403, 422, 403, 403, 401]),
        ("GET", "/nothing", [404, 404, 403, 403, 401]),
    ] {
        let mut statuses = Vec::new();
        for token in &tokens {
            statuses.push(status(method, path, token.as_ref()).await);
        }
        assert_eq!(statuses, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn a_process_without_its_own_broker_and_store_makes_no_backup() {
    let (status, body) = ask(&admin(), "POST", "/backup", "").await;
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("back up Kafka and the database"), "{body}");
    assert_eq!(ask(&admin(), "GET", "/backup", "").await.0, 405);
}

#[tokio::test]
async fn no_backup_is_made_for_a_request_that_any_web_page_could_send() {
    for given in [None, Some("text/plain")] {
        let mut request = Request::post("/backup");
        if let Some(given) = given {
            request = request.header(CONTENT_TYPE, given);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = admin().router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 415, "{given:?}");
    }
}
