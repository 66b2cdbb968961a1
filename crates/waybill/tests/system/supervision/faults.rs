//! Services that fail, hang, time out after the effect and refuse, all at the same time.
//!
//! A longer run: `WAYBILL_TEST_DELIVERIES=20000 cargo test --release -p waybill --test system
//! delivery_ends`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waybill_test_support::process::Process;
use waybill_test_support::setup::{Dice, Metrics, Setup, delivery};

use super::{Ends, SERVICES, Setting};
use crate::{deliver_all, is_remote, restart, start_agents};

/// The default number of deliveries.
const DELIVERIES: usize = 1_500;

fn faults() -> Value {
    json!({ "errorRate": 0.05, "hangRate": 0.01, "doThenTimeoutRate": 0.02, "refuseRate": 0.03 })
}

/// The number of deliveries: `WAYBILL_TEST_DELIVERIES` sets it for a longer run.
fn deliveries() -> usize {
    std::env::var("WAYBILL_TEST_DELIVERIES").map_or(DELIVERIES, |count| {
        count
            .parse()
            .expect("WAYBILL_TEST_DELIVERIES is a whole number")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_and_kills_of_up_lose_and_duplicate_no_delivery() {
    let mut setup = Setting::hasty().with_faults(&faults()).setup();
    let up = setup.up();
    let setup = Arc::new(setup);
    let (up, ids) = send_while_killing(&setup, "faults-up", 0x5eed_0003, up, restart).await;
    end_in_balance(&setup, "faults-up", &ids).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_and_kills_of_agents_lose_and_duplicate_no_delivery() {
    let mut setup = Setting::hasty().setup();
    let up = setup.start(
        "up",
        &["--no-agents"],
        &["http", "admin", "broker", "services"],
    );
    for service in SERVICES {
        setup.put_faults(service, &faults()).await;
    }
    let setup = Arc::new(setup);
    let agents = start_agents(&setup);
    let (agents, ids) =
        send_while_killing(&setup, "faults-agents", 0x5eed_0004, agents, start_agents).await;
    end_in_balance(&setup, "faults-agents", &ids).await;
    assert_eq!(agents.terminate(), Some(0), "{}", setup.log_tail());
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}

/// Sends deliveries while `process` is killed at random moments and restarted. Returns the last
/// process and the operations' IDs.
async fn send_while_killing(
    setup: &Arc<Setup>,
    prefix: &'static str,
    seed: u64,
    mut process: Process,
    start: impl Fn(&Arc<Setup>) -> Process,
) -> (Process, Vec<String>) {
    let deliveries = deliveries();
    let kills = (deliveries / 250).clamp(4, 20);
    let sending = {
        let setup = setup.clone();
        tokio::spawn(async move { deliver_all(&setup, prefix, deliveries, &Arc::default()).await })
    };
    let mut dice = Dice(seed);
    for kill in 1..=kills {
        let share = deliveries * kill / (kills + 2);
        setup
            .eventually("the next share has got to the services", async || {
                have_started_or_ended(setup, prefix, share).await
            })
            .await;
        tokio::time::sleep(Duration::from_millis(dice.below(400))).await;
        process.kill();
        process = start(setup);
    }
    let ids = sending.await.expect("the clients do not fail");
    (process, ids)
}

/// Whether `share` deliveries have reached the services, by their ledger, which outlives every
/// kill, or the last of them has ended. On a slow machine many time out without any effect in the
/// ledger.
async fn have_started_or_ended(setup: &Setup, prefix: &str, share: usize) -> bool {
    if in_ledger(setup).await.is_some_and(|count| count >= share) {
        return true;
    }
    let state = setup.state(&format!("{prefix}-{}", share - 1)).await;
    state.is_some_and(|state| !["Pending", "Processing", "Compensating"].contains(&&*state))
}

/// The number of operations in the ledger; `None` while the services are unavailable.
async fn in_ledger(setup: &Setup) -> Option<usize> {
    let summary = setup.client.get(setup.url("services", "/ledger/summary"));
    let summary: Value = summary.send().await.ok()?.json().await.ok()?;
    summary["operations"].as_u64().map(|count| count as usize)
}

/// Waits until most deliveries were affected by the faults, and clears them. Then every delivery
/// ends and the ledger agrees.
async fn end_in_balance(setup: &Setup, prefix: &str, ids: &[String]) {
    setup
        .eventually("most deliveries have got to the services", async || {
            have_started_or_ended(setup, prefix, ids.len() * 4 / 5).await
        })
        .await;
    setup.clear_faults().await;
    let ends = setup.all_end_in_balance(ids, is_remote).await;
    let Ends {
        processed,
        compensated,
        cancelled,
        error,
        compensation_failed,
    } = ends;
    // Each of the five services permanently refuses 3 % of the deliveries that reach it before the
    // faults are cleared.
    let refused = ids.len() / 100..ids.len() / 4;
    assert!(refused.contains(&compensated), "{ends:?}");
    assert!(processed > ids.len() / 2, "{ends:?}");
    assert_eq!(cancelled, 0, "no operation was cancelled: {ends:?}");
    // No undo was refused, and this workflow compensates every permanent failure. Only after too
    // many failures of an undo may a delivery be parked.
    assert_eq!(error, 0, "{ends:?}");
    assert!(compensation_failed * 100 <= ids.len(), "{ends:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_the_ledger_and_the_metrics_agree_on_how_deliveries_ended() {
    const DELIVERIES: usize = 1_000;
    let mut setup = Setting::hasty().with_faults(&faults()).setup();
    let _up = setup.up();
    setup.ready().await;
    setup
        .put_faults(
            "third-party",
            &json!({ "undoRefuseRate": 0.3, "refuseRate": 0 }),
        )
        .await;
    // Remote ones, so that there are undos to refuse.
    let bodies = (0..DELIVERIES).map(|index| delivery(&format!("count-{index}"), index % 2 == 0));
    let ids = setup.deliver_each(bodies).await;
    let ends = setup.all_end_in_balance(&ids, |index| index % 2 == 0).await;
    assert!(ends.compensation_failed > 0, "{ends:?}");
    assert_eq!((ends.cancelled, ends.error), (0, 0), "{ends:?}");

    setup
        .eventually("the metrics show how all ended", async || {
            counted(&setup).await == (DELIVERIES, ends)
        })
        .await;
    let summary = setup.client.get(setup.url("services", "/ledger/summary"));
    let summary = summary.send().await.expect("the services answer");
    let summary: Value = summary.json().await.expect("a summary is JSON");
    let number = |name: &str| summary[name].as_u64().expect("a count") as usize;
    assert_eq!(number("double"), 0, "{summary}");
    assert_eq!(number("complete"), ends.processed, "{summary}");
    let in_part = number("partial") + number("halfUndone");
    assert_eq!(in_part, ends.compensation_failed, "{summary}");
    // Deliveries that were refused at their first step never had an effect.
    assert!(number("undone") <= ends.compensated, "{summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_documented_metrics_are_exported() {
    let mut setup = Setting::hasty().with_faults(&faults()).setup();
    let _up = setup.up();
    setup.ready().await;
    let bodies = (0..200).map(|index| delivery(&format!("metric-{index}"), index % 2 == 0));
    let ids = setup.deliver_each(bodies).await;
    setup.all_end_in_balance(&ids, |index| index % 2 == 0).await;

    let documented = documented();
    let shown = setup.shown_metrics().await;
    for (name, (kind, labels)) in &shown {
        let Some((known_kind, known_labels)) = documented.get(name) else {
            panic!("{name} is shown and not in docs/metrics.md");
        };
        assert_eq!((kind, labels), (known_kind, known_labels), "{name}");
    }
    // No receiver, no issuer of tokens and no agent with access tokens is configured, no data is
    // damaged, and no collector receives spans. On servers there is neither an embedded broker nor a disk to watch.
    let is_elsewhere = |name: &str| {
        let elsewhere = ["waybill_alerts_", "waybill_auth_", "waybill_owner_notices_"];
        elsewhere.iter().any(|prefix| name.starts_with(prefix))
            || name.starts_with("waybill_broker_") && setup.is_on_servers()
            || name.starts_with("waybill_disk_") && setup.is_on_servers()
            // The embedded broker has no such retention.
            || name == "waybill_scheduler_requests_retention_seconds" && !setup.is_on_servers()
            || [
                "waybill_agent_token_requests_total",
                "waybill_scheduler_leases_lost_total",
                "waybill_scheduler_messages_unsendable_total",
                "waybill_scheduler_reply_copies_dropped_total",
                "waybill_trace_spans_total",
            ]
            .contains(&name)
    };
    for name in documented.keys().filter(|name| !is_elsewhere(name)) {
        assert!(
            shown.contains_key(name),
            "{name} is documented and not shown"
        );
    }
}

/// The kinds and labels of the metrics in `docs/metrics.md`.
fn documented() -> Metrics {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("the documents are there");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `waybill_")?.split(" | ");
        let name = format!("waybill_{}", cells.next()?.trim_end_matches('`'));
        let kind = cells.next()?.to_owned();
        let labels = cells.next()?.split(", ");
        let labels = labels.map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty());
        Some((name, (kind, labels.collect())))
    });
    rows.collect()
}

/// The metrics of created operations, and of their final states.
async fn counted(setup: &Setup) -> (usize, Ends) {
    let count = async |name: &str| setup.metric(name, "").await as usize;
    let ends = Ends {
        processed: count("waybill_operations_processed_total").await,
        compensated: count("waybill_operations_undone_total").await,
        cancelled: count("waybill_requests_cancelled_total").await,
        error: count("waybill_operations_parked_total").await,
        compensation_failed: count("waybill_operations_undo_failed_total").await,
    };
    (count("waybill_operations_created_total").await, ends)
}
