//! `waybill records`, and arguments that commands refuse.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset as At, TopicPartitionList};
use serde_json::{Value, json};
use waybill_messages::RECORD_SCHEMAS;
use waybill_test_support::process::without_variables;

use crate::setup::*;

#[test]
fn records_are_printed_decoded_and_what_does_not_decode_harms_no_other() {
    let setup = Setup::new();
    let headers: [(&str, Option<&[u8]>); 2] = [("traceparent", Some(b"00-1")), ("none", None)];
    setup.produce((REPLIES, 0), Some(b"key"), Some(&reply("drone")), &headers);
    setup.produce((REPLIES, 0), Some(KEY), Some(POISON), &[]);
    setup.produce((REPLIES, 0), None, None, &[]);
    setup.produce((REPLIES, 1), None, Some(&reply("package")), &[]);

    let lines = setup.json("records step-replies");
    assert_eq!(lines, setup.json(&format!("records {REPLIES}")));
    assert_eq!(field(&lines, "partition"), [0, 0, 0, 1]);
    assert_eq!(field(&lines, "offset"), [0, 1, 2, 0]);

    assert_eq!(lines[0]["timestamp"], setup.made_at());
    assert_eq!(lines[0]["key"], "key");
    assert_eq!(
        lines[0]["headers"],
        json!([{"name": "traceparent", "value": "00-1"}, {"name": "none", "value": null}])
    );
    assert_eq!(lines[0]["schema"], "step-reply");
    assert_eq!(lines[0]["value"]["step"], "drone");
    assert_eq!(lines[0]["value"]["outputs"], json!({"droneId": "d-5"}));
    assert_eq!(lines[0].get("error"), None);

    assert_eq!(lines[1]["value"], Value::Null);
    assert_eq!(lines[1]["key"], json!({"base64": "/2tleQ=="}));
    assert_eq!(lines[1]["bytes"], "AAFwb2lzb24NCv8=");
    let cause = lines[1]["error"].as_str().unwrap();
    assert!(
        cause.contains("the value has schema id 24145769"),
        "{cause}"
    );

    assert_eq!(lines[2]["value"], Value::Null);
    assert_eq!(lines[2].get("error"), None, "no value is nothing to decode");
    assert_eq!(lines[3]["value"]["step"], "package");

    let table = setup.text("records step-replies --output table");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.lines().nth(2).unwrap().ends_with("AAFwb2lzb24NCv8="));
}

#[test]
fn start_and_end_of_the_records_can_be_chosen() {
    let setup = Setup::new();
    for index in 0..30 {
        let step = format!("step-{index}");
        setup.produce((REPLIES, index % 2), None, Some(&reply(&step)), &[]);
    }
    let offsets = |arguments: &str| -> Vec<(u64, u64)> {
        let lines = setup.json(&format!("records step-replies {arguments}"));
        let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
        let place = |line: &Value| (number(line, "partition"), number(line, "offset"));
        lines.iter().map(place).collect()
    };
    let of = |partition: u64, offsets: std::ops::Range<u64>| offsets.map(move |at| (partition, at));
    let all: Vec<_> = of(0, 0..15).chain(of(1, 0..15)).collect();
    assert_eq!(offsets(""), all);
    assert_eq!(offsets("--count 17"), all[..17]);
    assert_eq!(offsets("--partition 1"), all[15..]);
    assert_eq!(offsets("--partition 1 --from 13"), all[28..]);
    assert_eq!(offsets("--partition 1 --from 13 --count 1"), all[28..29]);
    assert_eq!(offsets("--from end"), []);
    assert_eq!(offsets("--partition 0 --from 15"), []);

    let refusal = setup.refusal("records step-replies --partition 1 --from 16");
    assert!(
        refusal.contains("no offset 16: it holds 0 up to 15"),
        "{refusal}"
    );
    setup.forget(REPLIES, 1, 4);
    assert_eq!(offsets("--partition 1"), all[19..]);
    let refusal = setup.refusal("records step-replies --partition 1 --from 3");
    assert!(
        refusal.contains("no offset 3: it holds 4 up to 15"),
        "{refusal}"
    );
    let output = setup.run("records step-replies --from 3");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let refusal = String::from_utf8(output.stderr).unwrap();
    assert!(
        refusal.contains("--partition is required: ") && refusal.contains("has 2 partitions"),
        "{refusal}"
    );
    let refusal = setup.refusal("records step-replies --partition 2");
    assert!(refusal.contains("has no partition 2"), "{refusal}");
}

#[test]
fn following_prints_new_records_only() {
    let setup = Setup::new();
    setup.produce((REPLIES, 0), None, Some(&reply("before")), &[]);
    let mut following = setup
        .command("records step-replies --from end --follow --output table --count 2")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The heading is written once the start offsets are fixed.
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut heading = String::new();
    out.read_line(&mut heading).unwrap();
    assert!(heading.starts_with("PARTITION"), "{heading}");
    setup.produce((REPLIES, 0), None, Some(&reply("first")), &[]);
    setup.produce((REPLIES, 1), None, Some(&reply("second")), &[]);
    assert!(finished(following, "records --follow").status.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.lines().count(), 2, "{rest}");
    assert!(
        rest.contains("first") && rest.contains("second") && !rest.contains("before"),
        "{rest}"
    );
}

#[test]
fn reading_creates_no_topic_and_commits_no_offset() {
    let setup = Setup::new();
    setup.produce((REPLIES, 0), None, Some(&reply("drone")), &[]);
    assert_eq!(setup.json("records step-replies").len(), 1);
    let refusal = setup.refusal("records nowhere");
    assert!(
        refusal.contains("there is no topic nowhere or waybill.nowhere.v1 at 127.0.0.1:"),
        "{refusal}"
    );
    let consumer: BaseConsumer = setup
        .client()
        .set("group.id", "waybill-no-group")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(None, PATIENCE).unwrap();
    let mut topics: Vec<&str> = metadata.topics().iter().map(|topic| topic.name()).collect();
    topics.sort_unstable();
    assert_eq!(topics, [REPLIES, DEAD]);
    let mut list = TopicPartitionList::new();
    list.add_partition(REPLIES, 0);
    let committed = consumer.committed_offsets(list, PATIENCE).unwrap();
    assert_eq!(committed.elements()[0].offset(), At::Invalid);
}

#[test]
fn a_confluent_framed_record_is_decoded_with_the_schema_that_is_given() {
    let setup = Setup::new();
    let confluent = [&[0, 0, 0, 0, 7], &reply("drone")[10..]].concat();
    setup.produce((REPLIES, 0), None, Some(&confluent), &[]);
    let line = &setup.json("records step-replies")[0];
    let cause = line["error"].as_str().unwrap();
    assert!(cause.contains("--schema 7=FILE"), "{cause}");

    let schema = RECORD_SCHEMAS
        .iter()
        .find(|record| record.name == "step-reply")
        .unwrap();
    let file = setup.dir.path().join("reply.avsc");
    std::fs::write(&file, schema.json).unwrap();
    let given = format!("records step-replies --schema 7={}", file.display());
    assert_eq!(setup.json(&given)[0]["value"]["step"], "drone");

    std::fs::write(&file, "{").unwrap();
    let refusal = setup.refusal(&given);
    assert!(refusal.contains("not an Avro schema"), "{refusal}");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let setup = Setup::new();
    for _ in 0..3 {
        setup.produce((REPLIES, 0), None, Some(&[b'x'; 200_000]), &[]);
    }
    let mut printing = setup
        .command("records step-replies")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    let mut out = printing.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = finished(printing, "records");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn unreachable_brokers_and_invalid_arguments_are_errors() {
    let setup = Setup::new();
    // The socket is bound and does not listen.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let away = held.local_addr().unwrap().to_string();
    for command in [
        &["records", "step-replies"][..],
        &["dlq", "list"],
        &["topics", "verify"],
    ] {
        let output = without_variables(&mut Command::new(env!("CARGO_BIN_EXE_waybill")))
            .args(command)
            .args(["--brokers", &away])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            message,
            format!("waybill: no broker answered at {away}: Connection refused (os error 111)\n")
        );
    }

    for arguments in [
        "records",
        "records a/b",
        "records t --from soon",
        "records t --count 0",
        "records t --schema 7",
        "dlq show t",
        "dlq show t 0",
        "dlq show t/0",
        "dlq show t/0/1 0",
        "dlq show t 0 -1",
        "dlq list --after t/0",
        "dlq replay t",
        "dlq replay t 0",
        "dlq replay t/0/1 --all",
        "dlq replay t 0 1 --all",
        "dlq replay t 0 1 --limit 5",
        "dlq replay t --all --rate 0/s",
    ] {
        let output = setup.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
    }
}
