//! Parked operations cost nothing.

use serde_json::json;
use waybill_test_support::setup::{Setup, delivery};

use super::Setting;

/// The maximum ratio of work per delivery with and without parked operations. Loose, because the
/// grouping of writes varies; a scan of a thousand operations would be far more.
const MORE_MAX: f64 = 2.0;

/// The number of measured deliveries.
const COUNTED: usize = 100;

/// How long the supervisor must request nothing, in its own time.
const STILL: f64 = 4.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_parked_deliveries_slow_nothing_down() {
    const PARKED: usize = 1_000;
    let mut setup = Setting::hasty().setup();
    if setup.is_on_servers() {
        println!(
            "SKIPPED: the work of deliveries beside parked ones, on servers: attempts outlive their second there, and \
             are more work"
        );
        return;
    }
    let _up = setup.up();
    setup.ready().await;
    let before = least_work_of_deliveries(&setup, "before").await;

    setup.put_faults("drone", &json!({ "refuseRate": 1 })).await;
    setup
        .put_faults("package", &json!({ "undoRefuseRate": 1 }))
        .await;
    let bodies = (0..PARKED).map(|index| delivery(&format!("parked-{index}"), false));
    let ids = setup.deliver_each(bodies).await;
    let ends = setup.all_end_in_balance(&ids, |_| false).await;
    assert_eq!(ends.compensation_failed, PARKED, "{ends:?}");
    setup.clear_faults().await;

    // On a busy machine, late entries are processed between two idle periods.
    let mut asked = stands_still(&setup).await;
    setup
        .eventually("no interval doubles", async || {
            let still = stands_still(&setup).await;
            std::mem::replace(&mut asked, still) == still
        })
        .await;
    let after = least_work_of_deliveries(&setup, "after").await;
    for ((what, before), (_, after)) in before.into_iter().zip(after) {
        assert!(
            before > 0.0 && after <= before * MORE_MAX,
            "{what} of {COUNTED} deliveries: {before} before, {after} beside {PARKED} parked ones"
        );
    }
}

/// Waits until every index shard was swept for a while without any request. Entries of earlier
/// hand-offs are processed first.
async fn stands_still(setup: &Setup) -> f64 {
    const SWEPT: &str = "waybill_supervisor_last_sweep_timestamp_seconds";
    let asked = async || {
        setup
            .metric("waybill_supervisor_recoveries_total", "")
            .await
    };
    let mut standing = asked().await;
    setup
        .eventually("the supervisor asks for nothing more", async || {
            let began = setup.samples(SWEPT, "").await;
            let last = began.iter().copied().fold(0.0, f64::max);
            setup
                .eventually("all index shards are swept again", async || {
                    let swept = setup.samples(SWEPT, "").await;
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

/// The minimum of several rounds: on a busy machine, an attempt that takes longer than a second is
/// more work.
async fn least_work_of_deliveries(setup: &Setup, prefix: &str) -> [(&'static str, f64); 2] {
    let mut least = work_of_deliveries(setup, &format!("{prefix}-0")).await;
    for round in 1..3 {
        let work = work_of_deliveries(setup, &format!("{prefix}-{round}")).await;
        for ((_, least), (_, work)) in least.iter_mut().zip(work) {
            *least = least.min(work);
        }
    }
    least
}

/// The cost of some deliveries for the whole system. Afterwards no operation is in memory: parked
/// ones need none.
async fn work_of_deliveries(setup: &Setup, prefix: &str) -> [(&'static str, f64); 2] {
    const ROWS: &str = "waybill_scheduler_commit_rows_sum";
    const RECORDS: &str = "waybill_kafka_producer_records_total";
    let counts = async || {
        [
            setup.metric(ROWS, "").await,
            setup.metric(RECORDS, "").await,
        ]
    };
    let [rows, records] = counts().await;
    let bodies = (0..COUNTED).map(|index| delivery(&format!("{prefix}-{index}"), false));
    let ids = setup.deliver_each(bodies).await;
    for end in setup.all_end(&ids).await {
        assert_eq!(end["state"], "Processed", "{end:#}");
    }
    setup
        .eventually("nothing is in memory", async || {
            let name = "waybill_scheduler_in_flight_operations";
            setup.metric(name, "").await == 0.0
        })
        .await;
    let [rows_then, records_then] = counts().await;
    [(ROWS, rows_then - rows), (RECORDS, records_then - records)]
}
