//! `waybill dlq`.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rdkafka::message::{Headers as _, Message as _};
use serde_json::{Value, json};

use crate::setup::*;

#[test]
fn dead_letters_are_listed_page_by_page_each_once() {
    let setup = Setup::new();
    for index in 0..25 {
        setup.bury(REPLIES, index % 2, &[], POISON);
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = setup.json(&format!("dlq list --output json --limit 10 {after}"));
        assert!(page.len() <= 10, "{}", page.len());
        let Some(last) = page.last() else { break };
        after = format!("--after {}", last["cursor"].as_str().unwrap());
        seen.extend(page);
    }
    let places: Vec<(u64, u64)> = seen
        .iter()
        .map(|line| {
            (
                line["partition"].as_u64().unwrap(),
                line["offset"].as_u64().unwrap(),
            )
        })
        .collect();
    let expected: Vec<_> = (0..13)
        .map(|at| (0, at))
        .chain((0..12).map(|at| (1, at)))
        .collect();
    assert_eq!(places, expected);
    let source = json!({"topic": REPLIES, "partition": 0, "offset": 17});
    for (name, value) in [
        ("topic", json!(DEAD)),
        ("timestamp", json!(setup.made_at())),
        ("source", source),
        ("stage", json!("VALUE_CONVERTER")),
        ("component", json!("scheduler")),
        ("kind", json!("DecodeError")),
        ("cause", json!("no\nrecord")),
        ("key", json!({"base64": "/2tleQ=="})),
        ("bytes", json!(KEY.len() + POISON.len())),
    ] {
        assert_eq!(seen[0][name], value, "{name}");
    }

    let output = setup.run("dlq list --topic step-replies --limit 20");
    let (table, note) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(table.lines().count(), 21, "{table}");
    assert!(table.contains("no\\nrecord"), "{table}");
    assert!(
        note.contains(&format!("there are more: --after {DEAD}/1/6")),
        "{note}"
    );
}

#[test]
fn every_dead_letter_topic_with_the_prefix_is_listed_with_its_records() {
    const UNKNOWN: &str = "waybill.nobody-knows-it.dlq";
    const ANOTHERS: [&str; 2] = [
        "another-application.dlq",
        "waybill-test.step-replies.v1.dlq",
    ];
    let setup = Setup::new();
    setup.create(UNKNOWN, 3);
    setup.create("waybill.dlq.v1", 1);
    for topic in ANOTHERS {
        setup.create(topic, 1);
        setup.produce((topic, 0), None, Some(POISON), &[]);
    }
    let topics = || {
        let lines = setup.json("dlq topics --output json");
        let row = |line: &Value| {
            (
                line["topic"].as_str().unwrap().to_owned(),
                line["partitions"].as_u64().unwrap(),
                line["records"].as_u64().unwrap(),
            )
        };
        lines.iter().map(row).collect::<Vec<_>>()
    };
    let held = |unknown, dead| [(UNKNOWN.to_owned(), 3, unknown), (DEAD.to_owned(), 2, dead)];
    assert_eq!(topics(), held(0, 0));
    assert!(setup.json("dlq list --output json").is_empty());

    setup.bury(REPLIES, 0, &[], POISON);
    setup.bury(REPLIES, 1, &[], POISON);
    for partition in [0, 2, 2] {
        setup.produce((UNKNOWN, partition), None, Some(POISON), &[]);
    }
    assert_eq!(topics(), held(3, 2));
    let dead_letters = setup.json("dlq list --output json");
    assert_eq!(
        field(&dead_letters, "topic"),
        [UNKNOWN, UNKNOWN, UNKNOWN, DEAD, DEAD]
    );

    // A receipt is a record too, and deleted records do not count.
    setup.text("dlq replay step-replies 1 0");
    setup.forget(UNKNOWN, 2, 1);
    assert_eq!(topics(), held(2, 3));
    assert_eq!(
        setup.text("dlq topics"),
        format!(
            "PARTITIONS     RECORDS  TOPIC\n         3           2  {UNKNOWN}\n         2           3  {DEAD}\n"
        )
    );
}

#[test]
fn a_dead_letter_is_shown_in_full_and_exported_byte_for_byte() {
    let setup = Setup::new();
    let own: [(&str, Option<&[u8]>); 2] = [("traceparent", Some(b"00-1")), ("none", None)];
    setup.bury(REPLIES, 1, &own, POISON);
    let shown = setup.text("dlq show step-replies 1 0");
    // In the format of lists.
    let dead_letters = setup.json("dlq list --output json");
    let cursor = dead_letters[0]["cursor"].as_str().unwrap();
    assert_eq!(setup.text(&format!("dlq show {cursor}")), shown);
    let planned = setup.text(&format!("dlq replay {cursor} --dry-run"));
    assert!(planned.contains(cursor), "{planned}");
    for part in [
        "dead letter  waybill.step-replies.v1.dlq/1/0",
        "source       waybill.step-replies.v1/1/17",
        "cause        no\\nrecord",
        "headers      2\n  traceparent: 00-1\n  none: -\n",
        "value        11 bytes\n",
        "00 01 70 6f 69 73 6f 6e 0d 0a ff ",
        "|..poison...|",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let raw = setup.run("dlq show step-replies.dlq 1 0 --raw");
    assert_eq!(raw.stdout, POISON);
    let refusal = setup.refusal("dlq show step-replies 1 1");
    assert!(
        refusal.contains("no dead letter at offset 1: it holds 0 up to 1"),
        "{refusal}"
    );
}

#[test]
fn a_replay_sends_the_same_bytes_to_the_same_partition_once() {
    let setup = Setup::new();
    let own: [(&str, Option<&[u8]>); 3] = [
        ("bytes", Some(b"\xff\x00")),
        ("none", None),
        ("bytes", Some(b"")),
    ];
    setup.bury(REPLIES, 1, &own, POISON);

    let dry = setup.json("dlq replay step-replies 1 0 --dry-run --output json");
    assert_eq!(field(&dry, "outcome"), ["would-replay"]);
    assert!(setup.held(REPLIES, 1).is_empty());
    assert_eq!(setup.held(DEAD, 1).len(), 1, "a dry run leaves no receipt");

    let done = setup.json("dlq replay step-replies 1 0 --output json");
    assert_eq!(field(&done, "outcome"), ["replayed"]);
    assert_eq!(
        done[0]["to"],
        json!({"topic": REPLIES, "partition": 1, "offset": 0})
    );
    let held = setup.held(REPLIES, 1);
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].key(), Some(KEY));
    assert_eq!(held[0].payload(), Some(POISON));
    let headers: Vec<(&str, Option<&[u8]>)> = held[0]
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key, header.value))
        .collect();
    let mark = format!("{DEAD}/1/0");
    let expected: Vec<_> = own
        .into_iter()
        .chain([("waybill-replayed-from", Some(mark.as_bytes()))])
        .collect();
    assert_eq!(headers, expected);

    let repeated = setup.json("dlq replay step-replies 1 0 --output json");
    assert_eq!(field(&repeated, "outcome"), ["skipped"]);
    let note = repeated[0]["note"].as_str().unwrap();
    assert!(note.contains("replayed before"), "{note}");
    assert_eq!(setup.held(REPLIES, 1).len(), 1);
    let forced = setup.json("dlq replay step-replies 1 0 --again --output json");
    assert_eq!(field(&forced, "outcome"), ["replayed"]);
    assert_eq!(setup.held(REPLIES, 1).len(), 2);

    // Receipts are not listed as dead letters.
    assert_eq!(setup.json("dlq list --output json").len(), 1);
    assert_eq!(setup.json("dlq list --open --output json").len(), 0);
    let refusal = setup.refusal("dlq show step-replies 1 1");
    assert!(refusal.contains("the receipt of a replay"), "{refusal}");
}

#[test]
fn replaying_all_continues_where_it_stopped_and_skips_records_without_a_destination() {
    let setup = Setup::new();
    // Foreign records on the topic: one has no headers, and one names a wrong source.
    setup.produce((DEAD, 0), Some(b"k"), Some(b"v"), &[]);
    setup.bury("somewhere-else", 0, &[], POISON);
    for index in 0..250_u32 {
        setup.bury(REPLIES, 0, &[], &index.to_be_bytes());
    }
    for index in 250..260_u32 {
        setup.bury(REPLIES, 1, &[], &index.to_be_bytes());
    }
    let replayed = |output: &Output| {
        let lines = json_lines(std::str::from_utf8(&output.stdout).unwrap());
        let count = |outcome: &str| {
            lines
                .iter()
                .filter(|line| line["outcome"] == outcome)
                .count()
        };
        (count("replayed"), count("failed"))
    };
    let some = setup.run("dlq replay step-replies --all --limit 120 --output json");
    assert_eq!(replayed(&some), (120, 2));
    assert_eq!(
        some.status.code(),
        Some(1),
        "two dead letters have no source"
    );
    let shown_text = String::from_utf8_lossy(&some.stderr).into_owned();
    assert!(
        shown_text.contains("120 replayed, 0 replayed before, 2 failed"),
        "{shown_text}"
    );
    assert_eq!(
        setup
            .json("dlq list --open --output json --limit 1000")
            .len(),
        142
    );

    let rest = setup.run("dlq replay step-replies --all --output json");
    assert_eq!(replayed(&rest), (140, 2));
    let notes = String::from_utf8(rest.stdout).unwrap();
    assert!(
        notes.contains("does not name its source topic")
            && notes.contains("names somewhere-else as its source"),
        "{notes}"
    );
    let values = |partition| -> Vec<Vec<u8>> {
        let held = setup.held(REPLIES, partition);
        held.iter()
            .map(|record| record.payload().unwrap().to_vec())
            .collect()
    };
    let numbers = |range: std::ops::Range<u32>| range.map(|n| n.to_be_bytes().to_vec());
    assert_eq!(values(0), numbers(0..250).collect::<Vec<_>>());
    assert_eq!(values(1), numbers(250..260).collect::<Vec<_>>());
    let again = setup.run("dlq replay step-replies --all --output json");
    assert_eq!(replayed(&again), (0, 2));
}

#[test]
fn a_replay_keeps_to_its_rate() {
    let setup = Setup::new();
    for _ in 0..4 {
        setup.bury(REPLIES, 0, &[], POISON);
    }
    let began = Instant::now();
    setup.text("dlq replay step-replies 0 --all --rate 5/s");
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(setup.held(REPLIES, 0).len(), 4);
}

#[test]
fn kcat_reads_what_was_replayed_and_its_records_are_printed() {
    let setup = Setup::new();
    let address = setup.address.to_string();
    let kcat = |arguments: &[&str], input: &[u8]| -> Option<Output> {
        let spawned = Command::new("kcat")
            .args(["-b", &address])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => panic!("{error}"),
        };
        child.stdin.take().unwrap().write_all(input).unwrap();
        Some(finished(child, "kcat"))
    };
    let produce = ["-P", "-t", REPLIES, "-p", "0", "-K:", "-H", "a=b"];
    let Some(produced) = kcat(&produce, b"key:{\"not\": \"avro\"}\n") else {
        println!("SKIPPED: kcat is not installed");
        return;
    };
    assert!(produced.status.success(), "{produced:?}");
    let line = &setup.json("records step-replies --partition 0")[0];
    assert_eq!(line["key"], "key");
    assert_eq!(line["headers"], json!([{"name": "a", "value": "b"}]));
    assert!(line["error"].as_str().unwrap().contains("has neither Avro"));

    setup.bury(REPLIES, 1, &[("own", Some(b"header"))], b"some value");
    setup.text("dlq replay step-replies 1 0");
    let consume = [
        "-C",
        "-t",
        REPLIES,
        "-p",
        "1",
        "-o",
        "beginning",
        "-e",
        "-q",
        "-f",
        "%s|%h\n",
    ];
    let consumed = kcat(&consume, b"").unwrap();
    let expected = format!("some value|own=header,waybill-replayed-from={DEAD}/1/0\n");
    assert_eq!(String::from_utf8(consumed.stdout).unwrap(), expected);
}

#[test]
fn a_poison_request_of_a_running_system_is_listed_replayed_and_comes_back() {
    const DEAD_REQUESTS: &str = "waybill.operation-requests.v1.dlq";
    let setup = Setup::start(
        "up",
        &[
            "--http=127.0.0.1:0",
            "--services=127.0.0.1:0",
            "--broker-listen=127.0.0.1:0",
        ],
    );
    let dead_letters = || setup.json("dlq list --output json");
    let wait_for = |count: usize| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let dead_letters = dead_letters();
            if dead_letters.len() == count {
                return dead_letters;
            }
            let log = setup.log_tail();
            assert!(Instant::now() < deadline, "{dead_letters:?}\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // The process creates the topics during its start.
    setup.wait_for_topic(DEAD_REQUESTS);
    let requests = ("waybill.operation-requests.v1", 2);
    setup.produce(requests, Some(KEY), Some(POISON), &[]);
    let first = &wait_for(1)[0];
    assert_eq!(first["cursor"], format!("{DEAD_REQUESTS}/2/0"));
    assert_eq!(first["source"]["offset"], 0);

    setup.text("dlq replay operation-requests 2 0");
    let second = &wait_for(2)[1];
    assert_eq!(second["source"]["offset"], 1);
    assert_eq!(second["replayedFrom"], format!("{DEAD_REQUESTS}/2/0"));
    let cursor: Vec<_> = second["cursor"].as_str().unwrap().split('/').collect();
    let show = format!("dlq show operation-requests 2 {} --raw", cursor[2]);
    assert_eq!(
        setup.run(&show).stdout,
        POISON,
        "it is still the same record"
    );

    // Also those of agents.
    setup.produce(
        ("waybill.drone.requests.v1", 1),
        Some(KEY),
        Some(POISON),
        &[],
    );
    let third = &wait_for(3)[0];
    assert_eq!(third["cursor"], "waybill.drone.requests.v1.dlq/1/0");
    assert_eq!(third["component"], "agent");
}
