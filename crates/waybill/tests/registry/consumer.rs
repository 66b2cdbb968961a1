//! A standard consumer reads the status topic: the Confluent client for Python, with its own
//! registry client and Avro deserializer.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use waybill_test_support::registry::Stub;
use waybill_test_support::setup::Setup;

use crate::{STATUS, deliver, with_registry};

/// Names a Python with `confluent-kafka[avro,schemaregistry]`. The default is `python3`.
const PYTHON: &str = "WAYBILL_TEST_PYTHON";

/// Prints each current record of a topic as a JSON line.
const SCRIPT: &str = r#"
import json, sys
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

brokers, registry, topic, wanted = sys.argv[1:]
read = AvroDeserializer(SchemaRegistryClient({"url": registry}))
consumer = Consumer({"bootstrap.servers": brokers, "group.id": "python"})
partitions = consumer.list_topics(topic).topics[topic].partitions
consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
for _ in range(int(wanted)):
    record = None
    while record is None:
        record = consumer.poll(1.0)
    if record.error():
        raise Exception(record.error())
    value = read(record.value(), SerializationContext(topic, MessageField.VALUE))
    print(json.dumps({"operation": str(value["operation"]), "state": value["state"]}))
"#;

/// A Python with the script's dependencies, if there is one.
fn python() -> Option<String> {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    let imports = "import confluent_kafka.schema_registry.avro";
    let tried = Command::new(&python)
        .args(["-c", imports])
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success()).then_some(python)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standard_consumer_reads_the_status_topic_with_the_registry_alone() {
    let Some(python) = python() else {
        println!(
            "SKIPPED: a standard consumer: {PYTHON} names no Python with confluent-kafka[avro]"
        );
        return;
    };
    let stub = Stub::start().await;
    let mut setup = Setup::new(&with_registry(&stub, ""));
    let up = setup.up();
    setup.ready().await;
    let mut ids = deliver(&setup, "python", 10).await;
    setup.all_reach(&ids, "Processed").await;
    let (brokers, registry) = (setup.address("broker").to_string(), stub.url());
    let count = ids.len().to_string();
    // The registry runs on this runtime.
    let read = tokio::task::spawn_blocking(move || {
        let arguments = [&*brokers, &*registry, STATUS, &*count];
        Command::new(Path::new(&python))
            .args(["-c", SCRIPT])
            .args(arguments)
            .output()
    });
    let output = read.await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut read = Vec::new();
    for line in text.lines() {
        let status: Value = serde_json::from_str(line).unwrap();
        assert_eq!(status["state"], "Processed");
        read.push(status["operation"].as_str().unwrap().to_owned());
    }
    read.sort();
    ids.sort();
    assert_eq!(read, ids);
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}
