//! The records on the topics, and records that cannot be decoded yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash, Timestamp, partition_for,
};
use waybill_messages::{Record as _, RecordKind};
use waybill_test_support::registry::Stub;
use waybill_test_support::setup::{PATIENCE, Setup, delivery};

use crate::{STATUS, deliver, schema_of, with_registry};

const PARTITIONS: u32 = 2;
const REQUESTS: &str = "waybill.operation-requests.v1";
const DEAD: &str = "waybill.operation-requests.v1.dlq";

fn client(setup: &Setup) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", setup.address("broker").to_string());
    client.set("group.id", "test");
    client
}

/// The values of all current records, with their topics' names.
pub fn values(setup: &Setup) -> Vec<(String, Vec<u8>)> {
    let consumer: BaseConsumer = client(setup).create().unwrap();
    let metadata = consumer.fetch_metadata(None, PATIENCE).unwrap();
    let mut open = BTreeMap::new();
    let mut list = TopicPartitionList::new();
    for topic in metadata.topics() {
        for partition in topic.partitions() {
            let at = (topic.name().to_owned(), partition.id());
            let (low, high) = consumer.fetch_watermarks(&at.0, at.1, PATIENCE).unwrap();
            if low < high {
                list.add_partition_offset(&at.0, at.1, Offset::Offset(low))
                    .unwrap();
                open.insert(at, high);
            }
        }
    }
    consumer.assign(&list).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut values = Vec::new();
    while !open.is_empty() {
        assert!(Instant::now() < deadline, "not read to the end: {open:?}");
        let Some(record) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let record = record.unwrap();
        let at = (record.topic().to_owned(), record.partition());
        if open
            .get(&at)
            .is_some_and(|high| record.offset() + 1 >= *high)
        {
            open.remove(&at);
        }
        values.push((at.0, record.payload().unwrap().to_vec()));
    }
    values
}

/// The ID in a value's frame; `None` for another framing.
pub fn id_of(value: &[u8]) -> Option<u32> {
    let (id, _) = value.strip_prefix(&[0])?.split_first_chunk()?;
    Some(u32::from_be_bytes(*id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_has_a_schema_id_of_its_subject() {
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = setup.up();
    setup.ready().await;
    let ids = deliver(&setup, "framed", 20).await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, |_| false).await;
    let values = values(&setup);
    for (topic, value) in &values {
        let id = id_of(value).unwrap_or_else(|| panic!("{topic} holds {value:?}"));
        assert_eq!(stub.versions(&format!("{topic}-value")), [id], "{topic}");
    }
    let statuses = values.iter().filter(|(topic, _)| topic == STATUS).count();
    assert_eq!(statuses, ids.len());
    assert!(
        values
            .iter()
            .any(|(topic, _)| topic == "waybill.drone.requests.v1")
    );

    // The number of requests to the registry does not grow with the records.
    let asked = stub.asked().len();
    let more = deliver(&setup, "more", 20).await;
    setup.all_reach(&more, "Processed").await;
    assert_eq!(stub.asked().len(), asked);

    // Commands read the records with the same configuration.
    let brokers = setup.address("broker").to_string();
    let printed = crate::waybill(
        &setup.path("waybill.yaml"),
        &["records", "operation-status", "--brokers", &brokers],
    );
    let text = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(text.lines().count(), ids.len() + more.len(), "{text}");
    for line in text.lines() {
        assert!(line.contains(r#""state":"Processed""#), "{line}");
    }
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_with_a_registry_and_with_a_read_only_one_lose_nothing() {
    let stub = Stub::start().await;
    let mut setup = Setup::new("partitions: 2\n");
    let up = setup.up();
    setup.ready().await;
    let mut ids = deliver(&setup, "plain", 100).await;
    // Many of them are running.
    up.kill();
    for more in ["", "framing: singleObject", ""] {
        std::fs::write(setup.path("waybill.yaml"), with_registry(&stub, more)).unwrap();
        let up = setup.up();
        ids.extend(deliver(&setup, &format!("{}-more", ids.len()), 50).await);
        up.kill();
    }
    let _up = setup.up();
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, |_| false).await;
    let values = values(&setup);
    let dead = values.iter().filter(|(topic, _)| topic.ends_with(".dlq"));
    assert_eq!(dead.count(), 0);
    let of_requests = values.iter().filter(|(topic, _)| topic == REQUESTS);
    let framed: Vec<bool> = of_requests
        .map(|(_, value)| id_of(value).is_some())
        .collect();
    assert!(framed.contains(&true) && framed.contains(&false));
}

/// A request of a program that registered its own schema: the same fields without documentation.
fn foreign_request(name: &str, id: u32) -> (OperationId, Vec<u8>) {
    let operation = OperationId::of_caller("", name);
    let request = OperationRequest::Create(CreateRequest {
        operation,
        id_origin: IdOrigin::Caller,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: Some(name.to_owned()),
        input: serde_json::to_vec(&delivery(name, false)).unwrap(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        verify_hash: false,
        requested_at: Timestamp::from_millis(1_700_000_000_000),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    });
    let mut value = Vec::new();
    request.encode(&mut value).unwrap();
    (
        operation,
        [&[0], &id.to_be_bytes()[..], &value[10..]].concat(),
    )
}

fn produce(setup: &Setup, operation: OperationId, value: &[u8]) {
    let producer: BaseProducer = client(setup).create().unwrap();
    let partition = partition_for(operation, PARTITIONS).0 as i32;
    let key = operation.key();
    let record = BaseRecord::<[u8], [u8]>::to(REQUESTS)
        .partition(partition)
        .key(&key)
        .payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
}

/// The schema of requests as another program would register it: with a different text, and so
/// another ID.
fn foreign_schema(stub: &Stub) -> u32 {
    let mut schema: serde_json::Value =
        serde_json::from_str(schema_of(RecordKind::OperationRequest).json).unwrap();
    schema.as_object_mut().unwrap().remove("doc");
    stub.give("elsewhere-value", &schema.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_schemas_are_read_during_a_registry_outage() {
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, ""));
    // A high-priority request does not wait for the other topic.
    setup.send_only_normal();
    let up = setup.up();
    setup.ready().await;
    let id = foreign_schema(&stub);
    stub.goes_away();
    let (waiting, value) = foreign_request("foreign", id);
    produce(&setup, waiting, &value);
    setup
        .eventually("the schema is requested", async || {
            stub.asked().contains(&format!("GET /schemas/ids/{id}"))
        })
        .await;

    // Its own partition waits for it, in order; the other one continues.
    let at_home = |id: &str| {
        let operation: OperationId = id.parse().unwrap();
        partition_for(operation, PARTITIONS) == partition_for(waiting, PARTITIONS)
    };
    let ids = deliver(&setup, "away", 40).await;
    let (behind, beside): (Vec<String>, Vec<String>) = ids.into_iter().partition(|id| at_home(id));
    assert!(!behind.is_empty() && !beside.is_empty());
    setup.all_reach(&beside, "Processed").await;
    for id in &behind {
        assert_ne!(setup.state(id).await.as_deref(), Some("Processed"));
    }

    stub.is_back();
    setup.all_reach(&[waiting.to_string()], "Processed").await;
    setup.all_reach(&behind, "Processed").await;
    assert!(values(&setup).iter().all(|(topic, _)| topic != DEAD));
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_for_a_schema_stops_and_resumes() {
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = setup.up();
    setup.ready().await;
    let id = foreign_schema(&stub);
    stub.goes_away();
    let (waiting, value) = foreign_request("stopped", id);
    produce(&setup, waiting, &value);
    setup
        .eventually("the schema is requested", async || {
            stub.asked().contains(&format!("GET /schemas/ids/{id}"))
        })
        .await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    stub.is_back();
    let _up = setup.up();
    setup.all_reach(&[waiting.to_string()], "Processed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_with_an_unknown_schema_id_is_poison() {
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = setup.up();
    setup.ready().await;
    let (poison, value) = foreign_request("poison", 1);
    produce(&setup, poison, &value);
    let ids = deliver(&setup, "beside", 10).await;
    setup.all_reach(&ids, "Processed").await;
    let mut dead = Vec::new();
    setup
        .eventually("the poison record is dead-lettered", async || {
            dead = values(&setup);
            dead.retain(|(topic, _)| topic == DEAD);
            !dead.is_empty()
        })
        .await;
    assert_eq!(dead, [(DEAD.to_owned(), value)]);
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}
