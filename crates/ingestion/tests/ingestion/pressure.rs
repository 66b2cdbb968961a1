//! The broker, the disk, memory or time is exhausted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use reqwest::header::RETRY_AFTER;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use waybill_kafka::Admin;

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_outage_is_answered_503_and_the_recovery_202() {
    let setup = Setup::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    setup.cluster.broker_down(1).unwrap();
    let response = setup.post(DELIVERIES, delivery()).send().await.unwrap();
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    let (status, kind, _) = problem(response).await;
    assert_eq!((status, kind.as_str()), (503, "broker-unavailable"));

    setup.cluster.broker_up(1).unwrap();
    let began = Instant::now();
    loop {
        let response = setup.post(DELIVERIES, delivery()).send().await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break;
        }
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(began.elapsed() < PATIENCE);
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_concurrent_caller_is_refused() {
    let setup = Setup::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    setup.cluster.broker_down(1).unwrap();
    // More requests than partitions: those of one partition wait for each other.
    let requests = (0..24).map(async |number| {
        tokio::time::sleep(Duration::from_millis(30) * number).await;
        let response = setup.post(DELIVERIES, delivery()).send().await.unwrap();
        problem(response).await.0
    });
    let statuses = futures_util::future::join_all(requests).await;
    assert_eq!(statuses, [503; 24]);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_a_504_with_the_id_to_repeat() {
    let setup = Setup::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    let warm = setup.request(order("warm", 1)).await;
    assert_eq!(warm.status(), StatusCode::ACCEPTED);
    setup
        .cluster
        .broker_round_trip_time(1, Duration::from_secs(4))
        .unwrap();
    let response = setup.post(DELIVERIES, delivery()).send().await.unwrap();
    let (status, kind, unknown) = problem(response).await;
    assert_eq!((status, kind.as_str()), (504, "outcome-unknown"));
    let id = unknown["id"].as_str().unwrap().to_owned();

    setup
        .cluster
        .broker_round_trip_time(1, Duration::ZERO)
        .unwrap();
    let began = Instant::now();
    let accepted = loop {
        let repeat = setup
            .post(DELIVERIES, delivery())
            .header("idempotency-key", &id);
        let response = repeat.send().await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break answer(response).await.1;
        }
        assert!(response.status().is_server_error());
        assert!(began.elapsed() < PATIENCE);
    };
    assert_eq!(accepted["id"], id);
    let records = setup.records();
    let deliveries: Vec<_> = records
        .iter()
        .filter(|record| record.request.workflow == "drone-delivery")
        .collect();
    assert!(!deliveries.is_empty());
    for record in &deliveries {
        assert_eq!(record.request.operation.to_string(), id);
        assert_eq!(
            record.request.request_hash,
            deliveries[0].request.request_hash
        );
    }
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_the_memory_bound_are_refused() {
    let setup = Setup::with(|config| config.body_bytes_max = 1_000).await;
    for (path, body) in [(DELIVERIES, delivery()), (BATCH, order("o", 1))] {
        let response = setup.post(path, body).send().await.unwrap();
        assert!(response.headers().contains_key(RETRY_AFTER));
        let (status, kind, _) = problem(response).await;
        assert_eq!((status, kind.as_str()), (503, "overloaded"), "{path}");
    }
    assert_eq!(setup.records().len(), 0);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_running_requests_and_refuses_new_ones() {
    let setup = Setup::start().await;
    let body = order("late", 1).to_string();
    let head = format!(
        "POST {OPERATIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let address = setup.ingestion.address();
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    within(socket.read_exact(&mut go_on)).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    let shutdown = tokio::spawn(setup.ingestion.shutdown());
    let refuses = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within(refuses).await;
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    within(shutdown).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_refused_request_can_be_used_again() {
    let setup = Setup::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    setup.cluster.broker_down(1).unwrap();
    let refused = setup.post(OPERATIONS, order("o-1", 1)).send().await;
    assert_eq!(problem(refused.unwrap()).await.1, "broker-unavailable");
    setup.cluster.broker_up(1).unwrap();
    let began = Instant::now();
    loop {
        let other = setup.post(OPERATIONS, order("o-1", 2)).send().await;
        let other = other.unwrap();
        if other.status() == StatusCode::ACCEPTED {
            break;
        }
        assert_eq!(other.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(began.elapsed() < PATIENCE);
    }
    assert_eq!(setup.records().len(), 1);
    setup.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_has_reached_its_bound_on_disk_is_a_503_until_it_has_space_again() {
    let setup = Setup::on_embedded_broker(&[
        ("waybill.disk.bytes.max", "200000"),
        ("segment.bytes", "10000"),
        ("flush.messages", "1"),
    ])
    .await;
    let big = |number: usize| {
        let mut body = order(&format!("big-{number}"), 1);
        body["input"]["text"] = "x".repeat(20_000).into();
        setup.post(OPERATIONS, body).send()
    };
    let mut accepted = 0;
    let refused = loop {
        let response = big(accepted).await.unwrap();
        if response.status() != StatusCode::ACCEPTED {
            break response;
        }
        accepted += 1;
        assert!(accepted < 10, "more than the bound was taken");
    };
    assert!(accepted > 5, "only {accepted} were taken");
    assert_eq!(refused.headers()[RETRY_AFTER], "10");
    let (status, kind, refused) = problem(refused).await;
    assert_eq!((status, kind.as_str()), (503, "insufficient-storage"));
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("broker.requestsDiskBytesMax"), "{detail}");
    assert_eq!(setup.records().len(), accepted);

    // Deletes finished requests as the pipeline does: all but the last of each partition.
    let mut done = BTreeMap::new();
    for record in setup.records() {
        let last = done.entry(record.partition).or_insert(record.offset);
        *last = record.offset.max(*last);
    }
    let done: Vec<_> = done.into_iter().collect();
    Admin::new(&setup.kafka, "test")
        .unwrap()
        .delete_records(setup.topics.requests(), &done)
        .await
        .unwrap();
    let began = Instant::now();
    loop {
        let response = big(accepted).await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break;
        }
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(began.elapsed() < PATIENCE, "it stays full");
    }
    assert_eq!(setup.records().len(), done.len() + 1);
    setup.ingestion.shutdown().await;
    setup.cluster.shutdown().await;
}
