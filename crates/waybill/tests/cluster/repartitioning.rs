//! The operation topics get more partitions, and then fewer, while deliveries and cancels run
//! through several processes of every role.

use waybill_test_support::setup::delivery;

use crate::cluster::{Cluster, deliver_while};
use crate::is_remote;
use crate::shards::running;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_and_removed_under_several_schedulers() {
    const ROUND: usize = 300;
    const CANCELLED: usize = 20;
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    cluster.grows_soon();
    let services = cluster.services("");
    let mut schedulers = vec![cluster.scheduler("0-3", ""), cluster.scheduler("all", "")];
    let supervisors = [cluster.supervisor(""), cluster.supervisor("")];
    let agents = cluster.agents(&services, "");
    let ingestions = [
        cluster.ingestion(&services, ""),
        cluster.ingestion(&services, ""),
    ];
    let setups = ingestions.each_ref().map(|member| member.setup.clone());
    for member in ingestions.iter().chain(&supervisors).chain([&agents]) {
        member.setup.ready().await;
    }
    running(&setups[0], &schedulers, 4).await;

    let mut ids = Vec::new();
    // Fewer partitions with as many shards as before.
    for (verb, partitions, shards, is_killed) in [
        ("grow", 8, 8, true),
        ("grow", 16, 16, false),
        ("shrink", 4, 16, true),
    ] {
        let prefix = format!("to-{partitions}");
        let change = || {
            let wanted = partitions.to_string();
            let grow = ["topics", verb, &wanted];
            let repartition = cluster.command(&grow).spawn();
            let mut repartition = repartition.expect("the program was built");
            if is_killed {
                // Around the announcement.
                std::thread::sleep(std::time::Duration::from_secs(3));
                schedulers[1].kill_and_start_again();
            }
            // It stops waiting for shards after a while, and may be started again.
            let mut status = repartition.wait().expect("the program runs");
            for _ in 0..3 {
                if status.success() {
                    break;
                }
                let again = cluster.command(&grow).status();
                status = again.expect("the program was built");
            }
            assert!(status.success(), "{status}");
        };
        ids.extend(deliver_while(&setups, &prefix, ROUND, change).await);
        // Each of these was just accepted.
        for index in 0..CANCELLED {
            let name = format!("{prefix}-cancelled-{index}");
            let id = setups[0].deliver(&delivery(&name, false)).await;
            let url = setups[0].url("http", &format!("/api/deliveryrequests/{name}"));
            let answer = setups[0].client.delete(&url).send().await;
            let status = answer.expect("ingestion answers").status();
            assert!(status.is_success() || status == 409, "{status}");
            ids.push(id);
        }
        running(&setups[0], &schedulers, shards).await;
    }
    let is_remote = |index| index % (ROUND + CANCELLED) < ROUND && is_remote(index);
    let ends = setups[0].all_end_in_balance(&ids, is_remote).await;
    assert_eq!(ends.processed + ends.cancelled, ids.len(), "{ends:?}");
    let verified = cluster.run(&["topics", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
    let slip = cluster.run(&["topics", "grow", "2"]);
    let why = String::from_utf8_lossy(&slip.stderr).into_owned();
    assert!(why.contains("topics shrink 2"), "{why}");
    drop((schedulers, supervisors, ingestions, agents, services));
    cluster.remove().await;
}
