//! What is parked costs nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::Setting;
use crate::world::{World, delivery};

/// How much longer a delivery may take beside the parked ones. Loose: it stands for "not ten times".
const SLOWER_MAX: f64 = 4.0;

/// For how long, in the supervisor's own time, nothing may be asked for.
const STILL: f64 = 4.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_parked_deliveries_slow_nothing_down_and_cost_the_supervisor_nothing() {
    const PARKED: usize = 1_000;
    let mut world = Setting::hasty().world();
    if world.is_on_servers() {
        println!(
            "SKIPPED: how long a delivery takes beside parked ones, on servers: they warm up meanwhile"
        );
        return;
    }
    let _up = world.up();
    world.ready().await;
    median(&world, "warm").await;
    let before = best_median(&world, "before").await;

    world.put_faults("drone", &json!({ "refuseRate": 1 })).await;
    world
        .put_faults("package", &json!({ "undoRefuseRate": 1 }))
        .await;
    let bodies = (0..PARKED).map(|index| delivery(&format!("parked-{index}"), false));
    let ids = world.deliver_each(bodies).await;
    let ends = world.all_end_in_balance(&ids, |_| false).await;
    assert_eq!(ends.compensation_failed, PARKED, "{ends:?}");
    world.clear_faults().await;

    let asked = stands_still(&world).await;
    let after = best_median(&world, "after").await;
    assert!(
        after <= before.mul_f64(SLOWER_MAX),
        "a delivery took {before:?} before and {after:?} beside {PARKED} parked ones"
    );
    assert_eq!(stands_still(&world).await, asked, "recoveries asked for");
}

/// Waits until every shard was swept for a while and nothing was asked for meanwhile. What was
/// handed off earlier has its entries looked at first.
async fn stands_still(world: &World) -> f64 {
    const SWEPT: &str = "waybill_supervisor_last_sweep_timestamp_seconds";
    let asked = async || {
        world
            .metric("waybill_supervisor_recoveries_total", "")
            .await
    };
    let mut standing = asked().await;
    world
        .eventually("the supervisor asks for nothing more", async || {
            let began = world.samples(SWEPT, "").await;
            let last = began.iter().copied().fold(0.0, f64::max);
            world
                .eventually("all shards are swept again", async || {
                    let swept = world.samples(SWEPT, "").await;
                    !began.is_empty()
                        && swept.len() == began.len()
                        && swept.iter().all(|at| *at >= last + STILL)
                })
                .await;
            let before = std::mem::replace(&mut standing, asked().await);
            before == standing
        })
        .await;
    standing
}

/// The best of a few medians: what else runs on the machine has less of a say.
async fn best_median(world: &World, prefix: &str) -> Duration {
    let mut best = Duration::MAX;
    for round in 0..3 {
        best = best.min(median(world, &format!("{prefix}-{round}")).await);
    }
    best
}

/// How long a delivery takes, from its acceptance to its end, in the middle of a hundred.
async fn median(world: &World, prefix: &str) -> Duration {
    let mut ids = Vec::new();
    for index in 0..100 {
        let body = delivery(&format!("{prefix}-{index}"), false);
        ids.push(world.deliver(&body).await);
    }
    let ends = world.all_end(&ids).await;
    let processed = ends
        .iter()
        .inspect(|end| assert_eq!(end["state"], "Processed", "{end:#}"));
    let mut times: Vec<Duration> = processed.map(took).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn took(operation: &Value) -> Duration {
    let at = |name: &str| -> jiff::Timestamp {
        let time = operation[name].as_str().expect("a time");
        time.parse().expect("RFC 3339")
    };
    let took = at("updatedAt").duration_since(at("createdAt"));
    took.unsigned_abs()
}
