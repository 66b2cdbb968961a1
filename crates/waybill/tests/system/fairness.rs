//! The order of admission if more requests wait than there is room for.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use waybill_engine::{OperationStatus, StatusKind};
use waybill_messages::Record as _;
use waybill_test_support::setup::{PATIENCE, Setup, delivery};

/// Requests of a tenant that sends all at the same time.
const BACKLOG: usize = 300;
/// The number of later requests: of another tenant, and of high priority.
const FEW: usize = 6;
/// How many of the first tenant's requests may end before any of the few: those admitted in turn
/// with them, and a window.
const AHEAD_MAX: usize = 80;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_backlog_delays_neither_other_tenants_nor_high_priority_and_completes() {
    let config = "partitions: 1\nscheduler: { inFlightMax: 8 }\n";
    let mut setup = Setup::of_either_kind(config);
    let up = setup.up();
    setup.ready().await;
    // The first tenant's requests take seconds: long enough for all to be read before most of them
    // end.
    setup
        .put_faults("drone", &json!({ "latencyMs": 200 }))
        .await;
    run(&setup, false).await;
    let of = |prefix: &str, count: usize, tenant: &str, expedited: bool| -> Vec<Value> {
        let request = |index: usize| {
            let mut input = delivery(&format!("{prefix}-{index}"), false);
            input["expedited"] = json!(expedited);
            json!({ "workflow": "drone-delivery", "tenant": tenant, "input": input })
        };
        (0..count).map(request).collect()
    };
    send(&setup, of("backlog", BACKLOG, "noisy", false)).await;
    send(&setup, of("calm", FEW, "calm", false)).await;
    send(&setup, of("fast", FEW, "noisy", true)).await;
    run(&setup, true).await;
    let ended = ended(&setup, BACKLOG + 2 * FEW);
    for prefix in ["calm", "fast"] {
        let last = ended.iter().rposition(|id| id.starts_with(prefix));
        let last = last.expect("they have ended");
        let ahead = ended[..last].iter();
        let ahead = ahead.filter(|id| id.starts_with("backlog")).count();
        println!("measured: {ahead} of the backlog ended before the last of {prefix}");
        assert!(
            ahead < AHEAD_MAX,
            "{ahead} ended before the last of {prefix}"
        );
    }
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

/// The callers' IDs of the first `count` processed operations, in order of their ends.
fn ended(setup: &Setup, count: usize) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .set("group.id", "fairness")
        .create()
        .expect("a consumer can be made");
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(&setup.topic("operation-status"), 0, Offset::Beginning)
        .expect("it is an offset");
    consumer.assign(&from).expect("the topic exists");
    let deadline = Instant::now() + PATIENCE;
    let mut ended = Vec::new();
    while ended.len() < count {
        assert!(
            Instant::now() < deadline,
            "{} of {count} have ended",
            ended.len()
        );
        let Some(record) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let record = record.expect("the broker answers");
        let status = OperationStatus::decode(record.payload().expect("it has a value"));
        let status = status.expect("it is a status");
        if status.kind == StatusKind::Final {
            assert_eq!(status.state.as_str(), "Processed");
            ended.push(status.caller_id.expect("it has one"));
        }
    }
    ended
}

/// Starts or stops the only partition.
async fn run(setup: &Setup, running: bool) {
    let url = setup.url("admin", "/schedulers/0");
    let body = json!({ "running": running });
    let answer = setup.client.put(url).json(&body).send().await;
    assert!(answer.is_ok_and(|answer| answer.status().is_success()));
}

/// Sends requests in one batch. Returns the operations' IDs in order.
pub async fn send(setup: &Setup, requests: Vec<Value>) -> Vec<String> {
    let lines: String = requests.iter().map(|line| format!("{line}\n")).collect();
    let sent = setup
        .client
        .post(setup.url("http", "/v1/operations:batch"))
        .header(CONTENT_TYPE, "application/x-ndjson")
        .body(lines)
        .send()
        .await
        .expect("the request is answered");
    let answers = sent.text().await.expect("the response is text");
    let id_of = |line: &str| {
        let answer: Value = serde_json::from_str(line).expect("each line is JSON");
        assert_eq!(answer["status"], 202, "{answer}");
        answer["id"]
            .as_str()
            .expect("the response has an id")
            .to_owned()
    };
    let ids: Vec<String> = answers.lines().map(id_of).collect();
    assert_eq!(ids.len(), requests.len(), "{answers}");
    ids
}
