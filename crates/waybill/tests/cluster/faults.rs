//! Services that fail, hang, time out after the effect and refuse, under a scheduler that is
//! killed.

use serde_json::json;
use waybill_test_support::supervision::ends::Ends;
use waybill_test_support::supervision::setting::Setting;

use crate::cluster::{Cluster, deliver_while};
use crate::is_remote;

const DELIVERIES: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_delivery_ends_in_balance_despite_faults_and_a_killed_scheduler() {
    let Some(cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let faults = json!({
        "errorRate": 0.05, "hangRate": 0.01, "doThenTimeoutRate": 0.02, "refuseRate": 0.03,
    });
    let more = Setting::hasty()
        .with_faults(&faults)
        .sections(cluster.dir());
    let services = cluster.services(&more);
    let ingestion = cluster.ingestion(&services, &more);
    let mut killed = cluster.scheduler("0-1", &more);
    let _others = [
        cluster.scheduler("2-3", &more),
        cluster.supervisor(&more),
        cluster.agents(&services, &more),
    ];
    let setup = ingestion.setup.clone();
    let kill = || killed.kill_and_start_again();
    let ids = deliver_while(std::slice::from_ref(&setup), "faulty", DELIVERIES, kill).await;

    // Most deliveries are affected by the faults, but the test does not wait for the last of them.
    setup
        .eventually("most deliveries have ended", async || {
            let mut ended = 0;
            for id in &ids {
                let state = setup.state(id).await;
                ended += usize::from(matches!(
                    state.as_deref(),
                    Some("Processed" | "Compensated")
                ));
            }
            ended * 5 >= ids.len() * 4
        })
        .await;
    setup.clear_faults().await;
    let ends = setup.all_end_in_balance(&ids, is_remote).await;
    println!("measured: {ends:?}");
    let Ends {
        processed,
        compensated,
        cancelled,
        error,
        compensation_failed,
    } = ends;
    // Each of the five services permanently refuses 3 % of the deliveries that reach it before the
    // faults are cleared. On a busy machine more of them run out of time.
    assert!(compensated >= ids.len() / 100, "{ends:?}");
    assert!(processed >= ids.len() / 10, "{ends:?}");
    // No delivery was cancelled, and this workflow compensates every permanent failure. Only after
    // too many failures of an undo may a delivery be parked.
    assert_eq!((cancelled, error), (0, 0), "{ends:?}");
    assert!(compensation_failed * 100 <= ids.len(), "{ends:?}");
    drop((services, ingestion, killed, _others));
    cluster.remove().await;
}
