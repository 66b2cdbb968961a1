//! Logs that lost records which the checkpoints count on: unfinished requests were deleted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, util::Timeout};
use serde_json::Value;
use waybill_engine::{OperationId, partition_for};
use waybill_test_support::setup::PATIENCE;

use crate::cluster::{Cluster, deliver};
use crate::member::Member;
use crate::{PARTITIONS, is_remote};

const DELIVERIES: usize = 60;
const SKIP: &str = "skipDeletedRequests: true";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_removed_by_retention_are_never_skipped_silently() {
    const OVERTAKEN: u32 = 2;
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    let ingestion = cluster.ingestion(&services, "");
    let mut scheduler = cluster.scheduler("0-3", "");
    scheduler.setup.ready().await;
    let mut ids = deliver(&ingestion, "done", DELIVERIES).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    scheduler.terminate();

    let waiting = deliver(&ingestion, "waiting", DELIVERIES).await;
    delete_requests(&cluster, OVERTAKEN).await;
    scheduler.start_again();
    refused(&scheduler, &BTreeSet::from([OVERTAKEN])).await;
    let readiness = scheduler.readiness().await.expect("it is alive");
    assert!(
        readiness.contains("the records between were deleted"),
        "{readiness}"
    );
    assert!(readiness.contains(SKIP), "{readiness}");
    // Only that one partition waits for a person.
    let (gone, there): (Vec<_>, Vec<_>) = waiting
        .into_iter()
        .partition(|id| partition_of(id) == OVERTAKEN);
    assert!(!gone.is_empty() && !there.is_empty());
    ingestion.setup.all_reach(&there, "Processed").await;
    scheduler.terminate();

    let scheduler = cluster.scheduler_with("0-3", SKIP);
    scheduler.setup.ready().await;
    let log = scheduler.setup.log_tail();
    assert!(log.contains("skipping deleted records"), "{log}");
    ids.extend(deliver(&ingestion, "behind", DELIVERIES).await);
    ingestion.setup.all_reach(&ids, "Processed").await;
    let setup = &ingestion.setup;
    setup
        .assert_one_effect_per_step(&ids, |index| is_remote(index % DELIVERIES))
        .await;
    drop((services, others, ingestion, scheduler));
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_topic_is_refused_until_an_operator_accepts_it() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    let ingestion = cluster.ingestion(&services, "");
    let mut scheduler = cluster.scheduler("0-3", "");
    scheduler.setup.ready().await;
    let mut ids = deliver(&ingestion, "before", DELIVERIES).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    done_in_all(&cluster, &scheduler).await;

    // While all clients use it.
    make_anew(&cluster, &["operation-requests"]).await;
    refused(&scheduler, &(0..PARTITIONS).collect()).await;
    let readiness = scheduler.readiness().await.expect("it is alive");
    assert!(
        readiness.contains("the checkpoint belongs to another log of this partition"),
        "{readiness}"
    );
    // Requests that are accepted now wait on the new topic.
    ids.extend(deliver(&ingestion, "between", DELIVERIES).await);
    scheduler.terminate();
    let mut scheduler = cluster.scheduler_with("0-3", SKIP);
    scheduler.setup.ready().await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    done_in_all(&cluster, &scheduler).await;
    scheduler.terminate();

    // Both topics, while no consumer reads them, so that they have more records than the
    // checkpoints of the old ones.
    make_anew(&cluster, &["operation-requests", "high-priority-requests"]).await;
    ids.extend(deliver(&ingestion, "more", 3 * DELIVERIES).await);
    let mut scheduler = cluster.scheduler("0-3", "");
    refused(&scheduler, &(0..PARTITIONS).collect()).await;
    let readiness = scheduler.readiness().await.expect("it is alive");
    assert!(readiness.contains("has fingerprint"), "{readiness}");
    scheduler.terminate();
    let scheduler = cluster.scheduler_with("0-3", SKIP);
    scheduler.setup.ready().await;
    ids.extend(deliver(&ingestion, "after", DELIVERIES).await);
    ingestion.setup.all_reach(&ids, "Processed").await;
    // Each is detected while it is read, not earlier.
    let log = std::fs::read_to_string(scheduler.setup.path("log.txt")).expect("there is a log");
    let passed: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("skipping deleted records"))
        .collect();
    let (high, normal): (Vec<&str>, Vec<&str>) = passed
        .iter()
        .partition(|line| line.contains("high-priority requests: "));
    assert!(!normal.is_empty() && !high.is_empty(), "{passed:?}");
    let setup = &ingestion.setup;
    setup
        .assert_one_effect_per_step(&ids, |index| is_remote(index % DELIVERIES))
        .await;
    drop((services, others, ingestion, scheduler));
    cluster.remove().await;
}

/// Deletes topics of requests, and creates them again with the same settings.
async fn make_anew(cluster: &Cluster, names: &[&str]) {
    let topics: Vec<String> = names.iter().map(|name| topic(cluster, name)).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    let deleted = admin.delete_topics(&topics, &AdminOptions::new()).await;
    let deleted = deleted.expect("the broker answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let deadline = Instant::now() + PATIENCE;
    // Until then no record seems to be missing.
    let are_there = || {
        let metadata = admin.inner().fetch_metadata(None, PATIENCE);
        let metadata = metadata.expect("the broker answers");
        let names = metadata.topics().iter().map(|topic| topic.name());
        names.into_iter().any(|name| topics.contains(&name))
    };
    while are_there() {
        assert!(Instant::now() < deadline, "{topics:?} are not deleted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    while !cluster.run(&["topics", "create"]).status.success()
        || !cluster.run(&["topics", "verify"]).status.success()
    {
        assert!(Instant::now() < deadline, "{topics:?} cannot be recreated");
    }
}

/// Waits until each partition's checkpoint has passed a request, durably.
async fn done_in_all(cluster: &Cluster, scheduler: &Member) {
    let is_done = async || {
        let shown = cluster.run(&["shards", "show", "--output", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("shards are shown");
        let shards = shown["shards"].as_array().expect("there are shards");
        let is_done = |shard: &Value| shard["checkpoint"]["requests"].as_i64() > Some(0);
        shards.iter().all(is_done)
    };
    let what = "each partition has a checkpoint";
    scheduler.setup.eventually(what, is_done).await;
}

fn topic(cluster: &Cluster, name: &str) -> String {
    format!("{}.{name}.v1", cluster.name)
}

fn partition_of(id: &str) -> u32 {
    let id = OperationId(id.parse().expect("an id is a UUID"));
    partition_for(id, PARTITIONS).0
}

/// Deletes all requests of a partition, as retention would.
async fn delete_requests(cluster: &Cluster, partition: u32) {
    let partition = i32::try_from(partition).expect("the number is small");
    let mut up_to = TopicPartitionList::new();
    up_to
        .add_partition_offset(
            &topic(cluster, "operation-requests"),
            partition,
            Offset::End,
        )
        .expect("the offset is one");
    let admin: AdminClient<DefaultClientContext> = cluster.kafka_client();
    let options = AdminOptions::new().request_timeout(Some(Timeout::After(PATIENCE)));
    let deleted = admin.delete_records(&up_to, &options).await;
    deleted.expect("records can be deleted");
}

/// Waits until a scheduler refuses exactly these partitions and runs the others.
async fn refused(scheduler: &Member, partitions: &BTreeSet<u32>) {
    let is_refused = async || {
        let views = scheduler.schedulers().await;
        let in_state = |state: &str| -> BTreeSet<u32> {
            let views = views.iter().filter(|view| view["state"] == state);
            let numbers = views.filter_map(|view| view["partition"].as_u64());
            numbers
                .filter_map(|number| u32::try_from(number).ok())
                .collect()
        };
        in_state("refused") == *partitions
            && in_state("running").len() + partitions.len() == PARTITIONS as usize
    };
    scheduler
        .setup
        .eventually("partitions are refused", is_refused)
        .await;
}
