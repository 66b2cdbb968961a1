//! The operation topics get more partitions, or fewer, without downtime.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rdkafka::consumer::Consumer as _;
use serde_json::Value;
use tokio::task::JoinHandle;
use waybill_engine::partition_for;
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{PATIENCE, Setup, delivery};

use crate::shards::{cancel, deliver_and_cancel};
use crate::{REQUESTS, deliver_all, is_remote, looker, put_to, restart, schedulers};

const CONFIG: &str = "partitions: 2\n\
    http: { acceptTimeout: 1900ms }\n\
    kafka: { repartitionSettle: 2s, properties: { topic.metadata.refresh.interval.ms: '500' } }\n\
    scheduler: { lease: 3s, leaseMargin: 300ms }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_under_load() {
    const DELIVERIES: usize = 2_000;
    let mut setup = Setup::of_either_kind(CONFIG);
    let mut process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (setup, progress) = (setup.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&setup, "repartition", DELIVERIES, &progress).await })
    };
    let late = Deaf::of(&setup, "late", 2);
    let changing = async {
        let mut ids = Vec::new();
        let is_at = async |share: usize| {
            setup
                .eventually("the next share is accepted", async || {
                    progress.load(Ordering::Relaxed) >= DELIVERIES * share / 8
                })
                .await;
        };
        is_at(1).await;
        let grown = grow(&setup, 4).await;
        assert!(grown.status.success(), "{grown:?}\n{}", setup.log_tail());
        all_run(&setup, 4, 4).await;

        // The process that drives the change is killed after the topics have grown, and again after
        // the announcement. The repeated command continues.
        is_at(3).await;
        let mut repartition = begin(&setup, "grow", 8);
        setup
            .eventually("the topic has more partitions", async || {
                goes_on(&mut repartition);
                partitions_of(&setup, REQUESTS) == 8
            })
            .await;
        let _ = repartition.kill();
        let _ = repartition.wait();
        process.kill();
        process = restart(&setup);
        setup.ready().await;

        let mut repartition = begin(&setup, "grow", 8);
        setup
            .eventually("more partitions are announced", async || {
                goes_on(&mut repartition);
                announced(&setup, 8)
            })
            .await;
        let _ = repartition.kill();
        let _ = repartition.wait();
        for index in 0..20 {
            // Possibly no shard reads its partition yet.
            let id = setup
                .deliver(&delivery(&format!("announced-{index}"), false))
                .await;
            assert!(setup.state(&id).await.is_some(), "{id} is not known");
            ids.push(id);
        }
        process.kill();
        process = restart(&setup);
        all_run(&setup, 8, 8).await;
        (process, ids)
    };
    let ((process, announced), cancelled) =
        tokio::join!(changing, deliver_and_cancel(&setup, &progress));

    let mut ids = sending.await.expect("the clients do not fail");
    ids.extend(cancelled);
    ids.extend(announced);
    let late = late.stop().await;
    println!("measured: {} requests by the old number", late.len());
    ids.extend(late);
    let by_four = |index| {
        put_to(&setup, &format!("by-four-{index}"), |id| {
            partition_for(id, 4).0
        })
    };
    ids.extend((0..8).map(by_four));
    let ends = setup
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    assert!(ends.cancelled > 0, "{ends:?}");
    let again = grow(&setup, 8).await;
    assert!(again.status.success(), "{again:?}");
    let less = grow(&setup, 12).await;
    let why = String::from_utf8_lossy(&less.stderr).into_owned();
    assert!(less.stdout.is_empty(), "no operation starts: {less:?}");
    assert!(
        why.contains("must be a multiple of 8, such as 16 or 24"),
        "{why}"
    );
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    // The configuration still says 2.
    let process = restart(&setup);
    all_run(&setup, 8, 8).await;
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    assert!(
        log.contains("set partitions to 8; `waybill topics grow` changes to more"),
        "{log}"
    );
    setup
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_removed_and_added_again_under_load() {
    const DELIVERIES: usize = 400;
    const CONFIGURED: u32 = 8;
    let config = CONFIG.replace("partitions: 2", &format!("partitions: {CONFIGURED}"));
    let mut setup = Setup::of_either_kind(&config);
    let mut process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    // It uses the number of partitions of Kafka's metadata, independent of the layout.
    let deaf = Deaf::of(&setup, "by-kafka", CONFIGURED);
    let (mut ids, mut between) = (Vec::new(), Vec::new());
    for (round, (way, partitions, killed_at)) in [
        ("shrink", 2, None),
        ("grow", 4, None),
        // After the intended and the cut layout: schedulers continue the change on their own.
        ("shrink", 1, Some(2)),
        ("grow", CONFIGURED, None),
        // After the announcement: the same command continues.
        ("shrink", 4, Some(3)),
    ]
    .into_iter()
    .enumerate()
    {
        let prefix = format!("round-{round}");
        let progress = Arc::new(AtomicUsize::new(0));
        let sending = {
            let (setup, progress) = (setup.clone(), progress.clone());
            tokio::spawn(async move { deliver_all(&setup, &prefix, DELIVERIES, &progress).await })
        };
        setup
            .eventually("a part is accepted", async || {
                progress.load(Ordering::Relaxed) >= DELIVERIES / 8
            })
            .await;
        if let Some(after) = killed_at {
            let before = generation(&setup).await;
            let mut changing = begin(&setup, way, partitions);
            setup
                .eventually("the change has reached this step", async || {
                    generation(&setup).await >= before + after
                })
                .await;
            let _ = changing.kill();
            let _ = changing.wait();
            for index in 0..20 {
                // The current reader of its partition may leave it to other shards, which have not
                // begun.
                let name = format!("between-{round}-{index}");
                let id = setup.deliver(&delivery(&name, false)).await;
                assert!(setup.state(&id).await.is_some(), "{id} is not known");
                between.push(id);
            }
            process.kill();
            process = restart(&setup);
            if after == 2 {
                all_run(&setup, CONFIGURED, partitions).await;
            }
            setup.ready().await;
        }
        let cancelling = async {
            let mut cancelled = Vec::new();
            for index in 0..20 {
                let name = format!("cancelled-{round}-{index}");
                cancelled.push(setup.deliver(&delivery(&name, false)).await);
                cancel(&setup, &name).await;
            }
            cancelled
        };
        let (changed, cancelled) = tokio::join!(change(&setup, way, partitions), cancelling);
        between.extend(cancelled);
        let log = setup.log_tail();
        assert!(changed.status.success(), "{changed:?}\n{log}");
        // As many as at the start, whatever partitions they share.
        all_run(&setup, CONFIGURED, partitions).await;
        ids.extend(sending.await.expect("the clients do not fail"));
    }
    let mut misrouted = deaf.stop().await;
    misrouted.extend(between);
    println!("measured: {} requests by Kafka's number", misrouted.len());
    let delivered = ids.len();
    ids.extend(misrouted);
    let is_remote = |index: usize| index < delivered && is_remote(index % DELIVERIES);
    let ends = setup.all_end_in_balance(&ids, is_remote).await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    assert!(ends.cancelled > 0, "{ends:?}");

    // A number in the wrong direction is a slip.
    let slip = change(&setup, "grow", 2).await;
    let why = String::from_utf8_lossy(&slip.stderr).into_owned();
    assert!(why.contains("`waybill topics shrink 2`"), "{why}");
    let verified = command(&setup, &["verify"])
        .output()
        .expect("the program runs");
    let found = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(!found.contains(": partitions is"), "{found}");
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_grow_continues_after_a_restart_of_its_process() {
    let mut setup = Setup::new(CONFIG);
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let mut repartition = begin(&setup, "grow", 4);
    setup
        .eventually("the topic has more partitions", async || {
            goes_on(&mut repartition);
            partitions_of(&setup, REQUESTS) == 4
        })
        .await;
    process.kill();
    let process = restart(&setup);
    let grown = tokio::task::spawn_blocking(|| repartition.wait_with_output())
        .await
        .expect("the task is awaited")
        .expect("the program runs");
    assert!(grown.status.success(), "{grown:?}\n{}", setup.log_tail());
    let steps = String::from_utf8_lossy(&grown.stdout).into_owned();
    for step in [
        "the process no longer answers",
        "the process has restarted and continues",
        "done: set `partitions` to 4",
    ] {
        assert!(steps.contains(step), "{step}: {steps}");
    }
    all_run(&setup, 4, 4).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// Waits until the process runs this many shards of this many partitions.
async fn all_run(setup: &Setup, shards: u32, partitions: u32) {
    setup
        .eventually("all shards run", async || {
            let views = schedulers(setup).await;
            let running = views.iter().filter(|view| view["state"] == "running");
            let of: BTreeSet<u64> = running
                .clone()
                .filter_map(|view| view["partition"].as_u64())
                .collect();
            let all = of.into_iter().eq(0..u64::from(partitions));
            views.len() == shards as usize && running.count() == shards as usize && all
        })
        .await;
    setup.ready().await;
}

/// The generation of the current layout.
async fn generation(setup: &Setup) -> u64 {
    let answer = setup.client.get(setup.url("admin", "/shards")).send().await;
    let layout: Value = answer
        .expect("the process answers")
        .json()
        .await
        .expect("JSON");
    layout["generation"]
        .as_u64()
        .expect("a layout has a generation")
}

fn announced(setup: &Setup, partitions: u32) -> bool {
    let log = std::fs::read_to_string(setup.path("log.txt")).unwrap_or_default();
    let message = "the number of partitions for new operations changed";
    log.contains(&format!("{message} partitions={partitions}\n"))
}

/// A client that always writes requests to the partitions of one fixed number.
struct Deaf {
    is_over: Arc<AtomicBool>,
    ids: JoinHandle<Vec<String>>,
}

impl Deaf {
    fn of(setup: &Arc<Setup>, prefix: &'static str, partitions: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (setup, until) = (setup.clone(), is_over.clone());
        let ids = tokio::task::spawn_blocking(move || {
            let mut ids = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let name = format!("{prefix}-{}", ids.len());
                let by = |id| partition_for(id, partitions).0;
                ids.push(put_to(&setup, &name, by));
            }
            ids
        });
        Self { is_over, ids }
    }

    async fn stop(mut self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        (&mut self.ids).await.expect("the broker takes them")
    }
}

/// Stops the client when its test fails, because the test would never end otherwise.
impl Drop for Deaf {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The number of partitions of a topic.
fn partitions_of(setup: &Setup, topic: &str) -> usize {
    let topic = setup.topic(topic);
    let consumer = looker(setup);
    let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE);
    let metadata = metadata.expect("the broker answers");
    metadata
        .topics()
        .iter()
        .map(|topic| topic.partitions().len())
        .sum()
}

/// Grows to this number of partitions, and waits for the end of the command.
async fn grow(setup: &Arc<Setup>, partitions: u32) -> Output {
    change(setup, "grow", partitions).await
}

/// Changes to this number of partitions, and waits for the end of the command.
async fn change(setup: &Arc<Setup>, way: &str, partitions: u32) -> Output {
    let changing = begin(setup, way, partitions);
    tokio::task::spawn_blocking(|| changing.wait_with_output())
        .await
        .expect("the task is awaited")
        .expect("the program runs")
}

fn begin(setup: &Setup, verb: &str, partitions: u32) -> Child {
    let partitions = partitions.to_string();
    let mut command = command(setup, &[verb, &partitions]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program was built")
}

/// Fails with its output if it has ended without success.
fn goes_on(changing: &mut Child) {
    let Some(status) = changing.try_wait().expect("the child can be waited for") else {
        return;
    };
    let mut printed = String::new();
    if let Some(stderr) = &mut changing.stderr {
        let _ = stderr.read_to_string(&mut printed);
    }
    assert!(status.success(), "{status}: {printed}");
}

/// A `waybill topics …` command.
fn command(setup: &Setup, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command);
    command.envs(setup.env.iter().cloned());
    command.arg("topics").args(arguments);
    command.arg("--config").arg(setup.path("waybill.yaml"));
    command.args(["--admin", &setup.address("admin").to_string()]);
    command
}
