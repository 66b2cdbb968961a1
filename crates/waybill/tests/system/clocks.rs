//! A wrong wall clock: for a moment while operations with a deadline are running, and from the
//! start.

use std::time::Duration;

use serde_json::json;
use waybill_test_support::clock::{Clock, library};
use waybill_test_support::setup::{Setup, delivery};

/// The number of deliveries before, during and after the glitch each.
const ROUND: usize = 20;
/// The duration of the wrong time.
const GLITCH: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brief_clock_step_reaches_no_deadline() {
    let Some(library) = library() else {
        println!("SKIPPED: a clock that jumps: libfaketime is not installed (Debian: faketime)");
        return;
    };
    let mut setup = Setup::of_either_kind("partitions: 1\n");
    let clock = Clock::new(&library, &setup.path(""), "up");
    setup.env.extend(clock.env.iter().cloned());
    let up = setup.up();
    setup.ready().await;
    // Long enough for the first deliveries to be running during the glitch.
    setup
        .put_faults("drone", &json!({ "latencyMs": 2_000 }))
        .await;
    let deadline = jiff::Timestamp::now() + Duration::from_secs(15 * 60);
    let mut ids = Vec::new();
    let mut deliver = async || {
        for _ in 0..ROUND {
            let mut delivery = delivery(&format!("clock-{}", ids.len()), false);
            delivery["deadline"] = json!(deadline.to_string());
            delivery["pickupTime"] = json!(jiff::Timestamp::now().to_string());
            ids.push(setup.deliver(&delivery).await);
        }
    };
    let logged = async |message: &str| {
        let is_told = async || setup.log_tail().contains(message);
        setup.eventually(message, is_told).await;
    };
    deliver().await;
    clock.set("+3600");
    logged("wall clock stepped; ignoring the step until it persists").await;
    let began = tokio::time::Instant::now();
    deliver().await;
    tokio::time::sleep_until(began + GLITCH).await;
    clock.set("+0");
    logged("wall clock stepped back to the time before its step").await;
    deliver().await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, |_| false).await;
    drop(up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_boots_years_behind_catches_up_once_its_clock_is_right() {
    const YEARS_BEHIND: &str = "-157680000";
    const BEHIND: &str = "waybill_supervisor_oldest_overdue_seconds";
    let Some(library) = library() else {
        println!("SKIPPED: a clock that jumps: libfaketime is not installed (Debian: faketime)");
        return;
    };
    let mut setup = Setup::of_either_kind(
        "partitions: 1\nscheduler: { handOffAfter: 500ms }\nsupervisor: { auditInterval: 1s }\n",
    );
    let clock = Clock::new(&library, &setup.path(""), "up");
    clock.set(YEARS_BEHIND);
    setup.env.extend(clock.env.iter().cloned());
    let up = setup.up();
    setup.ready().await;
    // Handed off, so that the deadline index and the cursor of its sweep begin years ago.
    setup
        .put_faults("drone", &json!({ "errorRate": 1.0 }))
        .await;
    let mut ids = Vec::new();
    for index in 0..ROUND {
        let delivery = delivery(&format!("behind-{index}"), false);
        ids.push(setup.deliver(&delivery).await);
    }
    let attention = async || {
        setup
            .metric("waybill_operations_handed_off_total", "")
            .await
            > 0.0
    };
    setup.eventually("some are handed off", attention).await;
    clock.set("+0");
    let is_adopted = async || {
        setup
            .log_tail()
            .contains("adopted a step of the wall clock")
    };
    setup.eventually("the clock is adopted", is_adopted).await;
    let skips = async || {
        setup
            .log_tail()
            .contains("the sweep skips to the last hour")
    };
    setup.eventually("the sweep skips the years", skips).await;
    let near = async || setup.metric(BEHIND, "index_shard").await < 60.0;
    setup.eventually("the sweep has caught up", near).await;
    setup
        .put_faults("drone", &json!({ "errorRate": 0.0 }))
        .await;
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, |_| false).await;
    drop(up);
}
