//! Batches on Kafka that no client can decode, on each topic that Waybill reads.

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::batches::{batch, produce};
use waybill_test_support::setup::PATIENCE;

use crate::cluster::{Cluster, all_end_without_a_person, deliver};

/// The topics, without their prefix: those of schedulers, of an agent, of supervisors, and of
/// alerts and notices.
const TOPICS: [&str; 7] = [
    "operation-requests.v1",
    "step-replies.v1",
    "recovery.v1",
    "drone.requests.v1",
    "failed-operations.v1",
    "operator-alerts.v1",
    "owner-notices.v1",
];

/// A record whose value has the length -2: its length, attributes, time and offset deltas, and no
/// key.
const RECORD: [u8; 7] = [12, 0, 0, 0, 1, 3, 0];

/// A receiver of alerts and a channel to owners, at an address where nothing listens.
const ALERTS: &str = "\
alerts:
  receivers: { pager: { webhook: { url: 'http://127.0.0.1:9/', secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0 } } }
  owners: { sms: { url: 'http://127.0.0.1:9/', template: '{\"text\": \"{{notice.text}}\"}' } }
";

/// The text of an undecodable batch in readiness, and wherever else the reason is shown.
const REASON: &str = "records at this offset cannot be parsed";

/// A batch is skipped when it fails for the second time, which takes most of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_records_are_skipped_on_every_topic() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let scheduler = cluster.scheduler("all", "");
    let roles = [cluster.supervisor(ALERTS), cluster.agents(&services, "")];
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
            readiness.contains(REASON)
        })
        .await;
    scheduler
        .setup
        .eventually("so does the list of schedulers", async || {
            let schedulers = scheduler.schedulers().await;
            schedulers
                .iter()
                .any(|view| view.to_string().contains(REASON))
        })
        .await;
    let admin = scheduler.setup.url("admin", "");
    let doctor = cluster.run(&["doctor", "--output", "json", "--admin-url", &admin]);
    let findings = String::from_utf8_lossy(&doctor.stdout);
    assert!(!doctor.status.success(), "{doctor:?}");
    assert!(findings.contains(REASON), "{findings}");

    let consumer: BaseConsumer = cluster.kafka_client();
    for topic in &topics {
        let dead_letters = format!("{topic}.dlq");
        scheduler
            .setup
            .eventually(
                &format!("{dead_letters} has one, with the position"),
                async || {
                    let ends = consumer.fetch_watermarks(&dead_letters, 0, PATIENCE);
                    ends.is_ok_and(|ends| ends == (0, 1))
                },
            )
            .await;
    }
    all_end_without_a_person(&ingestion.setup, &ids).await;
    scheduler.setup.ready().await;
    drop((services, ingestion, scheduler, roles));
    cluster.remove().await;
}
