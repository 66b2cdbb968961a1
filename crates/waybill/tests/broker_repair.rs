//! A damaged log of the embedded broker, from the refused start to the next successful one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;
use waybill_test_support::process::{Process, log_tail, without_variables};

const PATIENCE: Duration = Duration::from_secs(60);
const RECORDS: usize = 300;

const TOPIC: &str = "waybill.kept.v1";
/// The short name of the topic, which commands accept too.
const SHORT: &str = "kept";

fn waybill(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command.args(arguments).arg("--data-dir").arg(data);
    command.args(["--broker-listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command
}

fn text(output: &Output) -> String {
    let streams = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(streams).unwrap()
}

/// Sends records to a synced topic, each in its own batch.
fn fill(brokers: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(1)).set("flush.messages", "1");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let made = runtime.block_on(admin.create_topics([&topic], &AdminOptions::new()));
    assert!(made.unwrap().iter().all(Result::is_ok));
    config.set("batch.num.messages", "1");
    let producer: BaseProducer = config.create().unwrap();
    for n in 0..RECORDS {
        let payload = format!("record {n}");
        let record = BaseRecord::<(), _>::to(TOPIC).payload(&payload);
        producer.send(record).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

#[test]
fn a_repair_after_a_flipped_bit_loses_only_that_batch() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let log = dir.path().join("log.txt");
    let (process, addresses) = Process::start(waybill(&data, &["broker"]), &["broker"], &log);
    fill(&addresses["broker"].to_string());
    drop(process);
    let segment: PathBuf = data.join("broker/logs/waybill.kept.v1/0/00000000000000000000.log");
    let mut bytes = fs::read(&segment).unwrap();
    let needle = b"record 147";
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle)
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, &bytes).unwrap();

    let refused = waybill(&data, &["broker"]).output().unwrap();
    let report = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{report}");
    let command = format!(
        "waybill broker repair --data-dir {} --topic waybill.kept.v1 --partition 0",
        data.display()
    );
    for named in [command.as_str(), segment.to_str().unwrap(), "offset 147"] {
        assert!(report.contains(named), "{named}: {report}");
    }
    assert!(fs::read(&segment).unwrap() == bytes, "nothing was cut");

    let arguments = ["broker", "repair", "--topic", SHORT, "--partition", "0"];
    let looked = waybill(&data, &[&arguments[..], &["--output", "json"]].concat());
    let looked = { looked }.output().unwrap();
    assert_eq!(looked.status.code(), Some(1), "{}", text(&looked));
    let found: Value = serde_json::from_slice(&looked.stdout).unwrap();
    assert_eq!(
        (&found["firstOffset"], &found["records"], &found["applied"]),
        (&147.into(), &1.into(), &false.into())
    );
    assert!(fs::read(&segment).unwrap() == bytes, "nothing was changed");
    let repaired = waybill(&data, &[&arguments[..], &["--apply"]].concat())
        .output()
        .unwrap();
    assert!(repaired.status.success(), "{}", text(&repaired));
    let aside = found["aside"].as_str().unwrap();
    let kept = fs::read(aside).unwrap();
    assert!(
        kept.windows(needle.len() - 1)
            .any(|window| window == &needle[1..])
    );

    let (process, addresses) = Process::start(waybill(&data, &["broker"]), &["broker"], &log);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", addresses["broker"].to_string());
    let consumer: BaseConsumer = config.create().unwrap();
    let (low, high) = consumer.fetch_watermarks(TOPIC, 0, PATIENCE).unwrap();
    assert_eq!((low, high), (0, RECORDS as i64), "{}", log_tail(&log));
    drop(process);
    let looked = waybill(&data, &["broker", "repair"]).output().unwrap();
    assert!(looked.status.success(), "{}", text(&looked));
}
