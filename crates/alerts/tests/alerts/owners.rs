//! Notices to owners, on the test's own broker, with real servers.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_alerts::{
    AlertsConfig, OwnerEmailConfig, OwnersConfig, WebhookConfig, owners_followers,
};
use waybill_engine::{Contact, OperationId, OwnerNotice, ProcessState, partition_for};
use waybill_messages::Record as _;
use waybill_test_support::log::Lines;
use waybill_test_support::smtp_server::{Mail, SmtpServer};
use waybill_test_support::webhook_receiver::{Answer, Receiver};

use crate::follow::{Following, Log, PARTITIONS, eventually, now, received};
use crate::running::{PATIENCE, quick, smtp};

const ANNA: &str = "mailto:anna@example.org";
const BEN: &str = "mailto:ben@example.net";
const NUMBER: &str = "tel:+491701234567";

#[tokio::test]
async fn an_owner_is_notified_by_email_and_sms_each_in_its_format() {
    let log = Log::start().await;
    let (mail, gateway) = (SmtpServer::start().await, Receiver::start([]).await);
    let config = OwnersConfig {
        email: Some(email(&mail)),
        sms: Some(sms(&gateway)),
        ..OwnersConfig::default()
    };
    let following = follow(&log, &alerts(config));
    let compensated = notice(ProcessState::Compensated, &[ANNA, NUMBER]);
    send(&log, &compensated).await;

    let mails = mails(&mail, 1).await;
    assert_eq!(mails[0].to, ["anna@example.org"]);
    assert_eq!(mails[0].from, "waybill@example.com");
    let text = mails[0].text.replace("\n ", " ");
    let sentence = "Your drone-delivery d-17 could not be completed, and was undone.";
    for line in [
        &format!("Subject: {sentence}"),
        "To: anna@example.org",
        sentence,
        &format!("Operation: {}", compensated.operation),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains("49170"), "{text}");

    let request = &received(&gateway, 1).await[0];
    let body = request.json();
    assert_eq!(body["to"], "+491701234567");
    assert_eq!(body["text"], sentence);
    assert_eq!(request.header("authorization"), "Bearer hunter2");
    assert!(!message_id(&mails[0]).contains(request.header("webhook-id")));
    following.stop().await;
    assert_eq!((mail.seen().mails.len(), gateway.count()), (1, 1));
}

#[tokio::test]
async fn a_contact_gets_no_more_messages_than_its_limit_and_others_still_get_theirs() {
    let (metrics, _guard) = measured();
    let log = Log::start().await;
    let mail = SmtpServer::start().await;
    let config = OwnersConfig {
        messages_per_hour_max: 2,
        email: Some(email(&mail)),
        ..OwnersConfig::default()
    };
    let following = follow(&log, &alerts(config));
    for _ in 0..5 {
        send(&log, &notice(ProcessState::Processed, &[ANNA])).await;
    }
    send(&log, &notice(ProcessState::Processed, &[BEN])).await;
    eventually("all records are done", || {
        metric(&metrics, "delivered_total") == 3.0 && metric(&metrics, "limited_total") == 3.0
    })
    .await;
    following.stop().await;
    let mut to: Vec<_> = mail.seen().mails.into_iter().flat_map(|m| m.to).collect();
    to.sort();
    assert_eq!(
        to,
        ["anna@example.org", "anna@example.org", "ben@example.net"]
    );
}

#[tokio::test]
async fn an_unreachable_contact_delays_no_other() {
    let log = Log::start().await;
    let busy = vec!["451 later"; 10_000];
    let mail = SmtpServer::that_answers([("anna@example.org", busy)]).await;
    let gateway = Receiver::start([Answer::Hang]).await;
    let config = AlertsConfig {
        attempts_max: u32::MAX,
        timeout: 2 * PATIENCE,
        ..alerts(OwnersConfig {
            email: Some(email(&mail)),
            sms: Some(sms(&gateway)),
            ..OwnersConfig::default()
        })
    };
    let following = follow(&log, &config);
    send(&log, &notice(ProcessState::Processed, &[ANNA, NUMBER])).await;
    received(&gateway, 1).await;
    // The other owners get theirs during the retries for her and while the gateway hangs.
    for count in 1..=5 {
        send(&log, &notice(ProcessState::Processed, &[BEN])).await;
        assert_eq!(mails(&mail, count).await[count - 1].to, ["ben@example.net"]);
    }
    send(&log, &notice(ProcessState::Processed, &["tel:+15550100"])).await;
    let requests = received(&gateway, 2).await;
    assert_eq!(requests[1].json()["to"], "+15550100");
    following.stop().await;
}

#[tokio::test]
async fn abandoned_notices_are_counted_and_logged_without_the_contact() {
    const CLARA: &str = "mailto:clara@example.org";
    const DORA: &str = "mailto:dora@example.net";
    let (metrics, _guard) = measured();
    let lines = Lines::default();
    // For the whole process: a subscriber of one thread would miss lines that another test's thread
    // logs first. Only this test notifies these two.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(lines.clone())
        .init();
    let log = Log::start().await;
    let mail = SmtpServer::that_answers([
        ("clara@example.org", vec!["550 <clara@example.org> is gone"]),
        ("dora@example.net", vec!["451 dora@example.net is busy"; 2]),
    ])
    .await;
    let config = AlertsConfig {
        attempts_max: 2,
        ..alerts(OwnersConfig {
            messages_per_hour_max: 1,
            email: Some(OwnerEmailConfig {
                domains: vec!["example.org".to_owned(), "example.net".to_owned()],
                ..email(&mail)
            }),
            ..OwnersConfig::default()
        })
    };
    let following = follow(&log, &config);
    // The last one is above the limit, and two must not be notified at all: their requests did not
    // go through ingestion.
    let all = [
        CLARA,
        DORA,
        CLARA,
        "mailto:clara@elsewhere.org",
        "mailto:clara",
    ];
    for contact in all {
        send(&log, &notice(ProcessState::Error, &[contact])).await;
    }
    eventually("everything is counted", || {
        metric(&metrics, "failed_total") == 2.0
            && metric(&metrics, "limited_total") == 1.0
            && metric(&metrics, "refused_total") == 2.0
    })
    .await;
    following.stop().await;
    assert!(mail.seen().mails.is_empty());

    let text = lines.text();
    for part in [
        "could not deliver a message; retrying",
        "refused: the server answered 550",
        "given up after 2 attempts: the server answered 451",
        "rejected an owner's contact",
        "an hourly limit of alerts.owners is reached",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    for secret in ["clara", "dora@", "dora%40"] {
        assert!(!text.to_lowercase().contains(secret), "{secret}\n{text}");
    }
}

#[tokio::test]
async fn messages_unsent_at_a_stop_are_sent_after_the_next_start_with_the_same_id() {
    let log = Log::start().await;
    let busy = Receiver::start(vec![Answer::Status(500); 1_000]).await;
    let patient = AlertsConfig {
        backoff: PATIENCE,
        backoff_max: PATIENCE,
        ..quick()
    };
    let with = |gateway: &Receiver| AlertsConfig {
        owners: OwnersConfig {
            sms: Some(sms(gateway)),
            ..OwnersConfig::default()
        },
        ..patient.clone()
    };
    let following = follow(&log, &with(&busy));
    send(&log, &notice(ProcessState::Processed, &[NUMBER])).await;
    let tried = received(&busy, 1).await;
    following.stop().await;

    let back = Receiver::start([]).await;
    let following = follow(&log, &with(&back));
    let repeated = received(&back, 1).await;
    following.stop().await;
    assert_eq!(
        repeated[0].header("webhook-id"),
        tried[0].header("webhook-id")
    );
    assert_eq!(repeated[0].body, tried[0].body);

    // Owners who were notified get no second notice.
    let following = follow(&log, &with(&back));
    send(&log, &notice(ProcessState::Cancelled, &[NUMBER])).await;
    let repeated = received(&back, 2).await;
    following.stop().await;
    assert!(
        repeated[1].json()["text"]
            .as_str()
            .unwrap()
            .contains("cancelled")
    );
    assert_eq!(back.count(), 2);
}

#[tokio::test]
async fn a_returning_follower_replaces_its_predecessor_in_the_owners_group() {
    let log = Log::start().await;
    let mail = SmtpServer::start().await;
    let config = alerts(OwnersConfig {
        email: Some(email(&mail)),
        ..OwnersConfig::default()
    });
    let start = || {
        let stop = CancellationToken::new();
        let source = log.source(Some("the-only-one"));
        let follower = owners_followers(&config, &source).unwrap().remove(0);
        (tokio::spawn(follower.run(stop.clone())), stop)
    };
    let (first, _stop) = start();
    send(&log, &notice(ProcessState::Processed, &[ANNA])).await;
    mails(&mail, 1).await;
    let (second, stop) = start();
    let fenced = timeout(PATIENCE, first).await.unwrap().unwrap();
    assert!(fenced.is_err(), "its place is another's now");
    send(&log, &notice(ProcessState::Processed, &[ANNA])).await;
    mails(&mail, 2).await;
    stop.cancel();
    timeout(PATIENCE, second).await.unwrap().unwrap().unwrap();
}

/// The defaults with short times, and with these channels to owners.
fn alerts(owners: OwnersConfig) -> AlertsConfig {
    AlertsConfig { owners, ..quick() }
}

fn email(server: &SmtpServer) -> OwnerEmailConfig {
    OwnerEmailConfig {
        smtp: smtp(server),
        domains: Vec::new(),
        subject: None,
        text: None,
    }
}

fn sms(gateway: &Receiver) -> WebhookConfig {
    WebhookConfig {
        url: Some(gateway.url().into()),
        headers: [("Authorization".to_owned(), "Bearer hunter2".into())].into(),
        template: Some(r#"{"to": "{{notice.to}}", "text": "{{notice.text}}"}"#.to_owned()),
        ..WebhookConfig::default()
    }
}

fn notice(state: ProcessState, contacts: &[&str]) -> OwnerNotice {
    OwnerNotice {
        event_id: Uuid::new_v4(),
        operation: OperationId(Uuid::new_v4()),
        caller_id: Some("d-17".to_owned()),
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        state,
        contacts: contacts.iter().copied().map(Contact::new).collect(),
        at: now(),
    }
}

async fn send(log: &Log, notice: &OwnerNotice) {
    let mut value = Vec::new();
    notice.encode(&mut value).unwrap();
    let partition = partition_for(notice.operation, PARTITIONS);
    log.send_to(log.topics.owner_notices(), partition, &value)
        .await;
}

fn follow(log: &Log, config: &AlertsConfig) -> Following {
    let stop = CancellationToken::new();
    let followers = owners_followers(config, &log.source(None)).unwrap();
    let followers = followers
        .into_iter()
        .map(|follower| tokio::spawn(follower.run(stop.clone())));
    Following {
        followers: followers.collect(),
        stop,
    }
}

async fn mails(server: &SmtpServer, count: usize) -> Vec<Mail> {
    let mails = timeout(PATIENCE, server.mails(count)).await;
    mails.unwrap_or_else(|_| panic!("{count} mails do not come: {:?}", server.seen()))
}

fn message_id(mail: &Mail) -> &str {
    let mut lines = mail.text.lines();
    lines
        .find_map(|line| line.strip_prefix("Message-ID: "))
        .expect("a mail has an id")
}

fn measured() -> (PrometheusHandle, impl Sized) {
    // Leaked, because the guard borrows it.
    let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    let metrics = recorder.handle();
    (metrics, ::metrics::set_default_local_recorder(recorder))
}

/// The value of a metric of the channel `email`.
fn metric(metrics: &PrometheusHandle, name: &str) -> f64 {
    let start = format!("waybill_owner_notices_{name}{{channel=\"email\"}} ");
    let shown = metrics.render();
    let value = shown.lines().find_map(|line| line.strip_prefix(&start));
    value.map_or(0.0, |value| value.parse().unwrap())
}
