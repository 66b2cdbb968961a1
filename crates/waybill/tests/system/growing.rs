//! The operation topics get more partitions while everything goes on.

use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rdkafka::consumer::Consumer as _;
use waybill_engine::partition_for;

use crate::readers::deliver_and_cancel;
use crate::world::process::without_test_variables;
use crate::world::{PATIENCE, World, delivery};
use crate::{REQUESTS, deliver_all, is_remote, looker, put_to, restart, schedulers};

const CONFIG: &str = "partitions: 2\n\
    http: { acceptTimeout: 1900ms }\n\
    kafka: { growSettle: 2s, properties: { topic.metadata.refresh.interval.ms: '500' } }\n\
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
    // A client that never hears of it.
    let is_over = Arc::new(AtomicBool::new(false));
    let late = {
        let (world, is_over) = (world.clone(), is_over.clone());
        tokio::task::spawn_blocking(move || {
            let mut ids = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let name = format!("late-{}", ids.len());
                ids.push(put_to(&world, &name, |id| partition_for(id, 2).0));
            }
            ids
        })
    };
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
        all_run(&world, 4).await;

        // Whoever drives it is killed when the topics have grown, and asked again; and once more when it is
        // announced. That is gone on with.
        is_at(3).await;
        let mut growing = begin(&world, 8);
        world
            .eventually("the topic has more partitions", async || {
                partitions_of(&world, REQUESTS) == 8
            })
            .await;
        let _ = growing.kill();
        let _ = growing.wait();
        process.kill();
        process = restart(&world);
        world.ready().await;

        let mut growing = begin(&world, 8);
        world
            .eventually("more partitions are announced", async || {
                let log = std::fs::read_to_string(world.path("log.txt")).unwrap_or_default();
                log.contains("operations are spread over more partitions partitions=8")
            })
            .await;
        let _ = growing.kill();
        let _ = growing.wait();
        for index in 0..20 {
            // Its partition may be one that nobody reads yet.
            let id = world
                .deliver(&delivery(&format!("announced-{index}"), false))
                .await;
            assert!(world.state(&id).await.is_some(), "{id} is not known");
            ids.push(id);
        }
        process.kill();
        process = restart(&world);
        all_run(&world, 8).await;
        (process, ids)
    };
    let ((process, announced), cancelled) =
        tokio::join!(changing, deliver_and_cancel(&world, &progress));

    let mut ids = sending.await.expect("the clients do not fail");
    ids.extend(cancelled);
    ids.extend(announced);
    is_over.store(true, Ordering::Relaxed);
    let late = late.await.expect("the broker takes them");
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
    assert!(
        why.contains("8 partitions become a whole multiple"),
        "{why}"
    );
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());

    // The configuration still says 2.
    let process = restart(&world);
    all_run(&world, 8).await;
    let log = std::fs::read_to_string(world.path("log.txt")).expect("there is a log");
    assert!(log.contains("set partitions to 8"), "{log}");
    world
        .all_end_in_balance(&ids, |index| index < DELIVERIES && is_remote(index))
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", world.log_tail());
}

/// Waits until the process runs so many readers, each of a partition of its own.
async fn all_run(world: &World, partitions: u64) {
    world
        .eventually("all readers run", async || {
            let views = schedulers(world).await;
            let running = views.iter().filter(|view| view["state"] == "running");
            let of = running.filter_map(|view| view["partition"].as_u64());
            views.len() as u64 == partitions && of.eq(0..partitions)
        })
        .await;
    world.ready().await;
}

/// How many partitions a topic has.
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

/// Makes so many partitions, and waits until that is done.
async fn grow(world: &Arc<World>, partitions: u32) -> Output {
    let growing = begin(world, partitions);
    tokio::task::spawn_blocking(|| growing.wait_with_output())
        .await
        .expect("it is waited for")
        .expect("it runs")
}

fn begin(world: &World, partitions: u32) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_test_variables(&mut command);
    command.envs(world.env.iter().cloned());
    command.args(["topics", "grow", "--partitions", &partitions.to_string()]);
    command.arg("--config").arg(world.path("waybill.yaml"));
    command.args(["--admin", &world.address("admin").to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program was built")
}
