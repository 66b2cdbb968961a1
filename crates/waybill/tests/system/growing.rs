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
use waybill_test_support::process::without_test_variables;
use waybill_test_support::world::{PATIENCE, World, delivery};

use crate::shards::{cancel, deliver_and_cancel};
use crate::{REQUESTS, deliver_all, is_remote, looker, put_to, restart, schedulers};

const CONFIG: &str = "partitions: 2\n\
    http: { acceptTimeout: 1900ms }\n\
    kafka: { repartitionSettle: 2s, properties: { topic.metadata.refresh.interval.ms: '500' } }\n\
    scheduler: { lease: 3s, leaseMargin: 300ms }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_become_more_while_deliveries_and_cancels_flow() {
    const DELIVERIES: usize = 2_000;
    let mut world = World::of_either_kind(CONFIG);
    let mut process = world.up();
    world.ready().await;
    let world = Arc::new(world);
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (world, progress) = (world.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&world, "growing", DELIVERIES, &progress).await })
    };
    let late = Deaf::of(&world, "late", 2);
    let changing = async {
        let mut ids = Vec::new();
        let is_at = async |share: usize| {
            world
                .eventually("the next share is accepted", async || {
                    progress.load(Ordering::Relaxed) >= DELIVERIES * share / 8
                })
                .await;
        };
        is_at(1).await;
        let grown = grow(&world, 4).await;
        assert!(grown.status.success(), "{grown:?}\n{}", world.log_tail());
        all_run(&world, 4, 4).await;

        // The process that drives the change is killed after the topics have grown, and again after
        // the announcement. The repeated command continues.
        is_at(3).await;
        let mut growing = begin(&world, "grow", 8);
        world
            .eventually("the topic has more partitions", async || {
                goes_on(&mut growing);
                partitions_of(&world, REQUESTS) == 8
            })
            .await;
        let _ = growing.kill();
        let _ = growing.wait();
        process.kill();
        process = restart(&world);
        world.ready().await;

        let mut growing = begin(&world, "grow", 8);
        world
            .eventually("more partitions are announced", async || {
                goes_on(&mut growing);
                announced(&world, 8)
            })
            .await;
        let _ = growing.kill();
        let _ = growing.wait();
        for index in 0..20 {
            // Possibly no shard reads its partition yet.
            let id = world
                .deliver(&delivery(&format!("announced-{index}"), false))
                .await;
            assert!(world.state(&id).await.is_some(), "{id} is not known");
            ids.push(id);
        }
        process.kill();
        process = restart(&world);
        all_run(&world, 8, 8).await;
        (process, ids)
    };
    let ((process, announced), cancelled) =
        tokio::join!(changing, deliver_and_cancel(&world, &progress));

    let mut ids = sending.await.expect("the clients do not fail");
    ids.extend(cancelled);
    ids.extend(announced);
    let late = late.stop().await;
    println!("measured: {} requests by the old number", late.len());
    ids.extend(late);
    let by_four = |index| {
        put_to(&world, &format!("by-four-{index}"), |id| {
            partition_for(id, 4).0
        })
    };
    ids.extend((0..8).map(by_four));
    let ends = world
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    assert!(ends.cancelled > 0, "{ends:?}");
    let again = grow(&world, 8).await;
    assert!(again.status.success(), "{again:?}");
    let less = grow(&world, 12).await;
    let why = String::from_utf8_lossy(&less.stderr).into_owned();
    assert!(less.stdout.is_empty(), "nothing begins: {less:?}");
    assert!(
        why.contains("must be a multiple of 8, such as 16 or 24"),
        "{why}"
    );
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());

    // The configuration still says 2.
    let process = restart(&world);
    all_run(&world, 8, 8).await;
    let log = std::fs::read_to_string(world.path("log.txt")).expect("there is a log");
    assert!(
        log.contains("set partitions to 8; `waybill topics grow` makes more"),
        "{log}"
    );
    world
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_become_fewer_and_more_again_while_deliveries_and_cancels_flow() {
    const DELIVERIES: usize = 400;
    const CONFIGURED: u32 = 8;
    let config = CONFIG.replace("partitions: 2", &format!("partitions: {CONFIGURED}"));
    let mut world = World::of_either_kind(&config);
    let mut process = world.up();
    world.ready().await;
    let world = Arc::new(world);
    // It uses the number of partitions of Kafka's metadata, independent of the layout.
    let deaf = Deaf::of(&world, "by-kafka", CONFIGURED);
    let (mut ids, mut between) = (Vec::new(), Vec::new());
    for (round, (way, partitions, killed_at)) in [
        ("shrink", 2, None),
        ("grow", 4, None),
        // After the intended and the cut layout: schedulers continue the change by themselves.
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
            let (world, progress) = (world.clone(), progress.clone());
            tokio::spawn(async move { deliver_all(&world, &prefix, DELIVERIES, &progress).await })
        };
        world
            .eventually("a part is accepted", async || {
                progress.load(Ordering::Relaxed) >= DELIVERIES / 8
            })
            .await;
        if let Some(after) = killed_at {
            let before = generation(&world).await;
            let mut changing = begin(&world, way, partitions);
            world
                .eventually("it has come so far", async || {
                    generation(&world).await >= before + after
                })
                .await;
            let _ = changing.kill();
            let _ = changing.wait();
            for index in 0..20 {
                // The current reader of its partition may leave it to other shards, which have not
                // begun.
                let name = format!("between-{round}-{index}");
                let id = world.deliver(&delivery(&name, false)).await;
                assert!(world.state(&id).await.is_some(), "{id} is not known");
                between.push(id);
            }
            process.kill();
            process = restart(&world);
            if after == 2 {
                all_run(&world, CONFIGURED, partitions).await;
            }
            world.ready().await;
        }
        let cancelling = async {
            let mut cancelled = Vec::new();
            for index in 0..20 {
                let name = format!("cancelled-{round}-{index}");
                cancelled.push(world.deliver(&delivery(&name, false)).await);
                cancel(&world, &name).await;
            }
            cancelled
        };
        let (changed, cancelled) = tokio::join!(change(&world, way, partitions), cancelling);
        between.extend(cancelled);
        let log = world.log_tail();
        assert!(changed.status.success(), "{changed:?}\n{log}");
        // As many as at the start, whatever partitions they share.
        all_run(&world, CONFIGURED, partitions).await;
        ids.extend(sending.await.expect("the clients do not fail"));
    }
    let mut misrouted = deaf.stop().await;
    misrouted.extend(between);
    println!("measured: {} requests by Kafka's number", misrouted.len());
    let delivered = ids.len();
    ids.extend(misrouted);
    let is_remote = |index: usize| index < delivered && is_remote(index % DELIVERIES);
    let ends = world.all_end_in_balance(&ids, is_remote).await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    assert!(ends.cancelled > 0, "{ends:?}");

    // A number in the wrong direction is a slip.
    let slip = change(&world, "grow", 2).await;
    let why = String::from_utf8_lossy(&slip.stderr).into_owned();
    assert!(
        why.contains("`waybill topics shrink --partitions 2`"),
        "{why}"
    );
    let verified = command(&world, &["verify"]).output().expect("it runs");
    let found = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(!found.contains(": partitions is"), "{found}");
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_grows_continues_when_its_process_is_killed() {
    let mut world = World::new(CONFIG);
    let process = world.up();
    world.ready().await;
    let world = Arc::new(world);
    let mut growing = begin(&world, "grow", 4);
    world
        .eventually("the topic has more partitions", async || {
            goes_on(&mut growing);
            partitions_of(&world, REQUESTS) == 4
        })
        .await;
    process.kill();
    let process = restart(&world);
    let grown = tokio::task::spawn_blocking(|| growing.wait_with_output())
        .await
        .expect("it is waited for")
        .expect("it runs");
    assert!(grown.status.success(), "{grown:?}\n{}", world.log_tail());
    let steps = String::from_utf8_lossy(&grown.stdout).into_owned();
    for step in [
        "the process no longer answers",
        "the process runs again, and continues",
        "done: set `partitions` to 4",
    ] {
        assert!(steps.contains(step), "{step}: {steps}");
    }
    all_run(&world, 4, 4).await;
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());
}

/// Waits until the process runs this many shards of this many partitions.
async fn all_run(world: &World, shards: u32, partitions: u32) {
    world
        .eventually("all shards run", async || {
            let views = schedulers(world).await;
            let running = views.iter().filter(|view| view["state"] == "running");
            let of: BTreeSet<u64> = running
                .clone()
                .filter_map(|view| view["partition"].as_u64())
                .collect();
            let all = of.into_iter().eq(0..u64::from(partitions));
            views.len() == shards as usize && running.count() == shards as usize && all
        })
        .await;
    world.ready().await;
}

/// The generation of the current layout.
async fn generation(world: &World) -> u64 {
    let answer = world.client.get(world.url("admin", "/shards")).send().await;
    let layout: Value = answer.expect("it answers").json().await.expect("JSON");
    layout["generation"]
        .as_u64()
        .expect("a layout has a generation")
}

fn announced(world: &World, partitions: u32) -> bool {
    let log = std::fs::read_to_string(world.path("log.txt")).unwrap_or_default();
    let told = "the number of partitions for new operations changed";
    log.contains(&format!("{told} partitions={partitions}\n"))
}

/// A client that always writes requests to the partitions of one fixed number.
struct Deaf {
    is_over: Arc<AtomicBool>,
    ids: JoinHandle<Vec<String>>,
}

impl Deaf {
    fn of(world: &Arc<World>, prefix: &'static str, partitions: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (world, until) = (world.clone(), is_over.clone());
        let ids = tokio::task::spawn_blocking(move || {
            let mut ids = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let name = format!("{prefix}-{}", ids.len());
                let by = |id| partition_for(id, partitions).0;
                ids.push(put_to(&world, &name, by));
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
fn partitions_of(world: &World, topic: &str) -> usize {
    let topic = world.topic(topic);
    let consumer = looker(world);
    let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE);
    let metadata = metadata.expect("the broker answers");
    metadata
        .topics()
        .iter()
        .map(|topic| topic.partitions().len())
        .sum()
}

/// Grows to this number of partitions, and waits for the end of the command.
async fn grow(world: &Arc<World>, partitions: u32) -> Output {
    change(world, "grow", partitions).await
}

/// Changes to this number of partitions, and waits for the end of the command.
async fn change(world: &Arc<World>, way: &str, partitions: u32) -> Output {
    let changing = begin(world, way, partitions);
    tokio::task::spawn_blocking(|| changing.wait_with_output())
        .await
        .expect("it is waited for")
        .expect("it runs")
}

fn begin(world: &World, way: &str, partitions: u32) -> Child {
    let partitions = partitions.to_string();
    let mut command = command(world, &[way, "--partitions", &partitions]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program was built")
}

/// Fails with its output if it has ended without success.
fn goes_on(changing: &mut Child) {
    let Some(status) = changing.try_wait().expect("it is our child") else {
        return;
    };
    let mut printed = String::new();
    if let Some(stderr) = &mut changing.stderr {
        let _ = stderr.read_to_string(&mut printed);
    }
    assert!(status.success(), "{status}: {printed}");
}

/// A `waybill topics …` command.
fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_test_variables(&mut command);
    command.envs(world.env.iter().cloned());
    command.arg("topics").args(arguments);
    command.arg("--config").arg(world.path("waybill.yaml"));
    command.args(["--admin", &world.address("admin").to_string()]);
    command
}
