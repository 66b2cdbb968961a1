//! The store is missing or replaced, and the log still exists.

use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::setup::{PATIENCE, Setup};

use crate::{PARTITIONS, REQUESTS, deliver_all, is_remote, restart, schedulers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_without_its_state_is_refused_until_an_operator_accepts_it() {
    const DELIVERIES: usize = 40;
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    if setup.is_on_servers() {
        println!(
            "SKIPPED: a store that is removed, on servers: it is the embedded one's directory"
        );
        return;
    }
    let process = setup.up();
    setup.ready().await;
    let setup = Arc::new(setup);
    let ids = deliver_all(&setup, "once", DELIVERIES, &Arc::default()).await;
    setup.all_reach(&ids, "Processed").await;
    setup
        .eventually("committed offsets show what is done", async || {
            copies(&setup).iter().all(|copy| *copy > 0)
        })
        .await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
    std::fs::remove_dir_all(setup.path("data/store")).expect("the store can be removed");

    let process = restart(&setup);
    setup
        .eventually("every partition is refused", async || {
            let schedulers = schedulers(&setup).await;
            schedulers.iter().all(|view| view["state"] == "refused")
        })
        .await;
    let readiness = setup.client.get(setup.url("admin", "/readyz")).send().await;
    assert_eq!(readiness.expect("the process answers").status(), 503);
    let log = std::fs::read_to_string(setup.path("log.txt")).expect("there is a log");
    assert!(log.contains("scheduler.startWithoutState"), "{log}");
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let config = "partitions: 4\nscheduler: { startWithoutState: true }\n";
    std::fs::write(setup.path("waybill.yaml"), config).expect("the directory is writable");
    let _process = restart(&setup);
    setup.ready().await;
    // Requests that are still in the log run again, without additional effects.
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
}

/// The copies of the request checkpoints, by partition; 0 if there is none.
fn copies(setup: &Setup) -> Vec<i64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .set("group.id", "waybill-scheduler")
        .create()
        .expect("a consumer can be made");
    let mut asked = TopicPartitionList::new();
    for partition in 0..PARTITIONS as i32 {
        asked.add_partition(&setup.topic(REQUESTS), partition);
    }
    let committed = consumer.committed_offsets(asked, PATIENCE);
    let committed = committed.expect("the broker reports committed offsets");
    let copies = committed.elements();
    let copies = copies.iter().map(|copy| copy.offset().to_raw());
    copies.map(|copy| copy.unwrap_or(0).max(0)).collect()
}
