//! The database is unavailable for longer than a lease and longer than clients wait.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use waybill_test_support::setup::delivery;

use crate::cluster::{Cluster, all_end_without_a_person, deliver, deliver_while, ready_after};
use crate::is_remote;
use crate::line::{Line, State};

/// The length of the outage: several leases.
const AWAY: Duration = Duration::from_secs(20);
/// The interval of deliveries in the meantime.
const EVERY: Duration = Duration::from_millis(100);
const DELIVERIES: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_outage_of_twenty_seconds_loses_no_delivery() {
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
        scheduler.setup.ready().await;
    }
    let mut ids = deliver(&ingestion, "before", DELIVERIES).await;

    line.set(State::Cut);
    let away_since = Instant::now();
    // With the caller's ID, which is looked up before the request is accepted.
    let looked_up = {
        let setup = ingestion.setup.clone();
        let body = delivery("looked-up", is_remote(DELIVERIES));
        tokio::spawn(async move { setup.deliver(&body).await })
    };
    let mut answers = BTreeMap::<u16, usize>::new();
    let mut accepted = Vec::new();
    while away_since.elapsed() < AWAY {
        // With the server's ID, which needs no look-up in the store.
        let mut body = delivery(
            &format!("during-{}", accepted.len()),
            is_remote(accepted.len()),
        );
        let fields = body.as_object_mut().expect("a delivery is an object");
        fields.remove("deliveryId");
        let url = ingestion.setup.url("http", "/api/deliveryrequests");
        let answer = ingestion.setup.client.post(url).json(&body).send().await;
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
    println!("measured: answers during the database outage: {answers:?}");
    assert!(!accepted.is_empty(), "{answers:?}");
    for scheduler in &schedulers {
        let readiness = scheduler.readiness().await.expect("it is alive");
        assert!(
            readiness.starts_with("waiting for: lease of partition"),
            "{readiness}"
        );
    }

    line.set(State::Open);
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
    ingestion.setup.all_reach(&ids, "Processed").await;
    println!(
        "measured: all done {:.1} s after the database recovered",
        back_since.elapsed().as_secs_f64()
    );
    let remote = |index: usize| match index {
        index if index < during.start => is_remote(index),
        index if index < during.end => is_remote(index - during.start),
        index => is_remote(index - during.end),
    };
    ingestion
        .setup
        .assert_one_effect_per_step(&ids, remote)
        .await;
    drop((services, ingestion, schedulers, others));
    cluster.scylla = server;
    cluster.remove().await;
}

/// Longer than the sessions of consumer groups.
const STILL: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_paused_for_longer_than_sessions_ends_no_process() {
    let Some((cluster, kafka, cassandra)) = Cluster::with_servers_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let mut members = [
        cluster.scheduler("all", ""),
        cluster.supervisor(""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
        cluster.agents(&services, ""),
    ];
    for member in &members {
        member.setup.ready().await;
    }
    let mut ids = deliver(&ingestion, "before", DELIVERIES).await;
    kafka.freeze();
    sleep(STILL);
    kafka.thaw();
    ids.extend(deliver(&ingestion, "after", DELIVERIES).await);
    all_end_without_a_person(&ingestion.setup, &ids).await;
    for member in &mut members {
        member.setup.ready().await;
        assert!(!member.has_ended(), "no process ended");
    }
    drop((services, ingestion, members, cassandra));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_that_start_before_the_database_wait_for_it() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let server = cluster.scylla.clone();
    let line = Line::to(&server).await;
    cluster.scylla = line.address.to_string();
    line.set(State::Cut);
    let services = cluster.services("");
    let mut waiting = [cluster.scheduler("all", ""), cluster.supervisor("")];
    for member in &waiting {
        member
            .setup
            .eventually("it logs what it waits for", async || {
                let log = std::fs::read_to_string(member.setup.path("log.txt")).unwrap_or_default();
                log.contains("waiting for the database") && log.contains("connecting failed")
            })
            .await;
        let readiness = member.readiness().await.expect("it is alive");
        assert!(
            readiness.starts_with("waiting for: all roles"),
            "{readiness}"
        );
    }
    // A third one is stopped while it waits.
    cluster.supervisor("").terminate();
    line.set(State::Open);
    for member in &waiting {
        member.setup.ready().await;
    }
    let agents = cluster.agents(&services, "");
    let ingestion = cluster.ingestion(&services, "");
    let ids = deliver(&ingestion, "after", 10).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    for member in &mut waiting {
        member.terminate();
    }
    drop((services, agents, ingestion, waiting));
    cluster.scylla = server;
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_writes_are_applied_once() {
    const TIMES: usize = 6;
    const ROUND: usize = 50;
    // Longer than a request may take, and shorter than a lease.
    const DEAF: Duration = Duration::from_millis(2_500);
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let server = cluster.scylla.clone();
    let line = Line::to(&server).await;
    cluster.scylla = line.address.to_string();
    cluster.uses_long_leases();
    let services = cluster.services("");
    let ingestion = cluster.ingestion(&services, "");
    let schedulers = [cluster.scheduler("0-1", ""), cluster.scheduler("2-3", "")];
    let others = [cluster.supervisor(""), cluster.agents(&services, "")];
    for scheduler in &schedulers {
        scheduler.setup.ready().await;
    }
    let epochs = async || [schedulers[0].epochs().await, schedulers[1].epochs().await];
    let leases = epochs().await;
    let setups = [ingestion.setup.clone()];
    let mut ids = Vec::new();
    for round in 0..TIMES {
        let lose = || {
            line.set(State::Deaf);
            std::thread::sleep(DEAF);
            line.set(State::Open);
        };
        ids.extend(deliver_while(&setups, &format!("deaf-{round}"), ROUND, lose).await);
    }
    setups[0].all_reach(&ids, "Processed").await;
    setups[0].assert_one_effect_per_step(&ids, is_remote).await;
    for scheduler in &schedulers {
        scheduler.setup.ready().await;
    }
    assert_eq!(
        epochs().await,
        leases,
        "a write without an answer costs no lease"
    );
    drop((services, ingestion, schedulers, others));
    cluster.scylla = server;
    cluster.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_outage_longer_than_commit_retries_ends_no_process() {
    let Some(mut cluster) = Cluster::migrated_or_skip().await else {
        return;
    };
    let server = cluster.scylla.clone();
    let line = Line::to(&server).await;
    cluster.scylla = line.address.to_string();
    let services = cluster.services("");
    // Clients are answered long before the store's retries end.
    cluster.patience = "1h";
    let ingestion = cluster.ingestion(&services, "http: { acceptTimeout: 2s }");
    cluster.patience = "3s";
    let mut patient = vec![
        cluster.scheduler("0-1", ""),
        cluster.scheduler("2-3", ""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
    ];
    for scheduler in &patient[..2] {
        scheduler.setup.ready().await;
    }
    let mut ids = deliver(&ingestion, "before", DELIVERIES).await;
    ingestion.setup.all_reach(&ids, "Processed").await;

    line.set(State::Cut);
    let mut accepted = 0;
    for scheduler in &patient[..2] {
        let what = "a commit was given up";
        let failed = async || {
            // Each needs writes, in any of its partitions.
            let url = ingestion.setup.url("http", "/api/deliveryrequests");
            let mut body = delivery(&format!("during-{accepted}"), is_remote(accepted));
            let fields = body.as_object_mut().expect("a delivery is an object");
            fields.remove("deliveryId");
            let answer = ingestion.setup.client.post(url).json(&body).send().await;
            let answer = answer.expect("ingestion answers");
            if answer.status() == 202 {
                let body: Value = answer.json().await.expect("an answer is JSON");
                ids.push(body["id"].as_str().expect("an answer has an id").to_owned());
                accepted += 1;
            }
            let failed = "waybill_scheduler_commits_failed_total";
            scheduler.setup.metric(failed, "").await >= 1.0
        };
        scheduler.setup.eventually(what, failed).await;
    }
    // The caller's ID must be looked up.
    let url = ingestion.setup.url("http", "/api/deliveryrequests");
    let body = delivery("looked-up", false);
    let answer = ingestion.setup.client.post(url).json(&body).send().await;
    let answer = answer.expect("ingestion answers");
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"), "{answer:?}");
    for scheduler in &patient[..2] {
        let what = "the partitions are given up";
        let given_up = async || {
            let readiness = scheduler.readiness().await;
            readiness.is_some_and(|message| message.starts_with("waiting for: lease of partition"))
        };
        scheduler.setup.eventually(what, given_up).await;
    }

    let supervisor = &patient[2];
    let is_told = async || {
        let readiness = supervisor.readiness().await;
        readiness.is_some_and(|message| message.starts_with("waiting for: the state store"))
    };
    let what = "the supervisor logs what it cannot reach";
    supervisor.setup.eventually(what, is_told).await;

    line.set(State::Open);
    for member in &mut patient {
        member.setup.ready().await;
        assert!(!member.has_ended(), "it stayed where it was");
    }
    let during = DELIVERIES..ids.len();
    ids.extend(deliver(&ingestion, "after", DELIVERIES).await);
    ingestion.setup.all_reach(&ids, "Processed").await;
    let remote = |index: usize| match index {
        index if index < during.start => is_remote(index),
        index if index < during.end => is_remote(index - during.start),
        index => is_remote(index - during.end),
    };
    ingestion
        .setup
        .assert_one_effect_per_step(&ids, remote)
        .await;
    drop((services, ingestion, patient));
    cluster.scylla = server;
    cluster.remove().await;
}
