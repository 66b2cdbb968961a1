//! A wall clock that is wrong for a moment, while operations with a deadline are under way.

use std::time::Duration;

use serde_json::json;
use waybill_test_support::clock::{Clock, library};
use waybill_test_support::world::{World, delivery};

/// Deliveries before, during and after the glitch each.
const ROUND: usize = 20;
/// How long the clock is wrong.
const GLITCH: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_an_hour_ahead_for_two_seconds_undoes_nothing_that_has_a_deadline() {
    let Some(library) = library() else {
        println!("SKIPPED: a clock that jumps: libfaketime is not there (Debian: faketime)");
        return;
    };
    let mut world = World::of_either_kind("partitions: 1\n");
    let clock = Clock::new(&library, &world.path(""), "up");
    world.env.extend(clock.env.iter().cloned());
    let up = world.up();
    world.ready().await;
    // Long enough for the first deliveries to be under way during the glitch.
    world
        .put_faults("drone", &json!({ "latencyMs": 2_000 }))
        .await;
    let deadline = jiff::Timestamp::now() + Duration::from_secs(15 * 60);
    let mut ids = Vec::new();
    let mut deliver = async || {
        for _ in 0..ROUND {
            let mut delivery = delivery(&format!("clock-{}", ids.len()), false);
            delivery["deadline"] = json!(deadline.to_string());
            delivery["pickupTime"] = json!(jiff::Timestamp::now().to_string());
            ids.push(world.deliver(&delivery).await);
        }
    };
    let told = async |message: &str| {
        let is_told = async || world.log_tail().contains(message);
        world.eventually(message, is_told).await;
    };
    deliver().await;
    clock.set("+3600");
    told("wall clock stepped; holding the step back").await;
    let began = tokio::time::Instant::now();
    deliver().await;
    tokio::time::sleep_until(began + GLITCH).await;
    clock.set("+0");
    told("wall clock stepped back to the time before its step").await;
    deliver().await;
    world.all_reach(&ids, "Processed").await;
    world.assert_one_effect_per_step(&ids, |_| false).await;
    drop(up);
}
