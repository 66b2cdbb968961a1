//! A broker with a full disk: it accepts no more writes and ends.

use std::time::Duration;

use waybill_test_support::setup::delivery;

use crate::cluster::{Cluster, all_end_without_a_person, deliver_while};
use crate::is_remote;

const ROUND: usize = 200;
/// Longer than the time-out of a request, and than a lease.
const AWAY: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_broker_disk_loses_no_delivery() {
    let Some((cluster, mut kafka, cassandra)) = Cluster::with_servers_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let schedulers = [cluster.scheduler("0-1", ""), cluster.scheduler("2-3", "")];
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    for member in schedulers.iter().chain(&others) {
        member.setup.ready().await;
    }
    let setups = [ingestion.setup.clone()];
    let fill = || {
        kafka.fill_the_disk();
        std::thread::sleep(AWAY);
        kafka.start_again();
    };
    let mut ids = deliver_while(&setups, "full", ROUND, fill).await;
    let after = delivery("after", is_remote(ROUND));
    ids.push(setups[0].deliver(&after).await);
    all_end_without_a_person(&setups[0], &ids).await;
    drop((services, ingestion, schedulers, others));
    cluster.remove().await;
    drop((kafka, cassandra));
}
