//! The whole system as processes that are killed, stopped, cut off and sent garbage. Results are
//! compared with the services' ledger. The tests use the embedded broker and store or, with
//! `WAYBILL_TEST_BACKEND=servers`, the servers in `WAYBILL_TEST_BROKERS` and `WAYBILL_TEST_SCYLLA`.

mod clocks;
mod damage;
mod dashboards;
mod deleted;
mod disk;
mod doctor;
mod fairness;
mod foreign_state;
mod least_limits;
mod plain_service;
mod repair;
mod repartitioning;
mod shards;
mod supervision;
mod upgrade;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash, Timestamp, partition_for,
};
use waybill_messages::Record as _;
use waybill_test_support::process::Process;
use waybill_test_support::setup::{Dice, PATIENCE, Setup, delivery};

const PARTITIONS: u32 = 4;
const REQUESTS: &str = "operation-requests";
const HIGH_PRIORITY: &str = "high-priority-requests";
const REPLIES: &str = "step-replies";
const FAILED: &str = "failed-operations";
const RECOVERY: &str = "recovery";

/// Sends `count` deliveries, every fifth of them remote, from several concurrent clients. Returns
/// the operations' IDs in order.
async fn deliver_all(
    setup: &Arc<Setup>,
    prefix: &str,
    count: usize,
    progress: &Arc<AtomicUsize>,
) -> Vec<String> {
    const CLIENTS: usize = 8;
    let clients = (0..CLIENTS).map(|client| {
        let (setup, progress, prefix) = (setup.clone(), progress.clone(), prefix.to_owned());
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for index in (client..count).step_by(CLIENTS) {
                let id = setup
                    .deliver(&delivery(&format!("{prefix}-{index}"), is_remote(index)))
                    .await;
                progress.fetch_add(1, Ordering::Relaxed);
                ids.push((index, id));
            }
            ids
        })
    });
    let mut ids = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        ids.extend(client.await.expect("a client does not fail"));
    }
    ids.sort();
    ids.into_iter().map(|(_, id)| id).collect()
}

fn is_remote(index: usize) -> bool {
    index.is_multiple_of(5)
}

/// Sends 2,000 deliveries while `process` is killed at 20 random moments and restarted by `start`.
/// On servers, both numbers are halved, because a start takes longer. Then compares every accepted
/// one with the ledger. Returns the last process.
async fn deliver_while_killing(
    setup: &Arc<Setup>,
    prefix: &'static str,
    seed: u64,
    mut process: Process,
    start: impl Fn(&Arc<Setup>) -> Process,
) -> Process {
    let (deliveries, kills) = if setup.is_on_servers() {
        (1_000, 10)
    } else {
        (2_000, 20)
    };
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (setup, progress) = (setup.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&setup, prefix, deliveries, &progress).await })
    };
    let mut dice = Dice(seed);
    for kill in 1..=kills {
        // Each kill is at a random moment of the next share of the deliveries.
        let reached = deliveries * kill / (kills + 4);
        setup
            .eventually("the next share is accepted", async || {
                progress.load(Ordering::Relaxed) >= reached
            })
            .await;
        tokio::time::sleep(Duration::from_millis(dice.below(400))).await;
        process.kill();
        process = start(setup);
    }
    let ids = sending.await.expect("the clients do not fail");
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    process
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_kills_of_up_lose_and_duplicate_no_delivery() {
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let up = setup.up();
    let setup = Arc::new(setup);
    let up = deliver_while_killing(&setup, "killed", 0x5eed_0001, up, restart).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_with_agents_in_process_lose_and_duplicate_no_delivery() {
    let yaml = "partitions: 4\nagents: { transport: direct, builtInCalls: function }\n";
    let mut setup = Setup::of_either_kind(yaml);
    let up = setup.up();
    let setup = Arc::new(setup);
    let up = deliver_while_killing(&setup, "direct", 0x5eed_00d1, up, restart).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

/// Starts `up` again with its data, through a shared setup.
fn restart(setup: &Arc<Setup>) -> Process {
    setup.again("up", &[], &["http", "admin", "broker", "services"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_kills_of_agents_lose_and_duplicate_no_delivery() {
    let mut setup = Setup::of_either_kind("partitions: 4\nagents: { instanceId: only }\n");
    let up = setup.start(
        "up",
        &["--no-agents"],
        &["http", "admin", "broker", "services"],
    );
    let setup = Arc::new(setup);
    let agents = start_agents(&setup);
    let agents = deliver_while_killing(&setup, "agents", 0x5eed_0002, agents, start_agents).await;
    assert_eq!(agents.terminate(), Some(0), "{}", setup.log_tail());
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

/// Agents in their own process, on the setup's broker and services.
fn start_agents(setup: &Arc<Setup>) -> Process {
    let brokers = setup.address("broker").to_string();
    let services = setup.address("services").to_string();
    setup.again(
        "agents",
        &["--brokers", &brokers, "--services", &services],
        &[],
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checkpoint_reaches_the_end_and_a_restart_repeats_nothing() {
    const DELIVERIES: usize = 500;
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let ids = deliver_all(&setup, "calm", DELIVERIES, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;
    setup
        .eventually(
            "the checkpoint reaches the end of both topics",
            async || {
                let ends = (requests_end(&setup), log_end(&setup, REPLIES));
                // A request with a late answer was sent again.
                ends.0 >= DELIVERIES as u64 && checkpoint(&setup).await == ends
            },
        )
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let _process = restart(&setup);
    setup.ready().await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(checkpoint(&setup).await.0, requests_end(&setup));
}

/// A read-only client of the broker.
fn looker(setup: &Setup) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .create()
        .expect("a consumer can be made")
}

/// The sum of the end offsets of a topic's partitions.
fn log_end(setup: &Setup, topic: &str) -> u64 {
    let topic = setup.topic(topic);
    let consumer = looker(setup);
    let end = |partition| {
        let (_, high) = consumer
            .fetch_watermarks(&topic, partition, PATIENCE)
            .expect("the broker reports the end of the partition");
        high as u64
    };
    (0..PARTITIONS as i32).map(end).sum()
}

/// The sum of the end offsets of both topics of requests.
fn requests_end(setup: &Setup) -> u64 {
    log_end(setup, REQUESTS) + log_end(setup, HIGH_PRIORITY)
}

/// The sums of the checkpoints of all partitions: requests and replies.
async fn checkpoint(setup: &Setup) -> (u64, u64) {
    let mut sums = (0, 0);
    for scheduler in schedulers(setup).await {
        for priority in ["requests", "highPriority"] {
            sums.0 += scheduler["checkpoint"][priority].as_u64().unwrap_or(0);
        }
        sums.1 += scheduler["checkpoint"]["replies"].as_u64().unwrap_or(0);
    }
    sums
}

async fn schedulers(setup: &Setup) -> Vec<Value> {
    let url = setup.url("admin", "/schedulers");
    let answer = setup
        .client
        .get(url)
        .send()
        .await
        .expect("the admin port answers");
    answer.json().await.expect("the schedulers are JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_partition_blocks_no_other_and_catches_up() {
    const DELIVERIES: usize = 200;
    const STOPPED: u32 = 2;
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let _process = setup.up();
    setup.ready().await;
    set_running(&setup, STOPPED, false).await;

    let setup = Arc::new(setup);
    let ids = deliver_all(&setup, "stopped", DELIVERIES, &Arc::default()).await;
    let (held, free): (Vec<String>, Vec<String>) = ids.iter().cloned().partition(|id| {
        let id: OperationId = id.parse().expect("an id is a UUID");
        partition_for(id, PARTITIONS).0 == STOPPED
    });
    assert!(
        !held.is_empty() && !free.is_empty(),
        "the ids spread over the partitions"
    );
    setup.all_reach(&free, "Processed").await;
    for id in &held {
        assert_eq!(
            setup.state(id).await.as_deref(),
            Some("Pending"),
            "{id} waits in its topic"
        );
    }

    set_running(&setup, STOPPED, true).await;
    setup.all_reach(&held, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
}

async fn set_running(setup: &Setup, partition: u32, running: bool) {
    let url = setup.url("admin", &format!("/schedulers/{partition}"));
    let answer = setup
        .client
        .put(url)
        .json(&json!({ "running": running }))
        .send()
        .await
        .expect("the admin port answers");
    assert!(answer.status().is_success(), "{}", answer.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_operations_do_not_block_fast_ones() {
    const WINDOW: usize = 40;
    let mut setup = Setup::of_either_kind(
        "partitions: 4\nscheduler: { inFlightMax: 40, handOffAfter: 500ms }\n",
    );
    let _process = setup.up();
    setup.ready().await;
    // Only deliveries by drone are slow; remote ones use third-party transport.
    let faults = setup.url("services", "/faults/drone");
    let slow = setup
        .client
        .put(&faults)
        .json(&json!({ "latencyMs": 4_000 }))
        .send()
        .await;
    assert!(slow.expect("the services answer").status().is_success());

    let setup = Arc::new(setup);
    let mut slow_ids = Vec::new();
    for index in 0..2 * WINDOW {
        slow_ids.push(
            setup
                .deliver(&delivery(&format!("slow-{index}"), false))
                .await,
        );
    }
    let began = Instant::now();
    let mut fast_ids = Vec::new();
    for index in 0..WINDOW {
        fast_ids.push(
            setup
                .deliver(&delivery(&format!("fast-{index}"), true))
                .await,
        );
    }
    setup.all_reach(&fast_ids, "Processed").await;
    let last_slow = setup
        .state(slow_ids.last().expect("there are slow ones"))
        .await;
    if began.elapsed() < Duration::from_secs(3) {
        assert_eq!(
            last_slow.as_deref(),
            Some("Processing"),
            "the slow ones are still running"
        );
    }
    setup.all_reach(&slow_ids, "Processed").await;
    setup.assert_one_effect_per_step(&slow_ids, |_| false).await;
    setup.assert_one_effect_per_step(&fast_ids, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_record_is_dead_lettered_and_its_partition_continues() {
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let _process = setup.up();
    setup.ready().await;
    let poison = b"\xc3\x01this is no operation request";
    for partition in 0..PARTITIONS {
        produce(&setup, REQUESTS, partition, b"some-key", poison);
    }
    // Also the supervisor's own topic.
    produce(&setup, FAILED, 0, b"some-key", poison);
    let setup = Arc::new(setup);
    let ids = deliver_all(&setup, "beside-poison", 40, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .set("group.id", "test")
        .set("auto.offset.reset", "earliest")
        .create()
        .expect("a consumer can be made");
    consumer
        .subscribe(
            &[REQUESTS, FAILED]
                .map(|topic| dead_letters(&setup.topic(topic)))
                .each_ref()
                .map(String::as_str),
        )
        .expect("the topics are there");
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while seen.len() < PARTITIONS as usize + 1 {
        assert!(
            Instant::now() < deadline,
            "dead letters seen: {seen:?}\n{}",
            setup.log_tail()
        );
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        assert_eq!(message.payload(), Some(&poison[..]), "the original bytes");
        assert_eq!(message.key(), Some(&b"some-key"[..]));
        let headers = message.headers().expect("a dead letter says why it is one");
        let header = |name: &str| {
            headers
                .iter()
                .find(|header| header.key == name)
                .and_then(|header| header.value)
                .map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let source = header("__connect.errors.topic").expect("a dead letter says where it lay");
        assert_eq!(message.topic(), dead_letters(&source));
        assert!(
            header("__connect.errors.exception.message").is_some_and(|cause| !cause.is_empty())
        );
        seen.push((source, message.partition()));
    }
}

fn dead_letters(topic: &str) -> String {
    format!("{topic}.dlq")
}

fn produce(setup: &Setup, topic: &str, partition: u32, key: &[u8], value: &[u8]) {
    let topic = setup.topic(topic);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .create()
        .expect("a producer can be made");
    producer
        .send(
            BaseRecord::to(&topic)
                .partition(partition as i32)
                .key(key)
                .payload(value),
        )
        .map_err(|(error, _)| error)
        .expect("the record can be enqueued");
    producer
        .flush(PATIENCE)
        .expect("the record is acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_the_wrong_partition_is_rerouted_and_completes() {
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let _process = setup.up();
    setup.ready().await;
    let ids = (0..8).map(|index| {
        put_to(&setup, &format!("misrouted-{index}"), |operation| {
            (partition_for(operation, PARTITIONS).0 + 1) % PARTITIONS
        })
    });
    let ids: Vec<String> = ids.collect();
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, |_| false).await;
}

/// Writes a request straight to a partition of its topic, as any client could. Returns its
/// operation.
fn put_to(setup: &Setup, name: &str, partition: impl Fn(OperationId) -> u32) -> String {
    let operation = OperationId::of_caller("", name);
    let request = CreateRequest {
        operation,
        id_origin: IdOrigin::Caller,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: Some(name.to_owned()),
        input: serde_json::to_vec(&delivery(name, false)).expect("the text is JSON"),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        verify_hash: false,
        requested_at: Timestamp::from_millis(1_700_000_000_000),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    };
    let mut value = Vec::new();
    OperationRequest::Create(request)
        .encode(&mut value)
        .expect("the request fits a record");
    produce(
        setup,
        REQUESTS,
        partition(operation),
        &operation.key(),
        &value,
    );
    operation.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_services_loses_no_delivery() {
    const DELIVERIES: usize = 300;
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    let services = setup.start("services", &[], &["services"]);
    let address = setup.address("services").to_string();
    let _up = setup.start(
        "up",
        &["--no-services", "--services", &address],
        &["http", "admin", "broker"],
    );
    setup.ready().await;
    let setup = Arc::new(setup);
    let mut ids = deliver_all(&setup, "before", DELIVERIES / 3, &Arc::default()).await;
    services.kill();
    ids.extend(deliver_all(&setup, "during", DELIVERIES / 3, &Arc::default()).await);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let _services = setup.again("services", &[], &["services"]);
    ids.extend(deliver_all(&setup, "after", DELIVERIES / 3, &Arc::default()).await);
    setup.all_reach(&ids, "Processed").await;
    let third = DELIVERIES / 3;
    setup
        .assert_one_effect_per_step(&ids, |index| is_remote(index % third))
        .await;
}
