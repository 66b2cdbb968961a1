//! Operations that only the audit can wake: their entry in the deadline index, or the recovery for
//! it, is lost.

use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::{Value, json};
use waybill_engine::{OperationId, PartitionId};
use waybill_store::{
    CqlStore, DUE_BUCKETS_REREAD, DueBucket, EmbeddedConfig, EmbeddedStore, Store,
};
use waybill_test_support::setup::{PATIENCE, Setup, delivery};
use waybill_test_support::supervision::setting::replaced;

use super::Setting;
use crate::deleted::{delete_all, set_running};
use crate::{RECOVERY, schedulers};

const UP: [&str; 4] = ["http", "admin", "broker", "services"];
const SCHEDULER: &str = "handOffAfter: 500ms, timeoutGrace: 200ms, checkpointEvery: 100ms";

/// A setup with services that never answer, and steps with this time-out.
fn setup(timeout: &str) -> Setup {
    hanging(Setup::of_either_kind(""), timeout)
}

fn hanging(setup: Setup, timeout: &str) -> Setup {
    let workflow = waybill_drone_delivery::WORKFLOW_YAML;
    let timeout = format!("timeout: {timeout}");
    let setting = Setting {
        agents: waybill_drone_delivery::AGENTS_YAML.to_owned(),
        workflows: vec![replaced(workflow, "timeout: 5s", &timeout, usize::MAX)],
        more: "supervisor: { auditInterval: 1s }\n".to_owned(),
    };
    let sections = setting
        .with_faults(&json!({ "hangRate": 1 }))
        .sections(&setup.path(""));
    configure(&setup, &sections, "");
    setup
}

fn configure(setup: &Setup, sections: &str, more: &str) {
    let config = format!("partitions: 1\nscheduler: {{ {SCHEDULER}{more} }}\n{sections}");
    std::fs::write(setup.path("waybill.yaml"), config).expect("the directory is writable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_without_its_index_entry_is_found_and_woken() {
    // Longer than the audit needs, so that nothing else wakes the operation in the meantime.
    let mut setup = setup("2m");
    let up = setup.up();
    setup.ready().await;
    let id = setup.deliver(&delivery("lost", false)).await;
    is_handed_off(&setup, &id, 1).await;
    up.kill();
    lose_index_entry(&setup, &id).await;

    let up = setup.again("up", &[], &UP);
    is_woken(&setup).await;
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    let matching = log.lines().filter(|line| {
        line.contains("audit found a live operation that nothing would resume")
            && line.contains(&id)
    });
    assert!(matching.count() > 0, "{log}");
    // The stopped agent reads the request again after its process restarts.
    up.kill();
    without_faults(&setup);
    let _up = setup.again("up", &[], &UP);
    setup.all_reach(&[id], "Processed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recoveries_deleted_by_retention_are_refused_and_their_operations_still_end() {
    let mut setup = setup("6s");
    let up = setup.up();
    setup.ready().await;
    let id = setup.deliver(&delivery("unasked", false)).await;
    is_handed_off(&setup, &id, 1).await;
    set_running(&setup, false).await;
    // The agent has given up by then: it does not answer after the complete-by.
    let before = end_of_recoveries(&setup);
    setup
        .eventually("the supervisor asks for it", async || {
            end_of_recoveries(&setup) > before
        })
        .await;
    delete_all(&setup, RECOVERY).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    lose_index_entry(&setup, &id).await;

    let up = setup.again("up", &[], &UP);
    setup
        .eventually("the partition is refused", async || {
            schedulers(&setup).await[0]["state"] == "refused"
        })
        .await;
    let reason = schedulers(&setup).await[0]["reason"].to_string();
    assert!(
        reason.contains("recoveries: records from offset"),
        "{reason}"
    );
    assert!(reason.contains("skipDeletedRequests: true"), "{reason}");
    // The audit skips operations of a refused partition. A person decides about them.
    assert_eq!(woken(&setup).await, 0.0);
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());

    let config = std::fs::read_to_string(setup.path("waybill.yaml")).expect("the file exists");
    let (_, sections) = config.split_once(" }\n").expect("there are sections");
    configure(&setup, sections, ", skipDeletedRequests: true");
    without_faults(&setup);
    let _up = setup.again("up", &[], &UP);
    setup.ready().await;
    is_woken(&setup).await;
    setup.all_reach(&[id], "Processed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_counts_and_logs_an_unreadable_row_once() {
    // It does not become due in the meantime, because the sweep would count it too.
    let mut setup = hanging(Setup::new(""), "2m");
    let up = setup.up();
    setup.ready().await;
    let mut ids = Vec::new();
    for name in ["damaged", "healthy"] {
        ids.push(setup.deliver(&delivery(name, false)).await);
        is_handed_off(&setup, &ids[ids.len() - 1], ids.len()).await;
    }
    up.kill();
    let damaged: OperationId = ids[0].parse().map(OperationId).expect("an id is a UUID");
    damage_row(&setup, damaged);

    let _up = setup.again("up", &[], &UP);
    let unreadable = async || {
        let name = "waybill_supervisor_unreadable_rows_total";
        setup.metric(name, "").await
    };
    setup
        .eventually("the audit counts it", async || unreadable().await > 0.0)
        .await;
    // Several more rounds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(unreadable().await, 1.0);
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    let lines = log.lines().filter(|line| {
        line.contains("could not read the row of an operation") && line.contains(&ids[0])
    });
    assert_eq!(lines.count(), 1, "{log}");
}

/// Replaces an operation's state with invalid data, while no process uses the store.
fn damage_row(setup: &Setup, id: OperationId) {
    let database = fjall::Database::builder(setup.path("data/store")).open();
    let database = database.expect("no process has the store open");
    let state = database.keyspace("state", fjall::KeyspaceCreateOptions::default);
    let state = state.expect("it has the table of states");
    let key = id.0.as_bytes();
    assert!(state.get(key).expect("it can be read").is_some());
    state.insert(key, [99]).expect("it can be written");
    let synced = database.persist(fjall::PersistMode::SyncAll);
    synced.expect("it can be synced");
}

/// Removes the faults of services that start from now on.
fn without_faults(setup: &Setup) {
    let path = setup.path("waybill.yaml");
    let config = std::fs::read_to_string(&path).expect("the file exists");
    let config = replaced(&config, r#"{"hangRate":1}"#, "{}", usize::MAX);
    std::fs::write(path, config).expect("the directory is writable");
}

/// Waits until an operation is handed off, and the checkpoint has passed this many requests
/// durably.
async fn is_handed_off(setup: &Setup, id: &str, requests: usize) {
    setup
        .eventually("the operation is handed off", async || {
            let operation = setup.operation(id).await.unwrap_or_default();
            let shards = setup.client.get(setup.url("admin", "/shards")).send().await;
            let shards: Value = match shards {
                Ok(shards) => shards.json().await.unwrap_or_default(),
                Err(_) => return false,
            };
            let checkpoint = &shards["shards"][0]["checkpoint"];
            let done = ["requests", "highPriority"]
                .map(|priority| checkpoint[priority].as_i64().unwrap_or(0));
            operation["handedOff"] == true
                && operation["lockedBy"].is_null()
                && done.iter().sum::<i64>() == requests as i64
        })
        .await;
}

/// Waits until the audit has woken an operation.
async fn is_woken(setup: &Setup) {
    setup
        .eventually("the audit wakes it", async || woken(setup).await > 0.0)
        .await;
}

async fn woken(setup: &Setup) -> f64 {
    setup
        .metric("waybill_supervisor_audit_woken_total", "")
        .await
}

/// The end of the recoveries on the only partition.
fn end_of_recoveries(setup: &Setup) -> i64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .create()
        .expect("a consumer can be made");
    let ends = consumer.fetch_watermarks(&setup.topic(RECOVERY), 0, PATIENCE);
    ends.expect("the broker reports the end of the topic").1
}

/// Moves the sweep past an operation's due time, while no process uses the store.
async fn lose_index_entry(setup: &Setup, id: &str) {
    let index_shard = PartitionId(0);
    let store: Box<dyn Store> = match setup.cql() {
        Some(config) => {
            let store = CqlStore::connect(config).await;
            Box::new(store.expect("the database answers"))
        }
        None => {
            let store = EmbeddedStore::open(EmbeddedConfig::new(setup.path("data/store")));
            Box::new(store.expect("no process has the store open"))
        }
    };
    let id = OperationId(id.parse().expect("an id is a UUID"));
    let rows = store.get_many(vec![id]).await.expect("rows can be read");
    let row = rows.into_iter().next().expect("one was requested");
    let row = row.expect("it can be read").expect("it exists");
    let due = row.state.next_due.expect("it is due");
    let beyond = DueBucket(DueBucket::of(due).0 + DUE_BUCKETS_REREAD + 1);
    let advanced = store.advance_due_cursor(index_shard, beyond).await;
    advanced.expect("the cursor can be moved");
}
