//! Two schedulers of the same partitions, as after a forced delete: one works and one waits.

use std::time::Instant;

use crate::cluster::{Cluster, deliver, deliver_while, ready_after};
use crate::member::Member;
use crate::statuses::assert_each_event_has_one_version;
use crate::{PARTITIONS, is_remote};

const DELIVERIES: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_schedulers_owns_the_partitions_and_the_other_takes_over() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    cluster.uses_long_leases();
    let services = cluster.services("");
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    let ingestion = cluster.ingestion(&services, "");
    let mut first = cluster.scheduler("0-3", "");
    first.setup.ready().await;
    let mut second = cluster.scheduler("0-3", "");
    waits(&second).await;
    let mut ids = deliver(&ingestion, "one-works", DELIVERIES).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    assert_waits(&second).await;
    let before = first.epochs().await;

    let killed_at = Instant::now();
    let kill = || first.kill();
    let setup = [ingestion.setup.clone()];
    ids.extend(deliver_while(&setup, "killed", DELIVERIES, kill).await);
    ready_after(&second, "a takeover from a killed scheduler", killed_at).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    let after_kill = second.epochs().await;
    assert_eq!(
        after_kill,
        next_epochs(&before),
        "each partition changed its owner once"
    );

    first.start_again();
    waits(&first).await;
    let asked_at = Instant::now();
    second.terminate();
    let ended = asked_at.elapsed().as_secs_f64();
    println!("measured: an idle scheduler ends {ended:.1} s after SIGTERM");
    ready_after(&first, "a takeover from a scheduler asked to end", asked_at).await;
    assert_eq!(
        first.epochs().await,
        next_epochs(&after_kill),
        "each partition changed its owner once"
    );
    ids.extend(deliver(&ingestion, "released", DELIVERIES).await);
    ingestion.setup.all_reach(&ids, "Processed").await;
    ingestion
        .setup
        .assert_one_effect_per_step(&ids, is_remote)
        .await;
    drop((services, others, ingestion, first, second));
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_paused_past_its_lease_does_no_harm() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    cluster.uses_long_leases();
    let services = cluster.services("");
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    let ingestion = cluster.ingestion(&services, "");
    let mut frozen = cluster.scheduler("0-3", "");
    frozen.setup.ready().await;
    let next = cluster.scheduler("0-3", "");
    waits(&next).await;

    let frozen_at = Instant::now();
    let setup = [ingestion.setup.clone()];
    let freeze = || frozen.freeze();
    let mut ids = deliver_while(&setup, "frozen", 3 * DELIVERIES, freeze).await;
    ready_after(&next, "a takeover from a paused scheduler", frozen_at).await;
    let thaw = || frozen.thaw();
    ids.extend(deliver_while(&setup, "thawed", 3 * DELIVERIES, thaw).await);
    let gives_way = "the paused scheduler waits as a candidate or has ended";
    ingestion
        .setup
        .eventually(gives_way, async || {
            frozen.has_ended() || is_waiting(&frozen).await
        })
        .await;
    ids.extend(deliver(&ingestion, "afterwards", DELIVERIES).await);
    ingestion.setup.all_reach(&ids, "Processed").await;
    ingestion
        .setup
        .assert_one_effect_per_step(&ids, is_remote)
        .await;
    assert_eq!(
        next.epochs().await.len(),
        PARTITIONS as usize,
        "it still owns every partition"
    );
    assert!(frozen.has_ended() || is_waiting(&frozen).await);
    assert_each_event_has_one_version(&cluster, ids.len());
    drop((services, others, ingestion, frozen, next));
    cluster.remove().await;
}

/// The epochs after one change of owner per partition.
fn next_epochs(epochs: &[u64]) -> Vec<u64> {
    assert_eq!(epochs.len(), PARTITIONS as usize, "all are owned");
    epochs.iter().map(|epoch| epoch + 1).collect()
}

/// Waits until a scheduler is waiting for all leases.
async fn waits(scheduler: &Member) {
    scheduler
        .setup
        .eventually("it waits for all leases", async || {
            is_waiting(scheduler).await
        })
        .await;
}

async fn assert_waits(scheduler: &Member) {
    assert!(
        is_waiting(scheduler).await,
        "{:?}",
        scheduler.readiness().await
    );
}

/// Whether it reports that it waits for the lease of each partition, and owns none.
async fn is_waiting(scheduler: &Member) -> bool {
    let Some(readiness) = scheduler.readiness().await else {
        return false;
    };
    let views = scheduler.schedulers().await;
    let waiting = (0..PARTITIONS).all(|partition| {
        readiness.contains(&format!("waiting for: lease of partition {partition}"))
    });
    waiting && views.iter().all(|view| view["state"] == "acquiring")
}
