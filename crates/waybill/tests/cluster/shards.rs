//! Schedulers share partitions, and the number of shards changes while deliveries and cancels run.

use std::sync::Arc;

use serde_json::Value;
use waybill_test_support::setup::{Setup, delivery};

use crate::cluster::{Cluster, deliver_while};
use crate::is_remote;
use crate::member::Member;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_move_between_more_and_fewer_schedulers() {
    const ROUND: usize = 300;
    const CANCELLED: usize = 20;
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let mut schedulers = vec![cluster.scheduler("0-3", ""), cluster.scheduler("all", "")];
    let supervisor = cluster.supervisor("");
    let agents = cluster.agents(&services, "");
    let ingestion = cluster.ingestion(&services, "");
    let setup = ingestion.setup.clone();
    ingestion.setup.ready().await;
    supervisor.setup.ready().await;
    agents.setup.ready().await;
    running(&setup, &schedulers, 4).await;

    let ingestions = [setup.clone()];
    let mut ids = Vec::new();
    for (per_partition, is_killed) in [(2, false), (4, true), (1, true), (2, false), (1, false)] {
        let prefix = format!("by-{per_partition}-{}", ids.len());
        let change = || {
            let text = per_partition.to_string();
            let output = cluster.run(&["shards", "set", &text]);
            assert!(output.status.success(), "{output:?}");
            if is_killed {
                schedulers[1].kill_and_start_again();
            }
        };
        ids.extend(deliver_while(&ingestions, &prefix, ROUND, change).await);
        // Each of these was just accepted.
        for index in 0..CANCELLED {
            let name = format!("{prefix}-cancelled-{index}");
            // A remote delivery is compensated by a person.
            let id = setup.deliver(&delivery(&name, false)).await;
            let url = setup.url("http", &format!("/api/deliveryrequests/{name}"));
            let answer = setup.client.delete(&url).send().await;
            let status = answer.expect("ingestion answers").status();
            assert!(status.is_success() || status == 409, "{status}");
            ids.push(id);
        }
        running(&setup, &schedulers, 4 * per_partition).await;
    }
    let is_remote = |index| index % (ROUND + CANCELLED) < ROUND && is_remote(index);
    let ends = setup.all_end_in_balance(&ids, is_remote).await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    for mut member in schedulers {
        member.terminate();
    }
    for mut member in [supervisor, agents, ingestion, services] {
        member.terminate();
    }
    cluster.remove().await;
}

/// Waits until this many shards run, each at exactly one of the schedulers.
pub async fn running(setup: &Arc<Setup>, schedulers: &[Member], wanted: u64) {
    setup
        .eventually("every shard runs at one scheduler", async || {
            let mut running = Vec::new();
            for member in schedulers {
                let url = member.setup.url("admin", "/schedulers");
                let Ok(answer) = setup.client.get(url).send().await else {
                    return false;
                };
                let views: Vec<Value> = answer.json().await.unwrap_or_default();
                let views = views.into_iter().filter(|view| view["state"] == "running");
                running.extend(views.filter_map(|view| view["shard"].as_u64()));
            }
            running.sort_unstable();
            running.into_iter().eq(0..wanted)
        })
        .await;
}
