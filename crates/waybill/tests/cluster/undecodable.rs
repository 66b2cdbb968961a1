//! Batches on Kafka that no client can decode, on each topic that schedulers read.

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::batches::{batch, produce};
use waybill_test_support::setup::PATIENCE;

use crate::cluster::{Cluster, all_end_without_a_person, deliver};

/// The topics, without their prefix.
const TOPICS: [&str; 3] = ["operation-requests.v1", "step-replies.v1", "recovery.v1"];

/// A record whose value has the length -2: its length, attributes, time and offset deltas, and no
/// key.
const RECORD: [u8; 7] = [12, 0, 0, 0, 1, 3, 0];

/// A batch is skipped when it fails for the second time, which takes most of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_records_are_skipped_on_every_topic() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let scheduler = cluster.scheduler("all", "");
    let roles = [cluster.supervisor(""), cluster.agents(&services, "")];
    scheduler.setup.ready().await;
    let topics = TOPICS.map(|topic| format!("{}.{topic}", cluster.name));
    for topic in &topics {
        assert_eq!(
            produce(&cluster.brokers, topic, &batch(0, &[RECORD.to_vec()])),
            0
        );
    }
    let ids = deliver(&ingestion, "behind", 20).await;

    scheduler
        .setup
        .eventually("readiness names a partition", async || {
            let readiness = scheduler.readiness().await.unwrap_or_default();
            readiness.contains("records at this offset cannot be parsed")
        })
        .await;
    let consumer: BaseConsumer = cluster.kafka_client();
    for topic in &topics {
        let dead_letters = format!("{topic}.dlq");
        scheduler
            .setup
            .eventually("a dead letter has its position", async || {
                let ends = consumer.fetch_watermarks(&dead_letters, 0, PATIENCE);
                ends.is_ok_and(|ends| ends == (0, 1))
            })
            .await;
    }
    all_end_without_a_person(&ingestion.setup, &ids).await;
    scheduler.setup.ready().await;
    drop((services, ingestion, scheduler, roles));
    cluster.remove().await;
}
