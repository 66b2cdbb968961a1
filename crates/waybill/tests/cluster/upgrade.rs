//! A rolling upgrade from the previous release, and a rollback, while deliveries run.

use std::path::Path;
use std::sync::Arc;

use waybill_test_support::previous::previous_or_skip;
use waybill_test_support::setup::Setup;

use crate::cluster::{Cluster, all_end_without_a_person, deliver_while};

/// Deliveries between two changes. A multiple of five, because one in five is remote.
const ROUND: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_work_together_in_any_mix_of_roles() {
    let Some(previous) = previous_or_skip() else {
        return;
    };
    let Some(mut cluster) = Cluster::new_or_skip().await else {
        return;
    };
    cluster.program.clone_from(&previous);
    cluster.migrate();
    let services = cluster.services("");
    let mut members = [
        cluster.agents(&services, ""),
        cluster.scheduler("0-1", ""),
        cluster.ingestion(&services, ""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
        cluster.scheduler("2-3", ""),
        cluster.ingestion(&services, ""),
        cluster.supervisor(""),
    ];
    for member in &members {
        member.setup.ready().await;
    }
    let setups: Vec<Arc<Setup>> = [2, 6]
        .map(|index: usize| members[index].setup.clone())
        .into();

    let this = Path::new(env!("CARGO_BIN_EXE_waybill"));
    cluster.program = this.to_owned();
    cluster.migrate();
    let mut ids = Vec::new();
    for (way, program) in [("up", this), ("down", &previous), ("again", this)] {
        for (round, member) in members.iter_mut().enumerate() {
            let change = || member.becomes(program);
            let prefix = format!("{way}-{round}");
            ids.extend(deliver_while(&setups, &prefix, ROUND, change).await);
            member.setup.ready().await;
        }
    }
    all_end_without_a_person(&setups[0], &ids).await;
    for mut member in members {
        member.terminate();
    }
    drop(services);
    cluster.remove().await;
}
