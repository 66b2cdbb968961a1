//! Followers of the alert topic, on the test's own embedded broker.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_alerts::{AlertSource, AlertsConfig, ReceiverConfig, followers};
use waybill_broker::{Broker, BrokerSettings};
use waybill_engine::{
    AlertKind, Offset, OperationId, OperatorAlert, PartitionId, StepError, Timestamp, partition_for,
};
use waybill_kafka::{
    Admin, ConsumerOptions, KafkaSettings, OutRecord, PartitionConsumer, PollLimits, Producer,
    ProducerOptions, RawRecord, RecordRef, Settlement, TopicSpec,
};
use waybill_messages::{Record as _, Topics};
use waybill_test_support::smtp_server::SmtpServer;
use waybill_test_support::webhook_receiver::{Answer, Received, Receiver};

use crate::running::{PATIENCE, email, quick, repeats, webhook};

pub const PARTITIONS: u32 = 3;

#[tokio::test]
async fn recent_alerts_from_before_the_first_start_are_sent() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let log = Log::start().await;
    let receiver = Receiver::start([]).await;
    let config = AlertsConfig {
        max_age: Duration::from_secs(3_600),
        ..quick()
    };
    let hours_ago = |hours: u64| now() - Duration::from_secs(hours * 3_600);
    log.send(&[alert_at("old", hours_ago(2)), alert_at("new", now())])
        .await;
    log.send_bytes(PartitionId(0), b"no alert").await;
    let last = alert("last");
    log.send(std::slice::from_ref(&last)).await;

    let following = log.follow([("pager", webhook(&receiver))], config);
    let requests = received(&receiver, 2).await;
    let mut steps: Vec<_> = requests
        .iter()
        .map(|r| r.json()["data"]["step"].clone())
        .collect();
    steps.sort_by_key(ToString::to_string);
    assert_eq!(steps, ["last", "new"]);
    assert!(
        requests
            .iter()
            .any(|request| request.header("webhook-id") == last.event_id.to_string())
    );
    eventually("every record is counted", || {
        [
            "waybill_alerts_skipped_total",
            "waybill_alerts_unreadable_total",
        ]
        .into_iter()
        .all(|name| metric(&metrics, name) == Some(1.0))
    })
    .await;
    following.stop().await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn an_unreadable_record_is_dead_lettered_once() {
    let log = Log::start().await;
    let (one, other) = (Receiver::start([]).await, Receiver::start([]).await);
    log.send_bytes(PartitionId(1), b"no alert").await;
    let following = log.follow(
        [("one", webhook(&one)), ("other", webhook(&other))],
        quick(),
    );
    log.send(&[alert("after it")]).await;
    received(&one, 1).await;
    received(&other, 1).await;
    let dead_letter = log.dead_letter().await;
    following.stop().await;

    assert_eq!(
        (dead_letter.partition, dead_letter.value.as_deref()),
        (PartitionId(1), Some(&b"no alert"[..]))
    );
    let header = |wanted: &str| {
        let mut headers = dead_letter.headers.iter();
        let (_, value) = headers.find(|(name, _)| name == wanted).unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap()
    };
    assert_eq!(
        header("__connect.errors.topic"),
        log.topics.operator_alerts()
    );
    assert_eq!(header("__connect.errors.offset"), "0");
    // Both followers have committed past it, so it is not delivered again.
    let back = Receiver::start([]).await;
    let following = log.follow(
        [("one", webhook(&back)), ("other", webhook(&back))],
        quick(),
    );
    log.send(&[alert("last")]).await;
    received(&back, 2).await;
    following.stop().await;
    assert_eq!(log.dead_letters().await, 1);
}

#[tokio::test]
async fn undelivered_alerts_are_sent_after_a_restart() {
    let log = Log::start().await;
    let receiver = Receiver::start([Answer::Status(200)].into_iter().chain(failures())).await;
    let config = AlertsConfig {
        backoff: PATIENCE,
        backoff_max: PATIENCE,
        ..quick()
    };
    let following = log.follow([("pager", webhook(&receiver))], config.clone());
    let first = alert("first");
    log.send(std::slice::from_ref(&first)).await;
    received(&receiver, 1).await;
    let rest = ["second", "third"].map(alert);
    log.send(&rest).await;
    // Its first attempt fails, and the next one is much later.
    received(&receiver, 2).await;
    following.stop().await;

    let back = Receiver::start([]).await;
    let following = log.follow([("pager", webhook(&back))], config);
    let requests = received(&back, 2).await;
    following.stop().await;
    let mut delivered: Vec<_> = requests
        .iter()
        .map(|r| r.header("webhook-id").to_owned())
        .collect();
    let mut expected = rest.map(|alert| alert.event_id.to_string());
    delivered.sort();
    expected.sort();
    assert_eq!(delivered, expected);
    assert_eq!(back.count(), 2);
}

#[tokio::test]
async fn read_ahead_for_a_hanging_receiver_is_bounded() {
    const ALERTS: usize = 300;
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let log = Log::start().await;
    let go = Arc::new(tokio::sync::Notify::new());
    let receiver = Receiver::start([Answer::When(go.clone())]).await;
    let config = AlertsConfig {
        queue_max: 5,
        folded_max: 15,
        timeout: 2 * PATIENCE,
        ..quick()
    };
    let all: Vec<_> = (0..ALERTS).map(|step| alert(&step.to_string())).collect();
    log.send(&all).await;
    let following = log.follow([("pager", webhook(&receiver))], config);
    received(&receiver, 1).await;
    let waiting = || metric(&metrics, "waybill_alerts_waiting").unwrap_or_default();
    eventually("the bound is reached", || waiting() >= 20.0).await;
    // It continues to poll an empty topic.
    for _ in 0..10 {
        sleep(Duration::from_millis(100)).await;
        assert!(waiting() <= 20.0, "{}", waiting());
    }
    assert_eq!(receiver.count(), 1);

    go.notify_one();
    let requests = received(&receiver, ALERTS).await;
    let mut delivered: Vec<_> = requests
        .iter()
        .map(|r| r.header("webhook-id").to_owned())
        .collect();
    let mut expected: Vec<_> = all.iter().map(|a| a.event_id.to_string()).collect();
    delivered.sort();
    expected.sort();
    assert_eq!(delivered, expected);
    eventually("all records are done", || waiting() == 0.0).await;
    following.stop().await;
}

#[tokio::test]
async fn each_receiver_has_its_own_offset() {
    let log = Log::start().await;
    let (receiver, mail) = (Receiver::start(failures()).await, SmtpServer::start().await);
    let config = AlertsConfig {
        attempts_max: u32::MAX,
        ..quick()
    };
    let all = [
        ("pager", webhook(&receiver)),
        ("on-call", email(&mail, &["ops@example.com"])),
    ];
    let following = log.follow(all, config.clone());
    log.send(&[alert("drone")]).await;
    let seen = timeout(PATIENCE, mail.mails(1)).await.unwrap();
    assert_eq!(seen.len(), 1);
    received(&receiver, 3).await;
    following.stop().await;

    let back = Receiver::start([]).await;
    let all = [
        ("pager", webhook(&back)),
        ("on-call", email(&mail, &["ops@example.com"])),
    ];
    let following = log.follow(all, config);
    received(&back, 1).await;
    following.stop().await;
    assert_eq!(
        mail.seen().mails.len(),
        1,
        "a receiver that had it does not get it again"
    );
}

#[tokio::test]
async fn repeats_in_the_topic_are_folded() {
    const ALERTS: usize = 500;
    let log = Log::start().await;
    let receiver = Receiver::start([]).await;
    let config = AlertsConfig {
        dedup_window: Duration::from_secs(2),
        ..quick()
    };
    let all: Vec<_> = (0..ALERTS).map(|_| alert("drone")).collect();
    log.send(&all).await;
    let following = log.follow([("pager", webhook(&receiver))], config);
    let mut messages = 1;
    let total = loop {
        let requests = received(&receiver, messages).await;
        let repeats = repeats(&requests);
        let alone = repeats.iter().filter(|repeats| **repeats == 0).count();
        let total = alone + repeats.iter().sum::<u64>() as usize;
        if total >= ALERTS {
            break total;
        }
        messages = requests.len() + 1;
    };
    following.stop().await;
    assert_eq!(total, ALERTS);
    assert!(receiver.count() < 20, "{}", receiver.count());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_hanging_receiver() {
    let log = Log::start().await;
    let receiver = Receiver::start([Answer::Hang]).await;
    let config = AlertsConfig {
        timeout: 2 * PATIENCE,
        ..quick()
    };
    let following = log.follow([("pager", webhook(&receiver))], config);
    log.send(&[alert("drone")]).await;
    received(&receiver, 1).await;
    // Within the attempt's own time-out, or this fails.
    following.stop().await;
}

#[tokio::test]
async fn a_returning_static_member_replaces_its_predecessor() {
    let log = Log::start().await;
    let receiver = Receiver::start([]).await;
    let config = AlertsConfig {
        receivers: [("pager".to_owned(), webhook(&receiver))].into(),
        ..quick()
    };
    let start = || {
        let stop = CancellationToken::new();
        let source = log.source(Some("the-only-one"));
        let follower = followers(&config, &source).unwrap().remove(0);
        (tokio::spawn(follower.run(stop.clone())), stop)
    };
    let (first, _stop) = start();
    log.send(&[alert("first")]).await;
    received(&receiver, 1).await;

    // The first one is not stopped. Without the stable name it would keep its share of the
    // partitions.
    let (second, stop) = start();
    let fenced = timeout(PATIENCE, first).await.unwrap().unwrap();
    assert!(fenced.is_err(), "its place is another's now");
    let all: Vec<_> = (0..9).map(|step| alert(&step.to_string())).collect();
    log.send(&all).await;
    received(&receiver, 10).await;
    stop.cancel();
    timeout(PATIENCE, second).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn alerts_of_a_recreated_topic_are_delivered() {
    const OLD: usize = 10;
    const NEW: usize = 3;
    let log = Log::start().await;
    let receiver = Receiver::start([]).await;
    let following = log.follow([("pager", webhook(&receiver))], quick());
    let old: Vec<_> = (0..OLD).map(|step| alert(&step.to_string())).collect();
    log.send_all(PartitionId(0), &old).await;
    received(&receiver, OLD).await;

    log.recreate_alerts_topic().await;
    // At offsets that were all read on the old topic.
    let new: Vec<_> = (0..NEW).map(|step| alert(&format!("new-{step}"))).collect();
    log.send_all(PartitionId(0), &new).await;
    let requests = received(&receiver, OLD + NEW).await;
    let mut delivered: Vec<_> = requests[OLD..]
        .iter()
        .map(|r| r.header("webhook-id").to_owned())
        .collect();
    let mut expected: Vec<_> = new.iter().map(|a| a.event_id.to_string()).collect();
    delivered.sort();
    expected.sort();
    assert_eq!(delivered, expected);
    following.stop().await;
}

/// A broker with the topics of alerts and of notices to owners.
pub struct Log {
    pub kafka: KafkaSettings,
    pub topics: Topics,
    producer: Producer<Arc<Settlement>>,
    _broker: Broker,
    _dir: TempDir,
}

impl Log {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = BrokerSettings::new(dir.path());
        config.listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start(config).await.unwrap();
        let kafka = KafkaSettings::new(broker.address().to_string());
        let topics = Topics::default();
        let admin = Admin::new(&kafka, "test").unwrap();
        admin.wait_ready(PATIENCE).await.unwrap();
        let specs = [topics.operator_alerts(), topics.owner_notices()].map(|topic| {
            [topic.to_owned(), Topics::dead_letter(topic)]
                .map(|topic| TopicSpec::new(topic, PARTITIONS))
        });
        let specs = specs.concat();
        admin.create_topics(&specs).await.unwrap();
        let producer = Producer::new(&kafka, &ProducerOptions::new("test")).unwrap();
        Self {
            kafka,
            topics,
            producer,
            _broker: broker,
            _dir: dir,
        }
    }

    async fn recreate_alerts_topic(&self) {
        let topic = self.topics.operator_alerts();
        let admin = Admin::new(&self.kafka, "test").unwrap();
        admin.delete_topic(topic).await.unwrap();
        let again = TopicSpec::new(topic.to_owned(), PARTITIONS);
        admin.create_topics(&[again]).await.unwrap();
    }

    /// Sends alerts, each to its operation's partition.
    async fn send(&self, alerts: &[OperatorAlert]) {
        for alert in alerts {
            let partition = partition_for(alert.operation, PARTITIONS);
            self.send_all(partition, std::slice::from_ref(alert)).await;
        }
    }

    async fn send_all(&self, partition: PartitionId, alerts: &[OperatorAlert]) {
        for alert in alerts {
            let mut value = Vec::new();
            alert.encode(&mut value).unwrap();
            self.send_bytes(partition, &value).await;
        }
    }

    async fn send_bytes(&self, partition: PartitionId, value: &[u8]) {
        self.send_to(self.topics.operator_alerts(), partition, value)
            .await;
    }

    pub async fn send_to(&self, topic: &str, partition: PartitionId, value: &[u8]) {
        let (settlement, settled) = Settlement::channel(1);
        let record = OutRecord::new(topic, partition, b"key", value);
        assert!(self.producer.send(&record, settlement).is_ok());
        settled.await.unwrap().unwrap();
    }

    /// The first poison record with an alert.
    async fn dead_letter(&self) -> RawRecord {
        let reader = PartitionConsumer::new(&self.kafka, &ConsumerOptions::new("test")).unwrap();
        let topic = Topics::dead_letter(self.topics.operator_alerts());
        let all =
            (0..PARTITIONS).map(|partition| (topic.as_str(), PartitionId(partition), Offset(0)));
        reader.assign(&all.collect::<Vec<_>>()).unwrap();
        let limits = PollLimits {
            records: 1,
            bytes: 1 << 20,
        };
        let mut dead_letter = None;
        eventually("a dead letter comes", || {
            let mut take = |record: RecordRef<'_>| dead_letter = Some(record.to_raw());
            reader.poll(limits, Duration::ZERO, &mut take).unwrap();
            dead_letter.is_some()
        })
        .await;
        dead_letter.unwrap()
    }

    /// The number of poison records with an alert.
    async fn dead_letters(&self) -> i64 {
        let admin = Admin::new(&self.kafka, "test").unwrap();
        let topic = Topics::dead_letter(self.topics.operator_alerts());
        let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
        let held = admin.offsets(&topic, &all).await.unwrap();
        held.iter().map(|(start, end)| end.0 - start.0).sum()
    }

    fn follow<const N: usize>(
        &self,
        all: [(&str, ReceiverConfig); N],
        config: AlertsConfig,
    ) -> Following {
        let config = AlertsConfig {
            receivers: all
                .map(|(name, receiver)| (name.to_owned(), receiver))
                .into(),
            ..config
        };
        let stop = CancellationToken::new();
        let followers = followers(&config, &self.source(None)).unwrap();
        let followers = followers
            .into_iter()
            .map(|follower| tokio::spawn(follower.run(stop.clone())));
        Following {
            followers: followers.collect(),
            stop,
        }
    }

    pub fn source(&self, instance_id: Option<&str>) -> AlertSource {
        AlertSource {
            kafka: self.kafka.clone(),
            topics: self.topics.clone(),
            instance_id: instance_id.map(str::to_owned),
            stop_within: Duration::from_millis(500),
        }
    }
}

/// Running followers.
pub struct Following {
    pub followers: Vec<JoinHandle<anyhow::Result<()>>>,
    pub stop: CancellationToken,
}

impl Following {
    pub async fn stop(self) {
        self.stop.cancel();
        for follower in self.followers {
            timeout(PATIENCE, follower).await.unwrap().unwrap().unwrap();
        }
    }
}

fn alert(step: &str) -> OperatorAlert {
    alert_at(step, now())
}

fn alert_at(step: &str, at: Timestamp) -> OperatorAlert {
    OperatorAlert {
        event_id: Uuid::new_v4(),
        kind: AlertKind::OperationParked,
        operation: OperationId(Uuid::new_v4()),
        caller_id: None,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        step: Some(step.to_owned()),
        error: Some(StepError {
            code: "no-drone".to_owned(),
            message: "no drone is free".to_owned(),
        }),
        advice: "Resubmit it once drones are back.".to_owned(),
        at,
    }
}

pub fn now() -> Timestamp {
    Timestamp(jiff::Timestamp::now().as_microsecond())
}

fn failures() -> Vec<Answer> {
    vec![Answer::Status(500); 1_000]
}

pub async fn received(receiver: &Receiver, count: usize) -> Vec<Received> {
    match timeout(PATIENCE, receiver.received(count)).await {
        Ok(requests) => requests,
        Err(_) => panic!("{} of {count} requests came", receiver.count()),
    }
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(
        timeout(PATIENCE, waiting).await.is_ok(),
        "not reached: {what}"
    );
}

/// The value of a metric of the receiver `pager`.
fn metric(metrics: &PrometheusHandle, name: &str) -> Option<f64> {
    let start = format!("{name}{{receiver=\"pager\"}} ");
    let shown = metrics.render();
    let value = shown.lines().find_map(|line| line.strip_prefix(&start))?;
    value.parse().ok()
}
