//! Alerts with real receivers: servers on the loopback interface.

mod follow;
mod mail;
mod owners;
mod running;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use metrics_exporter_prometheus::PrometheusBuilder;
use openssl::ssl::SslAcceptor;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;
use waybill_alerts::{AlertError, AlertsConfig, ReceiverConfig, Undeliverable};
use waybill_config::{SecretFiles, read_document};
use waybill_test_support::certificate::{Certificate, accept};
use waybill_test_support::smtp_server::SmtpServer;
use waybill_test_support::webhook_receiver::{Answer, KEY, Receiver};

use running::{PATIENCE, Running, alert, email, quick, repeats, webhook, webhook_to};

#[tokio::test]
async fn a_webhook_is_signed_and_retried_with_the_same_body() {
    let receiver = Receiver::start([Answer::Status(500), Answer::Status(302)]).await;
    let running = Running::start([("pager", webhook(&receiver))], quick());
    let alert = alert("drone");
    assert_eq!(running.deliver("pager", &alert).await, Ok(()));

    let requests = receiver.received(3).await;
    assert_eq!(requests.len(), 3);
    let now = jiff::Timestamp::now().as_second();
    for request in &requests {
        assert!(request.is_signed_with(KEY), "{request:?}");
        assert!(!request.is_signed_with(b"another key"), "{request:?}");
        assert_eq!(request.header("webhook-id"), alert.event_id.to_string());
        assert_eq!(request.header("content-type"), "application/json");
        let sent: i64 = request.header("webhook-timestamp").parse().unwrap();
        assert!((now - PATIENCE.as_secs() as i64..=now).contains(&sent));
        assert_eq!(request.body, requests[0].body);
    }
    let body = requests[0].json();
    assert_eq!(body["data"]["operation"], alert.operation);
    assert_eq!(body["data"]["repeats"], 0);
}

#[tokio::test]
async fn a_hanging_receiver_is_retried_after_the_timeout() {
    let receiver = Receiver::start([Answer::Hang, Answer::Hang]).await;
    let config = AlertsConfig {
        timeout: Duration::from_millis(50),
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    assert_eq!(running.deliver("pager", &alert("drone")).await, Ok(()));
    assert!(receiver.count() >= 3, "{}", receiver.count());
}

#[tokio::test]
async fn a_receiver_gets_its_alert_after_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = AlertsConfig {
        attempts_max: 1_000,
        ..quick()
    };
    let url = format!("http://{address}/");
    let running = Running::start([("pager", webhook_to(&url))], config);
    let receipt = running.notifier("pager").submit(alert("drone")).await;

    // It closes two connections without an answer, is unreachable for a moment, and comes back.
    for _ in 0..2 {
        drop(timeout(PATIENCE, listener.accept()).await.unwrap());
    }
    drop(listener);
    let listener = TcpListener::bind(address).await.unwrap();
    let receiver = Receiver::start_on(listener, []);
    assert_eq!(timeout(PATIENCE, receipt).await.unwrap(), Ok(()));
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_receiver_that_is_down_delays_no_other() {
    // It accepts connections into its backlog and never answers.
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", dead.local_addr().unwrap());
    let (live, mail) = (Receiver::start([]).await, SmtpServer::start().await);
    let config = AlertsConfig {
        timeout: 2 * PATIENCE,
        ..quick()
    };
    let all = [
        ("dead", webhook_to(&url)),
        ("live", webhook(&live)),
        ("mail", email(&mail, &["ops@example.com"])),
    ];
    let running = Running::start(all, config);

    let mut waiting = Vec::new();
    for step in ["account", "package", "drone"] {
        let alert = alert(step);
        waiting.push(running.notifier("dead").submit(alert.clone()).await);
        assert_eq!(running.deliver("live", &alert).await, Ok(()));
        assert_eq!(running.deliver("mail", &alert).await, Ok(()));
    }
    assert_eq!((live.count(), mail.seen().mails.len()), (3, 3));
    for receipt in waiting {
        assert_eq!(receipt.now_or_never(), None);
    }
}

#[tokio::test]
async fn an_undeliverable_message_is_given_up_and_the_next_one_is_sent() {
    let receiver = Receiver::start([Answer::Status(500), Answer::Status(404)]).await;
    let config = AlertsConfig {
        attempts_max: 2,
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    assert_eq!(
        running.deliver("pager", &alert("drone")).await,
        Err(Undeliverable::GivenUp {
            attempts: 2,
            cause: "status 404 Not Found".to_owned()
        })
    );
    assert_eq!(running.deliver("pager", &alert("package")).await, Ok(()));
}

#[tokio::test]
async fn no_cause_repeats_a_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/?key=hunter2", listener.local_addr().unwrap());
    drop(listener);
    let config = AlertsConfig {
        attempts_max: 1,
        ..quick()
    };
    let running = Running::start([("pager", webhook_to(&url))], config);
    let error = running.deliver("pager", &alert("drone")).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("refused"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_receiver_that_answers_gone_is_not_called_again() {
    let receiver = Receiver::start([Answer::Status(410)]).await;
    let running = Running::start([("pager", webhook(&receiver))], quick());
    for step in ["drone", "package"] {
        let result = running.deliver("pager", &alert(step)).await;
        assert_eq!(result, Err(Undeliverable::Gone));
    }
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn retry_after_is_honoured_within_its_limit() {
    let answers = [
        Answer::RetryAfter(503, "1"),
        Answer::RetryAfter(429, "86400"),
    ];
    let receiver = Receiver::start(answers).await;
    let config = AlertsConfig {
        retry_after_max: Duration::from_millis(1_200),
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    assert_eq!(running.deliver("pager", &alert("drone")).await, Ok(()));
    let requests = receiver.received(3).await;
    for (pair, least_ms) in requests.windows(2).zip([1_000, 1_200]) {
        let waited = pair[1].at - pair[0].at;
        assert!(waited >= Duration::from_millis(least_ms), "{waited:?}");
    }
}

#[tokio::test]
async fn a_thousand_parks_are_two_messages_and_every_one_is_counted() {
    let (receiver, mail) = (Receiver::start([]).await, SmtpServer::start().await);
    let all = [
        ("pager", webhook(&receiver)),
        ("mail", email(&mail, &["ops@example.com"])),
    ];
    let config = AlertsConfig {
        dedup_window: Duration::from_secs(3_600),
        ..quick()
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let running = ::metrics::with_local_recorder(&recorder, || Running::start(all, config));

    let mut receipts = Vec::new();
    let mut last = String::new();
    for _ in 0..1_000 {
        let alert = alert("drone");
        last.clone_from(&alert.operation);
        for name in ["pager", "mail"] {
            receipts.push(running.notifier(name).submit(alert.clone()).await);
        }
    }
    // No more alerts follow, so the windows may end.
    running.finish().await;
    assert!(join_all(receipts).await.iter().all(Result::is_ok));

    let requests = receiver.received(2).await;
    assert_eq!(repeats(&requests), [0, 999]);
    let summary = requests[1].json()["data"]["summary"].clone();
    let summary = summary.as_str().unwrap();
    assert!(
        summary.starts_with("999 more like this, last: "),
        "{summary}"
    );
    assert!(summary.contains(&last), "{summary}");

    let mails = mail.mails(2).await;
    assert_eq!(mails.len(), 2);
    assert!(mails[1].text.contains("999 more like this, last: "));

    let shown = metrics.render();
    for line in [
        "waybill_alerts_delivered_total{receiver=\"pager\"} 1000",
        "waybill_alerts_delivered_total{receiver=\"mail\"} 1000",
        "waybill_alerts_folded_total 1998",
        "waybill_alerts_failed_total{receiver=\"mail\"} 0",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
}

#[tokio::test]
async fn repeats_are_reported_when_their_window_ends() {
    let receiver = Receiver::start([]).await;
    let config = AlertsConfig {
        dedup_window: Duration::from_millis(100),
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    let mut receipts = Vec::new();
    for _ in 0..50 {
        receipts.push(running.notifier("pager").submit(alert("drone")).await);
    }
    let results = timeout(PATIENCE, join_all(receipts)).await.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let repeat_counts = repeats(&receiver.received(2).await);
    // One alone, and then at most one message per window. On a slow machine, a window may end
    // without repeats, and another one alone follows.
    let alone = repeat_counts
        .iter()
        .filter(|repeats| **repeats == 0)
        .count() as u64;
    assert_eq!(
        alone + repeat_counts.iter().sum::<u64>(),
        50,
        "{repeat_counts:?}"
    );
    assert!(repeat_counts.len() < 50, "{repeat_counts:?}");
}

#[tokio::test]
async fn every_alert_is_delivered_with_minimal_bounds() {
    let receiver = Receiver::start([]).await;
    let config = AlertsConfig {
        dedup_window: Duration::from_secs(3_600),
        queue_max: 1,
        folded_max: 1,
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    let mut receipts = Vec::new();
    for turn in 0..60 {
        let step = ["account", "drone", "drone"][turn % 3];
        receipts.push(running.notifier("pager").submit(alert(step)).await);
    }
    let results = timeout(PATIENCE, running.finish_with(receipts)).await;
    assert!(results.unwrap().iter().all(Result::is_ok));
    let repeat_counts = repeats(&receiver.received(1).await);
    let alone = repeat_counts
        .iter()
        .filter(|repeats| **repeats == 0)
        .count() as u64;
    assert_eq!(
        alone + repeat_counts.iter().sum::<u64>(),
        60,
        "{repeat_counts:?}"
    );
}

#[tokio::test]
async fn the_queue_of_a_hanging_receiver_is_bounded() {
    let receiver = Receiver::start([Answer::Hang]).await;
    let config = AlertsConfig {
        queue_max: 2,
        timeout: 2 * PATIENCE,
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    let pager = running.notifier("pager");
    let mut receipts = vec![pager.submit(alert("0")).await];
    timeout(PATIENCE, receiver.received(1)).await.unwrap();
    // Two in the queue, and one between notifier and worker.
    for step in ["1", "2", "3"] {
        receipts.push(timeout(PATIENCE, pager.submit(alert(step))).await.unwrap());
    }
    let mut one_too_many = Box::pin(pager.submit(alert("4")));
    for _ in 0..1_000 {
        assert!(one_too_many.as_mut().now_or_never().is_none());
        // All tasks run on this thread: the worker takes as many as it can.
        yield_now().await;
    }
    assert_eq!(receiver.count(), 1);
    assert_eq!(receipts.len(), 4);
}

#[tokio::test]
async fn alerts_undelivered_at_a_stop_are_reported_and_not_retried() {
    let receiver = Receiver::start(vec![Answer::Status(500); 1_000]).await;
    let config = AlertsConfig {
        backoff: PATIENCE,
        backoff_max: PATIENCE,
        ..quick()
    };
    let running = Running::start([("pager", webhook(&receiver))], config);
    let pager = running.notifier("pager").clone();
    let mut receipts = Vec::new();
    for step in ["drone", "package", "package"] {
        receipts.push(pager.submit(alert(step)).await);
    }
    receiver.received(1).await;
    running.stop().await;
    receipts.push(pager.submit(alert("late")).await);
    for receipt in receipts {
        assert_eq!(receipt.await, Err(Undeliverable::Stopped));
    }
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_running_attempt_may_succeed_during_a_stop() {
    let go = Arc::new(Notify::new());
    let receiver = Receiver::start([Answer::When(go.clone())]).await;
    let running = Running::start([("pager", webhook(&receiver))], quick());
    let pager = running.notifier("pager").clone();
    let under_way = pager.submit(alert("drone")).await;
    let waiting = pager.submit(alert("package")).await;
    receiver.received(1).await;
    running.stop.cancel();
    go.notify_one();
    running.stop().await;
    assert_eq!(under_way.await, Ok(()));
    assert_eq!(waiting.await, Err(Undeliverable::Stopped));
    assert_eq!(receiver.count(), 1);
}

/// A configuration file that has this section alone.
#[derive(Deserialize)]
struct Example {
    alerts: AlertsConfig,
}

#[tokio::test]
async fn the_sms_gateway_of_the_example_gets_its_json() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/alerts");
    let example = example.join("sms-gateway.yaml");
    let mut alerts = read_document::<Example>(&example).unwrap().alerts;
    let receiver = Receiver::start([]).await;
    let authorization = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(authorization.path(), "Bearer hunter2\n").unwrap();
    for target in alerts.receivers.values_mut() {
        let ReceiverConfig::Webhook(sms) = target else {
            panic!("{target:?}");
        };
        sms.url = Some(receiver.url().into());
        for path in sms.header_files.values_mut() {
            *path = authorization.path().to_owned();
        }
    }
    alerts.read_files(&mut SecretFiles::default()).unwrap();
    alerts.validate().unwrap();
    let running = Running::from(alerts);

    let mut alert = alert("drone");
    alert.error = Some(AlertError {
        code: "no-drone".to_owned(),
        message: "\"quoted\", \\ and\na second line".to_owned(),
    });
    assert_eq!(running.deliver("sms", &alert).await, Ok(()));
    let request = &receiver.received(1).await[0];
    assert_eq!(request.header("authorization"), "Bearer hunter2");
    let body: Value = request.json();
    assert_eq!(body["to"], serde_json::json!(["+15550100"]));
    assert_eq!(body["reference"], alert.event_id.to_string());
    let text = body["text"].as_str().unwrap();
    assert!(
        text.ends_with("no-drone: \"quoted\", \\ and a second line"),
        "{text}"
    );
}

/// Answers one request over HTTPS with 200, and returns its head; `None` if the client disconnects
/// without a request.
async fn serve_https_once(listener: TcpListener, acceptor: SslAcceptor) -> Option<String> {
    let (stream, _) = listener.accept().await.ok()?;
    let mut stream = accept(&acceptor, stream).await.ok()?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(answer).await.ok()?;
    // A close with unread bytes would reset the connection, and the answer might be lost.
    let _ = stream.read_to_end(&mut request).await;
    String::from_utf8(request).ok()
}

#[tokio::test]
async fn an_https_webhook_trusts_only_the_configured_certificates() {
    let certificate = Certificate::new();
    let trusted = certificate.file();
    let other = Certificate::new().file();
    for (ca_file, is_trusted) in [(trusted.path(), true), (other.path(), false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}/",
            listener.local_addr().unwrap().port()
        );
        let ReceiverConfig::Webhook(mut config) = webhook_to(&url) else {
            unreachable!();
        };
        config.ca_file = Some(ca_file.to_owned());
        let server = tokio::spawn(serve_https_once(listener, certificate.acceptor()));
        let bounded = AlertsConfig {
            attempts_max: 1,
            ..quick()
        };
        let running = Running::start([("pager", ReceiverConfig::Webhook(config))], bounded);
        let result = running.deliver("pager", &alert("drone")).await;
        assert_eq!(result.is_ok(), is_trusted, "{result:?}");
        let request = timeout(PATIENCE, server).await.unwrap().unwrap();
        let is_told = request.is_some_and(|head| head.contains("webhook-signature"));
        assert_eq!(is_told, is_trusted);
    }
}
