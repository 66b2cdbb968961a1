//! The database is away for longer than a lease.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, deliver, ready_after};
use crate::is_remote;
use crate::line::Line;
use crate::world::delivery;

/// How long it is away: several leases.
const AWAY: Duration = Duration::from_secs(20);
/// How often somebody wants a delivery meanwhile.
const EVERY: Duration = Duration::from_millis(100);
const DELIVERIES: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_for_twenty_seconds_costs_no_delivery() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let server = cluster.scylla.clone();
    let line = Line::to(&server).await;
    cluster.scylla = line.address.to_string();
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let schedulers = [cluster.scheduler("0-1", ""), cluster.scheduler("2-3", "")];
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    for scheduler in &schedulers {
        scheduler.world.ready().await;
    }
    let mut ids = deliver(&ingestion, "before", DELIVERIES).await;

    line.set_open(false);
    let away_since = Instant::now();
    // An id of the caller's: it is looked up before anything is accepted.
    let looked_up = {
        let world = ingestion.world.clone();
        let body = delivery("looked-up", is_remote(DELIVERIES));
        tokio::spawn(async move { world.deliver(&body).await })
    };
    let mut answers = BTreeMap::<u16, usize>::new();
    let mut accepted = Vec::new();
    while away_since.elapsed() < AWAY {
        // An id of the server's: such a request needs no look into the store.
        let mut body = delivery(
            &format!("during-{}", accepted.len()),
            is_remote(accepted.len()),
        );
        let fields = body.as_object_mut().expect("a delivery is an object");
        fields.remove("deliveryId");
        let url = ingestion.world.url("http", "/api/deliveryrequests");
        let answer = ingestion.world.client.post(url).json(&body).send().await;
        let answer = answer.expect("ingestion answers");
        let status = answer.status().as_u16();
        *answers.entry(status).or_default() += 1;
        assert!(matches!(status, 202 | 503), "{status}");
        if status == 202 {
            let body: Value = answer.json().await.expect("an answer is JSON");
            accepted.push(body["id"].as_str().expect("an answer has an id").to_owned());
        }
        tokio::time::sleep(EVERY).await;
    }
    println!("measured: answers while the database was away: {answers:?}");
    assert!(!accepted.is_empty(), "{answers:?}");
    for scheduler in &schedulers {
        let readiness = scheduler.readiness().await.expect("it is alive");
        assert!(
            readiness.starts_with("waiting for: lease of partition"),
            "{readiness}"
        );
    }

    line.set_open(true);
    let back_since = Instant::now();
    for scheduler in &schedulers {
        ready_after(
            scheduler,
            "the database is back; a scheduler is ready",
            back_since,
        )
        .await;
    }
    let during = DELIVERIES..DELIVERIES + accepted.len();
    ids.extend(accepted);
    ids.extend(deliver(&ingestion, "after", DELIVERIES).await);
    ids.push(looked_up.await.expect("it is accepted in the end"));
    ingestion.world.all_reach(&ids, "Processed").await;
    println!(
        "measured: all is done {:.1} s after the database came back",
        back_since.elapsed().as_secs_f64()
    );
    let remote = |index: usize| match index {
        index if index < during.start => is_remote(index),
        index if index < during.end => is_remote(index - during.start),
        index => is_remote(index - during.end),
    };
    ingestion
        .world
        .assert_one_effect_per_step(&ids, remote)
        .await;
    drop((services, ingestion, schedulers, others));
    cluster.scylla = server;
    cluster.remove().await;
}
