//! A partition has several shards, and their number changes during operation.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{Setup, delivery};

use crate::fairness::send;
use crate::{
    PARTITIONS, REPLIES, deliver_all, is_remote, log_end, requests_end, restart, schedulers,
};

const CONFIG: &str = "partitions: 4\nscheduler: { lease: 3s, leaseMargin: 300ms }\n";
/// The number of concurrent requests.
const CLIENTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_are_split_and_merged_under_load() {
    const DELIVERIES: usize = 2_000;
    let mut setup = Setup::of_either_kind(CONFIG);
    let mut process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (setup, progress) = (setup.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&setup, "shared", DELIVERIES, &progress).await })
    };
    let changing = async {
        for (per_partition, share, is_killed) in
            [(2, 1, false), (4, 2, true), (1, 3, true), (2, 4, false)]
        {
            setup
                .eventually("the next share is accepted", async || {
                    progress.load(Ordering::Relaxed) >= DELIVERIES * share / 6
                })
                .await;
            let set = shards(
                &setup,
                &["set", &per_partition.to_string(), "--output", "json"],
            );
            assert_eq!(set["perPartition"], per_partition);
            if is_killed {
                process.kill();
                process = restart(&setup);
            }
            all_own(&setup, per_partition).await;
        }
        process
    };
    let (process, cancelled) = tokio::join!(changing, deliver_and_cancel(&setup, &progress));

    let mut ids = sending.await.expect("the clients do not fail");
    ids.extend(cancelled);
    let ends = setup
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    assert!(ends.cancelled > 0, "{ends:?}");
    setup
        .eventually("every shard has done all of its partition", async || {
            let lowest = lowest_checkpoints(&setup).await;
            let of = |at: usize| lowest.values().map(|least| least[at]).sum::<u64>();
            (of(0) + of(2), of(1)) == (requests_end(&setup), log_end(&setup, REPLIES))
        })
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_store_starts_with_the_configured_shards_and_a_different_number_is_reported() {
    let mut setup = Setup::of_either_kind(CONFIG);
    let flag = ["--shards-per-partition", "2"];
    let listeners = ["http", "admin", "broker", "services"];
    let process = setup.start("up", &flag, &listeners);
    setup.ready().await;
    let setup = Arc::new(setup);
    let shown = shards(&setup, &["show", "--output", "json"]);
    assert_eq!(
        (&shown["generation"], &shown["perPartition"]),
        (&json!(1), &json!(2))
    );
    let ids = deliver_all(&setup, "fresh", 100, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // With the configured default of 1, the stored number applies and the log reports it.
    let process = restart(&setup);
    all_own(&setup, 2).await;
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    assert!(log.contains("waybill shards set 1"), "{log}");
    let refused = command(&setup, &["set", "3"])
        .output()
        .expect("the program runs");
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("change to 1 first"), "{why}");
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_operations_are_handed_over_to_the_next_shards() {
    const BACKLOG: usize = 300;
    let config = "partitions: 1\nscheduler: { inFlightMax: 8, lease: 3s, leaseMargin: 300ms }\n";
    let mut setup = Setup::of_either_kind(config);
    let process = setup.up();
    setup.ready().await;
    // At this speed the many requests would take more than a minute.
    let slow = json!({ "latencyMs": 2000 });
    setup.put_faults("drone", &slow).await;
    let request = |index: usize| {
        let mut input = delivery(&format!("backlog-{index}"), is_remote(index));
        input["expedited"] = json!(index.is_multiple_of(3));
        json!({ "workflow": "drone-delivery", "input": input })
    };
    let ids = send(&setup, (0..BACKLOG).map(request).collect()).await;
    let waiting = async || setup.metric("waybill_scheduler_waiting_requests", "").await;
    setup
        .eventually("most wait", async || waiting().await > 200.0)
        .await;
    let set = shards(&setup, &["set", "2", "--wait", "1m", "--output", "json"]);
    assert_eq!(set["perPartition"], 2);
    let owned = set["shards"].as_array().into_iter().flatten();
    assert!(
        owned.clone().all(|shard| shard["owner"].is_string()),
        "{set}"
    );
    assert_eq!(
        owned.filter(|shard| shard["startsBy"].is_string()).count(),
        0
    );
    all_run(&setup, 2).await;
    // So the predecessors ended without finishing all waiting requests first.
    setup
        .eventually("most wait for those who follow", async || {
            waiting().await > 100.0
        })
        .await;
    let quick = json!({ "latencyMs": 0 });
    setup.put_faults("drone", &quick).await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// Cancels deliveries right after their acceptance, and sometimes before it.
pub async fn deliver_and_cancel(setup: &Setup, progress: &AtomicUsize) -> Vec<String> {
    const CANCELLED: usize = 200;
    let sent = (0..CANCELLED).map(async |index: usize| {
        // Distributed over the time of the other deliveries.
        setup
            .eventually("the next one is due", async || {
                progress.load(Ordering::Relaxed) >= (index * 9).min(1_700)
            })
            .await;
        let name = format!("cancelled-{index}");
        if index.is_multiple_of(4) {
            cancel(setup, &name).await;
        }
        // A remote delivery is compensated by a person.
        let id = setup.deliver(&delivery(&name, false)).await;
        cancel(setup, &name).await;
        id
    });
    stream::iter(sent).buffered(CLIENTS).collect().await
}

/// Repeats a cancel until it is accepted or too late.
pub async fn cancel(setup: &Setup, name: &str) {
    let url = setup.url("http", &format!("/api/deliveryrequests/{name}"));
    setup
        .eventually("the cancel is answered", async || {
            let answer = setup.client.delete(&url).send().await;
            answer.is_ok_and(|answer| {
                let status = answer.status();
                assert!(
                    status.is_success() || status.is_server_error() || status == 409,
                    "{status}"
                );
                !status.is_server_error()
            })
        })
        .await;
}

/// Waits until the process runs all shards of this layout and is ready.
async fn all_own(setup: &Setup, per_partition: u32) {
    all_run(setup, PARTITIONS * per_partition).await;
}

/// Waits until the process runs exactly this many shards and is ready.
async fn all_run(setup: &Setup, shards: u32) {
    setup
        .eventually("all shards run", async || {
            let url = setup.url("admin", "/schedulers");
            let Ok(answer) = setup.client.get(url).send().await else {
                return false;
            };
            let views: Vec<Value> = answer.json().await.unwrap_or_default();
            let running = views.iter().filter(|view| view["state"] == "running");
            views.len() == shards as usize && running.count() == shards as usize
        })
        .await;
    setup.ready().await;
}

/// For each partition, the lowest checkpoint of its shards: requests and replies.
async fn lowest_checkpoints(setup: &Setup) -> BTreeMap<u64, [u64; 3]> {
    let mut lowest: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    for view in schedulers(setup).await {
        let on = |name: &str| view["checkpoint"][name].as_u64().unwrap_or(0);
        let partition = view["partition"].as_u64().expect("a shard has a partition");
        let least = lowest.entry(partition).or_insert([u64::MAX; 3]);
        for (least, name) in least
            .iter_mut()
            .zip(["requests", "replies", "highPriority"])
        {
            *least = on(name).min(*least);
        }
    }
    lowest
}

/// Runs `waybill shards …` to its end and parses its JSON.
fn shards(setup: &Setup, arguments: &[&str]) -> Value {
    let output = command(setup, arguments)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}\n{}", setup.log_tail());
    serde_json::from_slice(&output.stdout).expect("the answer is JSON")
}

fn command(setup: &Setup, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command.envs(setup.env.iter().cloned());
    command.arg("shards").args(arguments);
    command.args(["--admin", &setup.address("admin").to_string()]);
    command
}
