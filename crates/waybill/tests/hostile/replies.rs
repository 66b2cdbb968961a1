//! Forged replies of a client that may write to the topic of replies, but may not read step
//! requests.

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use rdkafka::{ClientConfig, Message as _};
use waybill_engine::{Nonce, Outcome, StepReply, StepRequest};
use waybill_messages::Record as _;

use super::*;

/// A workflow whose agent does not run.
pub(super) const WORKFLOW: &str = "\
name: vault
version: 1
steps:
  - name: open
    agent: vault
    timeout: 5m
    retry: { maxAttempts: 3, initialInterval: 1s, multiplier: 2, maxInterval: 2s }
";
const REQUESTS: &str = "vault.requests.v1";
const REPLIES: &str = "step-replies.v1";
const DEAD: &str = "step-replies.v1.dlq";

fn client<C: rdkafka::config::FromClientConfig>(site: &Site, group: &str) -> C {
    ClientConfig::new()
        .set("bootstrap.servers", site.address("broker").to_string())
        .set("group.id", site.topic(group))
        .set("auto.offset.reset", "earliest")
        .set("message.timeout.ms", "30000")
        .create()
        .unwrap()
}

/// The next record of a consumer: its value, and the cause of a dead letter.
fn next(consumer: &BaseConsumer) -> (Vec<u8>, String) {
    let deadline = Instant::now() + PATIENCE;
    let record = loop {
        assert!(Instant::now() < deadline, "no record came");
        // Errors occur while a group or a connection is starting.
        if let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) {
            break record;
        }
    };
    let headers = record.headers().into_iter().flat_map(|all| all.iter());
    let mut causes = headers.filter(|header| header.key == "__connect.errors.exception.message");
    let cause = causes.next().and_then(|header| header.value);
    let cause = String::from_utf8_lossy(cause.unwrap_or_default()).into_owned();
    (record.payload().unwrap().to_vec(), cause)
}

async fn begin(site: &Site, id: &str) {
    let order = json!({"workflow": "vault", "id": id, "input": {}});
    let url = site.url("http", "/v1/operations");
    let deadline = Instant::now() + PATIENCE;
    while site.post(&url, &order).await != StatusCode::ACCEPTED {
        assert!(Instant::now() < deadline, "{id} was not accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn shown(site: &Site, id: &str) -> Value {
    let (_, shown_operation) = site.get("http", &format!("/v1/operations/{id}")).await;
    serde_json::from_str(&shown_operation).unwrap()
}

/// Sends a reply to the partition that its request names. Returns its value.
async fn send(
    site: &Site,
    producer: &FutureProducer,
    to: &StepRequest,
    reply: &StepReply,
) -> Vec<u8> {
    let mut value = Vec::new();
    reply.encode(&mut value).unwrap();
    let key = to.operation.key();
    let partition = i32::try_from(to.reply_partition.0).unwrap();
    let replies = site.topic(REPLIES);
    let record = FutureRecord::to(&replies);
    let record = record.partition(partition).key(&key[..]);
    let sent = producer.send(record.payload(&value), Timeout::After(PATIENCE));
    sent.await.unwrap();
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_reply_changes_no_operation() {
    for broker in Broker::all() {
        let site = Site::start_with(&Options {
            broker,
            workflows: &[("vault.yaml", WORKFLOW)],
            ..Options::default()
        });
        forged_replies_move_nothing(&site).await;
        site.remove().await;
    }
}

async fn forged_replies_move_nothing(site: &Site) {
    let requests: BaseConsumer = client(site, "vault");
    requests.subscribe(&[&site.topic(REQUESTS)]).unwrap();
    begin(site, "gold").await;
    let gold = StepRequest::decode(&next(&requests).0).unwrap();
    begin(site, "silver").await;
    let silver = StepRequest::decode(&next(&requests).0).unwrap();
    assert_ne!(gold.nonce, silver.nonce);

    let producer: FutureProducer = client(site, "none");
    let success = |by: &str| Outcome::Success {
        outputs: vec![("by".to_owned(), by.to_owned())],
    };
    let dead_letters: BaseConsumer = client(site, "dead letters");
    dead_letters.subscribe(&[&site.topic(DEAD)]).unwrap();
    for nonce in [None, Some(Nonce([7; Nonce::BYTES])), silver.nonce] {
        let forged = StepReply {
            nonce,
            ..StepReply::to(&gold, success("somebody else"))
        };
        let value = send(site, &producer, &gold, &forged).await;
        let (dead_letter, cause) = next(&dead_letters);
        assert_eq!(dead_letter, value, "unchanged");
        assert!(cause.contains("must repeat"), "{cause}");
        let shown_operation = shown(site, "gold").await;
        assert_eq!(shown_operation["state"], "Processing", "{shown_operation}");
        assert_eq!(
            shown_operation["steps"][0]["state"], "Running",
            "{shown_operation}"
        );
    }

    let real = StepReply::to(&gold, success("the agent"));
    send(site, &producer, &gold, &real).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown_operation = shown(site, "gold").await;
        if shown_operation["state"] == "Processed" {
            assert!(
                !shown_operation.to_string().contains("somebody else"),
                "{shown_operation}"
            );
            break;
        }
        assert!(
            Instant::now() < deadline,
            "gold did not end: {shown_operation}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let shown_operation = shown(site, "silver").await;
    assert_eq!(shown_operation["state"], "Processing", "{shown_operation}");
}
