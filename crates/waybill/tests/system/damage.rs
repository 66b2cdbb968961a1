//! Data that changes on disk in a running system: the damage is reported, and everything else
//! continues.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::AbstractTree as _;
use serde_json::{Value, json};
use waybill_test_support::setup::{Setup, delivery};

use crate::doctor::{bad, json_lines, run};
use crate::{REQUESTS, restart};

const DELIVERIES: usize = 60;

/// A block of rows is damaged while operations are running. Its operations cannot be read; all
/// others continue, and new ones are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_store_block_harms_only_its_operations() {
    let mut setup = Setup::new("partitions: 2\nscheduler: { handOffAfter: 10m }\n");
    let up = setup.up();
    setup.ready().await;
    setup.put_faults("drone", &json!({ "hangRate": 1 })).await;
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("old-{index}"), false));
    let old = setup.deliver_each(bodies).await;
    setup.all_reach(&old, "Processing").await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    let file = damage_a_block(&setup.path("data/store"));

    let setup = Arc::new(setup);
    let _up = restart(&setup);
    setup.ready().await;
    let (mut healthy, mut damaged) = (Vec::new(), Vec::new());
    for id in old {
        let url = setup.url("http", &format!("/v1/operations/{id}"));
        let answer = setup.client.get(url).send().await.expect("the API answers");
        match answer.status().as_u16() {
            200 => healthy.push(id),
            status => {
                let body: Value = answer.json().await.expect("problems are JSON");
                assert_eq!(body["type"], "/problems/row-unreadable", "{status}: {body}");
                damaged.push(
                    body["id"]
                        .as_str()
                        .expect("it names the operation")
                        .to_owned(),
                );
            }
        }
    }
    assert!(!damaged.is_empty() && !healthy.is_empty());
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("new-{index}"), false));
    let new = setup.deliver_each(bodies).await;
    setup.all_reach(&healthy, "Processed").await;
    setup.all_reach(&new, "Processed").await;

    let readiness = setup.client.get(setup.url("admin", "/readyz")).send().await;
    let readiness = readiness
        .expect("the process answers")
        .text()
        .await
        .expect("the response is text");
    let doctor = run(&setup, &["doctor"]);
    assert!(bad(&doctor).contains(&"damage".to_owned()), "{doctor:?}");
    let findings = json_lines(&doctor);
    let of_damage = findings
        .iter()
        .filter(|finding| finding["what"] == "damage");
    let message: String = of_damage
        .filter_map(|finding| finding["message"].as_str())
        .collect();
    for id in &damaged {
        assert!(readiness.contains(id), "{id} is not in {readiness:?}");
        assert!(message.contains(id), "{id} is not in {message:?}");
    }
    assert!(message.contains(&file.display().to_string()), "{message:?}");
}

/// Flushes the rows to a table on disk and changes a bit in one of its blocks.
fn damage_a_block(store: &Path) -> PathBuf {
    let file = {
        let db = fjall::Database::builder(store).open().unwrap();
        let rows = db
            .keyspace("state", fjall::KeyspaceCreateOptions::default)
            .unwrap();
        rows.rotate_memtable_and_wait().unwrap();
        let version = rows.tree.current_version();
        let files = version.iter_tables().map(|table| table.path.to_path_buf());
        files
            .max_by_key(|file| file.metadata().unwrap().len())
            .unwrap()
    };
    // Data blocks come first.
    flip(&file, file.metadata().unwrap().len() / 3);
    file
}

/// A request is damaged on disk after it was accepted. Its partition is consumed up to it and
/// reports the damage. The request is never executed as something else, and once its bytes are
/// repaired everything continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_request_is_never_run_and_its_partition_reports_its_position() {
    let mut setup = Setup::new("partitions: 1\n");
    let _up = setup.up();
    setup.ready().await;
    let shard = setup.url("admin", "/schedulers/0");
    let set_running = async |running: bool| {
        let put = setup
            .client
            .put(&shard)
            .json(&json!({ "running": running }));
        put.send().await.expect("the admin port answers");
    };
    set_running(false).await;
    let mut ids = Vec::new();
    for name in ["before", "the-damaged-one", "behind"] {
        let mut body = delivery(name, false);
        body["expedited"] = json!(false);
        ids.push(setup.deliver(&body).await);
    }
    let (file, at) = find(&setup.path("data"), REQUESTS, b"package-the-damaged-one");
    flip(&file, at);
    set_running(true).await;

    setup.all_reach(&ids[..1], "Processed").await;
    let readyz = async || {
        let answer = setup.client.get(setup.url("admin", "/readyz")).send().await;
        let answer = answer.expect("the process answers");
        (
            answer.status().as_u16(),
            answer.text().await.expect("the response is text"),
        )
    };
    let topic = setup.topic(REQUESTS);
    let named = format!("{topic} partition 0 is damaged at offset 1");
    setup
        .eventually("readiness names the damage", async || {
            let (status, message) = readyz().await;
            status == 503 && message.contains(&named)
        })
        .await;
    let doctor = run(&setup, &["doctor"]);
    let message = String::from_utf8_lossy(&doctor.stdout);
    let command = format!("waybill broker repair --topic {topic} --partition 0");
    assert!(
        message.contains(&named) && message.contains(&command),
        "{message}"
    );
    let schedulers = setup.client.get(setup.url("admin", "/schedulers")).send();
    let message = schedulers.await.expect("the process answers").text().await;
    assert!(message.is_ok_and(|message| message.contains(&command)));
    for id in &ids[1..] {
        assert_ne!(setup.state(id).await.as_deref(), Some("Processed"), "{id}");
    }

    flip(&file, at);
    setup.all_reach(&ids, "Processed").await;
    setup.ready().await;
}

/// A request on disk becomes one that no client can decode, with a valid checksum. It goes to the
/// dead-letter topic, and the requests after it are executed. The same holds after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undecodable_record_is_skipped_and_its_partition_continues() {
    let mut setup = Setup::new("partitions: 1\n");
    let up = setup.up();
    setup.ready().await;
    let shard = setup.url("admin", "/schedulers/0");
    let put = setup.client.put(&shard);
    let put = put.json(&json!({ "running": false })).send().await;
    put.expect("the admin port answers");
    let mut ids = Vec::new();
    for name in ["before", "the-poisoned-one", "behind"] {
        let mut body = delivery(name, false);
        body["expedited"] = json!(false);
        ids.push(setup.deliver(&body).await);
    }
    let (file, at) = find(&setup.path("data"), REQUESTS, b"package-the-poisoned-one");
    poison(&file, usize::try_from(at).unwrap());
    let put = setup.client.put(&shard);
    let put = put.json(&json!({ "running": true })).send().await;
    put.expect("the admin port answers");

    let rest = [ids[0].clone(), ids[2].clone()];
    setup.all_reach(&rest, "Processed").await;
    let poisoned = ids.remove(1);
    assert_ne!(setup.state(&poisoned).await.as_deref(), Some("Processed"));
    let topic = setup.topic(REQUESTS);
    let dead_letters =
        |setup: &Setup| json_lines(&run(setup, &["dlq", "list", "--topic", REQUESTS]));
    let listed_before = dead_letters(&setup);
    let [dead_letter] = &listed_before[..] else {
        panic!("one dead letter: {listed_before:?}")
    };
    let source = json!({ "topic": topic, "partition": 0, "offset": 1 });
    assert_eq!(dead_letter["source"], source);
    let cause = dead_letter["cause"].as_str().unwrap_or_default();
    assert_eq!(cause, "records at this offset cannot be parsed");
    setup.ready().await;

    // Its last records are all done, so none is read again.
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
    let setup = Arc::new(setup);
    let _up = restart(&setup);
    setup.ready().await;
    let id = setup.deliver(&delivery("after-restart", false)).await;
    setup.all_reach(&[id], "Processed").await;
    assert_eq!(dead_letters(&setup), listed_before);
}

/// Gives the value at a place in a log the length -2, and its batch a valid checksum.
fn poison(path: &Path, within: usize) {
    let mut log = std::fs::read(path).unwrap();
    let mut start = 0;
    let batch = loop {
        let length = log[start + 8..start + 12].try_into().unwrap();
        let end = start + 12 + usize::try_from(u32::from_be_bytes(length)).unwrap();
        if end > within {
            break &mut log[start..end];
        }
        start = end;
    };
    // After the batch's header: the record's length, attributes, and the deltas of time and offset.
    let mut at = 61;
    varint(batch, &mut at);
    at += 1;
    varint(batch, &mut at);
    varint(batch, &mut at);
    let key = varint(batch, &mut at);
    at += usize::try_from(key).unwrap();
    let value = at;
    varint(batch, &mut at);
    let bytes = &mut batch[value..at];
    bytes.fill(0x80);
    bytes[0] |= 3;
    *bytes.last_mut().unwrap() &= 0x7f;
    let checksum = crc32c::crc32c(&batch[21..]).to_be_bytes();
    batch[17..21].copy_from_slice(&checksum);
    let batch = batch.to_vec();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&batch, start as u64).unwrap();
}

/// A varint of a record. Moves `at` past it.
fn varint(bytes: &[u8], at: &mut usize) -> i64 {
    let (mut number, mut shift) = (0_u64, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
        }
    }
}

/// The file below a folder with `name` in its path that contains `bytes`, and their offset.
fn find(folder: &Path, name: &str, bytes: &[u8]) -> (PathBuf, u64) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().contains(name) {
                let held = std::fs::read(&path).unwrap();
                if let Some(at) = held.windows(bytes.len()).position(|at| at == bytes) {
                    return (path, at as u64);
                }
            }
        }
    }
    panic!("no file of {name} holds it");
}

/// Flips a bit of a file. A second call restores it.
fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1;
    file.write_all_at(&byte, at).unwrap();
}
