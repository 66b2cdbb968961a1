//! A service without tombstones: it forgets what it deleted, and performs a late copy of a request
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::put;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use waybill_test_support::setup::Setup;

use crate::fairness::send;

const OPERATIONS: usize = 4;
/// How long the first copies stay on their way after the last refusal, unless all undos come
/// earlier. With the time for the refusals, it must be less than the step's `timeout` and `settle`
/// together: within these a copy may take effect.
const HELD_FOR: Duration = Duration::from_secs(4);

const WORKFLOW: &str = "
name: pair
version: 1
onFailure: compensate
steps:
  - { name: a, agent: a, timeout: 12s, compensation: { settle: 8s } }
  - { name: b, agent: b, after: [a], timeout: 12s, compensation: { settle: 0s } }
";

/// What the service has received and holds, by the operation.
#[derive(Default)]
struct Held {
    puts: BTreeMap<String, usize>,
    refused: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Copies that took effect late.
    late: usize,
    standing: BTreeSet<String>,
}

#[derive(Clone)]
struct Service {
    held: Arc<Mutex<Held>>,
    /// Whether the first copies may take effect.
    released: watch::Sender<bool>,
}

impl Service {
    async fn start() -> (Self, SocketAddr) {
        let service = Self {
            held: Arc::default(),
            released: watch::Sender::new(false),
        };
        let routes = Router::new()
            .route("/a/{operation}", put(put_a).delete(delete_a))
            .route("/b/{operation}", put(put_b).delete(StatusCode::NOT_FOUND))
            .with_state(service.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (service, address)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no handler panics")
    }
}

/// The first copy of a request takes effect only once it is released, even if its sender has died.
async fn put_a(State(service): State<Service>, Path(operation): Path<String>) -> StatusCode {
    let is_first = {
        let mut held = service.held();
        let puts = held.puts.entry(operation.clone()).or_default();
        *puts += 1;
        *puts == 1
    };
    if is_first {
        let late = tokio::spawn(async move {
            let mut released = service.released.subscribe();
            let waited = released.wait_for(|released| *released).await;
            waited.expect("the sender is kept");
            let mut held = service.held();
            held.late += 1;
            held.standing.insert(operation);
        });
        late.await.expect("it does not panic");
    } else {
        service.held().standing.insert(operation);
    }
    StatusCode::CREATED
}

async fn delete_a(State(service): State<Service>, Path(operation): Path<String>) -> StatusCode {
    let mut held = service.held();
    held.deleted.insert(operation.clone());
    match held.standing.remove(&operation) {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::NOT_FOUND,
    }
}

async fn put_b(State(service): State<Service>, Path(operation): Path<String>) -> StatusCode {
    service.held().refused.insert(operation);
    StatusCode::UNPROCESSABLE_ENTITY
}

/// Two agents of the service, neither of which declares `tombstones`.
fn agents(service: SocketAddr) -> String {
    let agent = |name: &str| {
        format!(
            "  - name: {name}
    http:
      baseUrl: http://{service}
      request: {{ method: PUT, path: '/{name}/{{{{operation}}}}', compensate: {{ method: DELETE }} }}
"
        )
    };
    format!("agents:\n{}{}", agent("a"), agent("b"))
}

/// The process is killed while the first copies of the requests for `a` are on their way. The next
/// one sends further copies, which are performed at once, and `b` is refused. The first copies take
/// effect after an undo that does not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_attempt_that_arrives_late_leaves_no_effect_without_tombstones() {
    let (service, address) = Service::start().await;
    let mut setup = Setup::of_either_kind("");
    let files = [
        ("workflow", WORKFLOW.to_owned()),
        ("agents", agents(address)),
    ];
    for (name, text) in files {
        fs::write(setup.path(&format!("{name}.yaml")), text).expect("the directory is writable");
    }
    let yaml = format!(
        "partitions: 2\nworkflows: {{ files: [{}] }}\nagents: {{ files: [{}] }}\n",
        setup.path("workflow.yaml").display(),
        setup.path("agents.yaml").display()
    );
    fs::write(setup.path("waybill.yaml"), yaml).expect("the directory is writable");
    let up = setup.up();
    setup.ready().await;
    let request = json!({ "workflow": "pair", "input": {} });
    let ids = send(&setup, vec![request; OPERATIONS]).await;

    let sent = "the first copy of each attempt is on its way";
    setup
        .eventually(sent, async || service.held().puts.len() == OPERATIONS)
        .await;
    let killed = Instant::now();
    up.kill();
    let up = setup.again("up", &[], &["http", "admin", "broker", "services"]);
    setup
        .eventually("b is refused for all", async || {
            service.held().refused.len() == OPERATIONS
        })
        .await;
    let refused = Instant::now();
    while refused.elapsed() < HELD_FOR && service.held().deleted.len() < OPERATIONS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for id in &ids {
        let state = setup.state(id).await;
        assert_eq!(state.as_deref(), Some("Compensating"), "{id}");
    }
    println!(
        "measured: the first copies take effect {:?} after the kill, and {} operations were undone before",
        killed.elapsed(),
        service.held().deleted.len()
    );
    service.released.send_replace(true);

    setup.all_reach(&ids, "Compensated").await;
    let held = service.held();
    assert_eq!(held.late, OPERATIONS, "the first copies took effect");
    assert!(held.puts.values().all(|puts| *puts >= 2), "{:?}", held.puts);
    assert_eq!(held.standing, BTreeSet::new(), "{}", setup.log_tail());
    drop(held);
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}
