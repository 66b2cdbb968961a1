//! The lowest limits of the embedded broker that a configuration may set, on a running process.

use std::sync::Arc;

use waybill_test_support::world::World;

use crate::{deliver_all, is_remote};

/// 32 for one address, which gets three quarters of them.
const CONFIG: &str =
    "broker: { connectionsMax: 42, groupsMax: 10, storedGroupsMax: 10, partitionsMax: 80 }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_has_its_connections_at_the_lowest_limits_of_the_broker() {
    const DELIVERIES: usize = 40;
    let mut world = World::new(CONFIG);
    let _process = world.up();
    world.ready().await;
    let world = Arc::new(world);
    let ids = deliver_all(&world, "least", DELIVERIES, &Arc::default()).await;
    world.all_reach(&ids, "Processed").await;
    world.assert_one_effect_per_step(&ids, is_remote).await;
    let metric = async |name: &str| world.metric(&format!("waybill_broker_{name}"), "").await;
    assert_eq!(metric("connections_replaced_total").await, 0.0);
    assert_eq!(metric("connections_refused_total").await, 0.0);
    world
        .eventually("the partitions are counted", async || {
            metric("partitions").await == 80.0
        })
        .await;
}
