//! Two processes of every role, each killed once while deliveries run.

use std::sync::Arc;

use waybill_test_support::setup::Setup;

use crate::cluster::{Cluster, deliver_while};
use crate::is_remote;

/// Deliveries between two kills. A multiple of five, because one in five is remote.
const ROUND: usize = 170;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_delivery_completes_once_whichever_process_is_killed() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let mut members = vec![
        cluster.ingestion(&services, ""),
        cluster.ingestion(&services, ""),
        cluster.scheduler("0-1", ""),
        cluster.scheduler("2-3", ""),
        cluster.supervisor(""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
        cluster.agents(&services, ""),
    ];
    members.push(services);
    let ingestions: Vec<Arc<Setup>> = members[..2].iter().map(|one| one.setup.clone()).collect();
    for member in &members {
        member.setup.ready().await;
    }

    let mut ids = Vec::new();
    for (round, victim) in members.iter_mut().enumerate() {
        let kill = || victim.kill_and_start_again();
        let prefix = format!("round-{round}");
        ids.extend(deliver_while(&ingestions, &prefix, ROUND, kill).await);
    }
    let setup = &ingestions[0];
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    // Every killed process works again.
    for member in &members {
        member.setup.ready().await;
    }
    for mut member in members {
        member.terminate();
    }
    cluster.remove().await;
}
