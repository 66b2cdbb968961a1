//! Wall clocks of different processes that jump back and forth while deliveries run.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use waybill_test_support::clock::{Clock, library};
use waybill_test_support::setup::{Setup, delivery};

use crate::cluster::{Cluster, all_end_without_a_person, deliver_while};

/// Deliveries between two jumps. A multiple of five, because one in five is remote.
const ROUND: usize = 100;
/// Far longer than leases, and than the documented maximum difference of clocks. An operation that
/// was handed off during a jump becomes due when the other clocks reach that time.
const AHEAD: &str = "+20";
const BEHIND: &str = "-20";
const AS_IT_IS: &str = "+0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jumps_lose_and_duplicate_no_delivery() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let Some(library) = library() else {
        println!("SKIPPED: clocks that jump: libfaketime is not installed (Debian: faketime)");
        cluster.remove().await;
        return;
    };
    let clocks = ["supervisor", "scheduler", "agents", "ingestion"];
    let clocks = clocks.map(|process| (process, Clock::new(&library, cluster.dir(), process)));
    let [
        (_, of_supervisor),
        (_, of_scheduler),
        (_, of_agents),
        (_, of_ingestion),
    ] = &clocks;
    let services = cluster.services("");
    let other = cluster.scheduler("2-3", "");
    cluster.env.clone_from(&of_supervisor.env);
    let supervisor = cluster.supervisor("");
    cluster.env.clone_from(&of_scheduler.env);
    let scheduler = cluster.scheduler("0-1", "");
    cluster.env.clone_from(&of_agents.env);
    let agents = cluster.agents(&services, "");
    cluster.env.clone_from(&of_ingestion.env);
    let ingestion = cluster.ingestion(&services, "");
    for member in [&scheduler, &other, &supervisor, &agents, &ingestion] {
        member.setup.ready().await;
    }

    let setups: [Arc<Setup>; 1] = [ingestion.setup.clone()];
    let mut ids = Vec::new();
    for (process, clock) in &clocks {
        for offset in [AHEAD, AS_IT_IS, BEHIND, AS_IT_IS] {
            let prefix = format!("{process}-{}", ids.len());
            let jump = || clock.set(offset);
            ids.extend(deliver_while(&setups, &prefix, ROUND, jump).await);
            // So that the jump happens during this round's deliveries and affects the next round.
            tokio::time::sleep(Duration::from_millis(500)).await;
            if *process == "scheduler" && offset == AHEAD {
                // This process drives half of the partitions.
                let mut sent = 0;
                let is_ahead = async || {
                    sent += 1;
                    let id = setups[0]
                        .deliver(&delivery(&format!("ahead-{sent}"), false))
                        .await;
                    setups[0]
                        .all_reach(std::slice::from_ref(&id), "Processed")
                        .await;
                    is_of_the_future(&setups[0], &id).await
                };
                setups[0]
                    .eventually("a row is of the future", is_ahead)
                    .await;
            }
        }
    }
    all_end_without_a_person(&setups[0], &ids).await;
    for member in [&scheduler, &other, &supervisor, &agents, &ingestion] {
        member.setup.ready().await;
    }
    drop((services, scheduler, other, supervisor, agents, ingestion));
    cluster.remove().await;
}

/// Whether a fast clock changed an operation.
async fn is_of_the_future(setup: &Setup, id: &str) -> bool {
    let url = setup.url("http", &format!("/v1/operations/{id}"));
    let Ok(answer) = setup.client.get(url).send().await else {
        return false;
    };
    let body: Value = answer.json().await.unwrap_or_default();
    let changed = body["updatedAt"]
        .as_str()
        .and_then(|at| at.parse::<Timestamp>().ok());
    changed.is_some_and(|changed| changed > Timestamp::now() + Duration::from_secs(5))
}
