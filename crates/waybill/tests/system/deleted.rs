//! Unfinished records that retention or the deletion of their topic removed. Schedulers refuse the
//! partition, report it, and skip the records only if a person allows it.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::metadata::MetadataTopic;
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use waybill_engine::{OperationId, PartitionId, partition_for};
use waybill_kafka::{ConsumerOptions, KafkaSettings, PartitionConsumer};
use waybill_test_support::process::{Process, without_variables};
use waybill_test_support::setup::{PATIENCE, Setup, delivery};

use crate::{HIGH_PRIORITY, REQUESTS, checkpoint, deliver_all, is_remote, restart, schedulers};

const CONFIG: &str = "partitions: 2\n";
const SKIP: &str = "skipDeletedRequests: true";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_deleted_before_consumption_are_never_skipped_silently() {
    const DELIVERIES: usize = 100;
    let mut setup = Setup::of_either_kind(CONFIG);
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    // The owners have had no traffic at all.
    set_running(&setup, false).await;
    let gone = deliver_all(&setup, "gone", DELIVERIES, &Arc::default()).await;
    for topic in [REQUESTS, HIGH_PRIORITY] {
        delete_all(&setup, topic).await;
    }
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let process = restart(&setup);
    let readiness = refused(&setup, "the records between were deleted").await;
    assert!(readiness.contains("requests: "), "{readiness}");
    for id in &gone {
        assert_eq!(setup.state(id).await, None, "{id}");
    }
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let _process = restart_and_skip(&setup).await;
    let ids = deliver_all(&setup, "after", DELIVERIES, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_topics_recreated_before_consumption_are_refused() {
    const DELIVERIES: usize = 40;
    let mut setup = Setup::of_either_kind(CONFIG);
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    set_running(&setup, false).await;
    let gone = deliver_all(&setup, "gone", DELIVERIES, &Arc::default()).await;
    let old = topic_ids(&setup);
    delete_topics(&setup).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // The start creates the topics again, under the same names.
    let process = restart(&setup);
    let readiness = refused(&setup, "was deleted and created again").await;
    let new = topic_ids(&setup);
    for (topic, at) in [(REQUESTS, 0), (HIGH_PRIORITY, 1)] {
        assert_ne!(old[at], new[at], "{topic}");
    }
    // A lease has the first half of an ID.
    assert!(readiness.contains(&old[0][..10]), "{old:?}: {readiness}");
    assert!(readiness.contains(&new[0]), "{new:?}: {readiness}");
    for id in &gone {
        assert_eq!(setup.state(id).await, None, "{id}");
    }
    let between = deliver_all(&setup, "between", DELIVERIES, &Arc::default()).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
    // Only a person's setting makes a difference.
    let process = restart(&setup);
    refused(&setup, "was deleted and created again").await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let process = restart_and_skip(&setup).await;
    let mut ids = between;
    ids.extend(deliver_all(&setup, "after", DELIVERIES, &Arc::default()).await);
    setup.all_reach(&ids, "Processed").await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // From then on the IDs of the new topics are stored.
    std::fs::write(setup.path("waybill.yaml"), CONFIG).expect("the directory is writable");
    let _process = restart(&setup);
    setup.ready().await;
    setup.all_reach(&ids, "Processed").await;
    setup
        .assert_one_effect_per_step(&ids, |index| is_remote(index % DELIVERIES))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_on_a_recreated_topic_of_an_agent_are_performed() {
    const AGENT: &str = "package.requests";
    const OLD: usize = 240;
    const NEW: usize = 12;
    let mut setup = Setup::of_either_kind(CONFIG);
    let _process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let old = deliver_all(&setup, "old", OLD, &Arc::default()).await;
    setup.all_reach(&old, "Processed").await;

    let topic = setup.topic(AGENT);
    let partitions = partitions_of(&setup, &topic);
    recreate(&setup, &topic, partitions).await;
    // Fewer requests than the agent read on the old topic, including all attempts.
    let new = deliver_all(&setup, "new", NEW, &Arc::default()).await;
    setup.all_reach(&new, "Processed").await;
    setup.assert_one_effect_per_step(&new, is_remote).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_partitions_of_an_agent_topic_block_only_their_steps() {
    const AGENT: &str = "package.requests";
    const DELIVERIES: usize = 24;
    let mut setup = Setup::of_either_kind(CONFIG);
    let _process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let topic = setup.topic(AGENT);
    let partitions = partitions_of(&setup, &topic);
    assert!(partitions > 1);
    let epochs = async || {
        let schedulers = schedulers(&setup).await;
        schedulers
            .iter()
            .map(|view| view["epoch"].clone())
            .collect::<Vec<_>>()
    };
    let before = epochs().await;
    recreate(&setup, &topic, 1).await;

    let ids = deliver_all(&setup, "held", DELIVERIES, &Arc::default()).await;
    let url = setup.url("admin", "/readyz");
    let refused = [
        ": a step request for agent package was refused ".to_owned(),
        format!(" s ago: cannot write to partition 1 of topic {topic}: "),
        " (shown until 90 s after the last refusal)".to_owned(),
    ];
    setup
        .eventually(
            "readiness names the partition that is missing",
            async || {
                let readiness = setup.client.get(&url).send().await;
                let readiness = readiness.expect("the admin port answers");
                let status = readiness.status();
                let text = readiness.text().await.expect("the response is text");
                // The lease is held all the time.
                assert!(!text.contains("lease"), "{text}");
                status == 503
                    && text.contains("waiting for: partition ")
                    && refused.iter().all(|part| text.contains(part))
            },
        )
        .await;
    let (held, others): (Vec<String>, Vec<String>) = ids.iter().cloned().partition(|id| {
        let operation = OperationId(id.parse().expect("it is an id"));
        partition_for(operation, partitions.unsigned_abs()) != PartitionId(0)
    });
    assert!(!held.is_empty() && !others.is_empty());
    setup.all_reach(&others, "Processed").await;
    assert_eq!(epochs().await, before, "{}", setup.log_tail());

    let added = NewPartitions::new(&topic, partitions.unsigned_abs() as usize);
    let added = admin(&setup)
        .create_partitions([&added], &AdminOptions::new())
        .await;
    added.expect("the broker answers")[0]
        .as_ref()
        .expect("partitions are added");
    setup.all_reach(&held, "Processed").await;
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    let accepted = log.matches("step requests are accepted again").count();
    assert_eq!(accepted, 1, "{log}");
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    setup.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_of_an_agent_is_named_by_readiness_soon() {
    const SOON: Duration = Duration::from_secs(15);
    let mut setup = Setup::of_either_kind(CONFIG);
    let _process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let topic = setup.topic("package.requests");
    let partitions = partitions_of(&setup, &topic);
    delete(&setup, std::slice::from_ref(&topic)).await;
    let ids = deliver_all(&setup, "held", 4, &Arc::default()).await;
    let accepted = Instant::now();
    let url = setup.url("admin", "/readyz");
    let why = format!("of topic {topic}: ");
    setup
        .eventually("readiness names the topic that is missing", async || {
            let readiness = setup.client.get(&url).send().await;
            let text = readiness.expect("the admin port answers").text().await;
            text.is_ok_and(|text| text.contains(&why))
        })
        .await;
    assert!(accepted.elapsed() < SOON, "{:?}", accepted.elapsed());
    let new = uncompressed(&topic, partitions);
    let created = admin(&setup)
        .create_topics([&new], &AdminOptions::new())
        .await;
    created.expect("the broker answers")[0]
        .as_ref()
        .expect("the topic is created");
    setup.all_reach(&ids, "Processed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_accepted_into_a_recreated_topic_are_kept() {
    const OLD: usize = 40;
    const NEW: usize = 160;
    const KEPT: &str = "keeping finished records";
    let mut setup = Setup::of_either_kind(CONFIG);
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let old = deliver_all(&setup, "old", OLD, &Arc::default()).await;
    setup.all_reach(&old, "Processed").await;
    setup
        .eventually("the checkpoint passes all of them", async || {
            checkpoint(&setup).await.0 >= OLD as u64
        })
        .await;
    set_running(&setup, false).await;
    delete_topics(&setup).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // The start creates the topics again. New requests get offsets that were done on the old ones.
    let process = restart(&setup);
    refused(
        &setup,
        "the checkpoint belongs to another log of this partition",
    )
    .await;
    // The first request is at an offset that was consumed on the old topic.
    let first = setup
        .client
        .post(setup.url("http", "/api/deliveryrequests"))
        .json(&delivery("first", is_remote(0)));
    let accepted = first.send().await.expect("the API answers");
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers()["location"].to_str();
    let location = setup.url("http", location.expect("the response is text"));
    let accepted: Value = accepted.json().await.expect("the response is JSON");
    let mut new = vec![
        accepted["id"]
            .as_str()
            .expect("the response has an id")
            .to_owned(),
    ];
    assert_eq!(status(&setup, &location).await["state"], "Pending");
    new.extend(deliver_all(&setup, "new", NEW, &Arc::default()).await);
    if !setup.is_on_servers() {
        setup
            .eventually("finished records would have been deleted", async || {
                let log = std::fs::read_to_string(setup.path("log.txt"));
                log.is_ok_and(|log| log.contains(KEPT))
            })
            .await;
    }
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // After a restart, the process only has the data in the `Location`.
    let process = restart(&setup);
    refused(&setup, "recreated").await;
    let pending = status(&setup, &location).await;
    assert_eq!(pending["state"], "Pending", "{pending}");
    assert_eq!(pending["ahead"], Value::Null, "{pending}");
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let _process = restart_and_skip(&setup).await;
    setup.all_reach(&new, "Processed").await;
    let is_remote = |index: usize| is_remote(index.saturating_sub(1));
    setup.assert_one_effect_per_step(&new, is_remote).await;
}

/// The API's view of an accepted request.
async fn status(setup: &Setup, location: &str) -> Value {
    let mut shown = Value::Null;
    setup
        .eventually("the status can be read", async || {
            let answer = setup.client.get(location).send().await;
            let answer = answer.expect("the API answers");
            let status = answer.status();
            shown = answer.json().await.expect("the response is JSON");
            // On a busy machine its topic might not be read in time.
            assert!(status == 200 || status == 503, "{status}: {shown}");
            status == 200
        })
        .await;
    shown
}

/// Waits until every partition is refused, and returns the text of readiness. Asserts that it and
/// `waybill doctor` contain `why`.
async fn refused(setup: &Setup, why: &str) -> String {
    setup
        .eventually("every partition is refused", async || {
            let schedulers = schedulers(setup).await;
            schedulers.iter().all(|view| view["state"] == "refused")
        })
        .await;
    let readiness = setup.client.get(setup.url("admin", "/readyz")).send().await;
    let readiness = readiness.expect("the process answers");
    assert_eq!(readiness.status(), 503);
    let readiness = readiness.text().await.expect("the response is text");
    assert!(readiness.contains(why), "{readiness}");
    assert!(readiness.contains(SKIP), "{readiness}");
    // If the records of the log differ, the lease expires.
    let mut message = String::new();
    let leases = r#""what":"leases","verdict":"bad""#;
    setup
        .eventually("doctor misses the owners", async || {
            let doctor = doctor(setup);
            assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
            message = String::from_utf8_lossy(&doctor.stdout).into_owned();
            message.contains(leases)
        })
        .await;
    assert!(message.contains(why), "{message}");
    readiness
}

/// Starts `up` again with the setting to skip missing records.
async fn restart_and_skip(setup: &Arc<Setup>) -> Process {
    let config = format!("{CONFIG}scheduler: {{ {SKIP} }}\n");
    std::fs::write(setup.path("waybill.yaml"), config).expect("the directory is writable");
    let process = restart(setup);
    // A different log is detected only at its first record, and a shard may be ready earlier.
    setup
        .eventually("deleted requests are skipped", async || {
            let log = std::fs::read_to_string(setup.path("log.txt"));
            log.is_ok_and(|log| log.contains("skipping deleted records"))
        })
        .await;
    setup.ready().await;
    process
}

/// Deletes both topics of requests, and waits until they no longer exist.
async fn delete_topics(setup: &Setup) {
    delete(
        setup,
        &[REQUESTS, HIGH_PRIORITY].map(|topic| setup.topic(topic)),
    )
    .await;
}

/// Deletes topics, and waits until they no longer exist.
async fn delete(setup: &Setup, topics: &[String]) {
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let admin = admin(setup);
    let deleted = admin.delete_topics(&names, &AdminOptions::new()).await;
    let deleted = deleted.expect("the broker answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metadata = admin.inner().fetch_metadata(None, PATIENCE);
        let metadata = metadata.expect("the broker answers");
        let is_deleted = |topic: &MetadataTopic| topics.iter().any(|name| name == topic.name());
        if !metadata.topics().iter().any(is_deleted) {
            return;
        }
        assert!(Instant::now() < deadline, "{topics:?} are not deleted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The IDs of both topics of requests, as Kafka's tools show them.
fn topic_ids(setup: &Setup) -> [String; 2] {
    let settings = KafkaSettings::new(setup.address("broker").to_string());
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("test"));
    let consumer = consumer.expect("a consumer can be made");
    [REQUESTS, HIGH_PRIORITY].map(|topic| {
        let id = consumer.topic_id(&setup.topic(topic), PartitionId(0), PATIENCE);
        let id = id.expect("the broker answers");
        id.expect("the topic has an ID").to_string()
    })
}

/// Starts or stops every shard, and waits until it has started or stopped.
pub(crate) async fn set_running(setup: &Setup, running: bool) {
    for view in schedulers(setup).await {
        let shard = setup.url("admin", &format!("/schedulers/{}", view["shard"]));
        let set = setup.client.put(shard).json(&json!({ "running": running }));
        let set = set.send().await.expect("the admin port answers");
        assert!(set.status().is_success(), "{set:?}");
    }
}

/// Deletes all records of a topic, as retention would.
pub(crate) async fn delete_all(setup: &Setup, topic: &str) {
    let mut up_to = TopicPartitionList::new();
    for view in schedulers(setup).await {
        let partition = view["partition"].as_i64().expect("it has a partition");
        let partition = i32::try_from(partition).expect("the number is small");
        up_to
            .add_partition_offset(&setup.topic(topic), partition, Offset::End)
            .expect("the offset is one");
    }
    let options = AdminOptions::new().request_timeout(Some(Timeout::After(PATIENCE)));
    let deleted = admin(setup).delete_records(&up_to, &options).await;
    let deleted = deleted.expect("records can be deleted");
    for partition in deleted.elements() {
        partition.error().expect("the records are deleted");
    }
}

/// A topic that keeps batches uncompressed: with another setting the process is not ready.
fn uncompressed(topic: &str, partitions: i32) -> NewTopic<'_> {
    NewTopic::new(topic, partitions, TopicReplication::Fixed(1))
        .set("compression.type", "uncompressed")
}

/// Deletes a topic and creates it with this number of partitions.
async fn recreate(setup: &Setup, topic: &str, partitions: i32) {
    delete(setup, &[topic.to_owned()]).await;
    let new = uncompressed(topic, partitions);
    let created = admin(setup)
        .create_topics([&new], &AdminOptions::new())
        .await;
    created.expect("the broker answers")[0]
        .as_ref()
        .expect("the topic is created");
}

fn partitions_of(setup: &Setup, topic: &str) -> i32 {
    let metadata = admin(setup).inner().fetch_metadata(Some(topic), PATIENCE);
    let metadata = metadata.expect("the broker answers");
    i32::try_from(metadata.topics()[0].partitions().len()).expect("the number is small")
}

fn admin(setup: &Setup) -> AdminClient<DefaultClientContext> {
    ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .create()
        .expect("an admin client can be made")
}

/// Runs `waybill doctor` to its end.
fn doctor(setup: &Setup) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command.envs(setup.env.iter().cloned());
    command.args(["doctor", "--output", "json", "--config"]);
    command.arg(setup.path("waybill.yaml"));
    for (flag, name) in [("--admin", "admin"), ("--http", "http")] {
        command.arg(flag).arg(setup.address(name).to_string());
    }
    if !setup.is_on_servers() {
        let broker = setup.address("broker").to_string();
        command.arg("--broker-listen").arg(broker);
    }
    command.output().expect("the program was built")
}
