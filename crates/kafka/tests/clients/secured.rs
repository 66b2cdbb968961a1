//! Clients of a listener with TLS and a login (SCRAM-SHA-512): `WAYBILL_TEST_SECURED_BROKERS` names
//! it, and `WAYBILL_TEST_SECRETS` the directory with certificates and passwords.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, AdminError, ConsumerOptions, ErrorCode, GroupConsumer, GroupHandler, GroupOptions,
    KafkaSettings, PartitionConsumer, RecordRef, TopicPartition, TopicSpec,
};

use crate::fixture::Fixture;
use crate::raw::{self, On, Right};
use crate::support::{A_WHILE, ALL, PATIENCE, read, send_batch, values};

const BROKERS: &str = "WAYBILL_TEST_SECURED_BROKERS";
const SECRETS: &str = "WAYBILL_TEST_SECRETS";

/// The listener, with certificates and passwords.
struct Site {
    brokers: String,
    secrets: PathBuf,
}

impl Site {
    fn new_or_skip() -> Option<Self> {
        let (Ok(brokers), Ok(secrets)) = (std::env::var(BROKERS), std::env::var(SECRETS)) else {
            println!(
                "SKIPPED: TLS and logins of Kafka: {BROKERS} and {SECRETS} do not both name one"
            );
            return None;
        };
        let secrets = secrets.into();
        Some(Self { brokers, secrets })
    }

    fn path(&self, name: &str) -> String {
        self.secrets.join(name).to_str().unwrap().to_owned()
    }

    fn password(&self, user: &str) -> String {
        let path = self.path(&format!("{user}-password"));
        fs::read_to_string(path).unwrap().trim_end().to_owned()
    }

    /// The settings of the user `waybill`, who has all rights.
    fn settings(&self) -> KafkaSettings {
        let mut settings = KafkaSettings::new(self.brokers.clone());
        settings.properties = [
            ("security.protocol", "SASL_SSL".to_owned()),
            ("sasl.mechanism", "SCRAM-SHA-512".to_owned()),
            ("sasl.username", "waybill".to_owned()),
            ("sasl.password", self.password("kafka")),
            ("ssl.ca.location", self.path("ca.pem")),
        ]
        .into_iter()
        .map(|(property, value)| (property.to_owned(), value))
        .collect();
        settings
    }

    /// The same, with one property changed.
    fn with(&self, property: &str, value: &str) -> KafkaSettings {
        let mut settings = self.settings();
        let old = settings.properties.get_mut(property).unwrap();
        value.clone_into(old);
        settings
    }

    /// The settings of the user `guest`, who has no rights.
    fn guest(&self) -> KafkaSettings {
        let mut settings = self.with("sasl.username", "guest");
        let password = settings.properties.get_mut("sasl.password").unwrap();
        *password = self.password("guest");
        settings
    }
}

/// Takes records and counts them.
#[derive(Default)]
struct Counter(usize);

impl GroupHandler for Counter {
    fn record(&mut self, _: RecordRef<'_>) {
        self.0 += 1;
    }

    fn assigned(&mut self, _: &[TopicPartition]) {}

    fn revoked(&mut self, _: &[TopicPartition], _: bool) -> Vec<(TopicPartition, Offset)> {
        Vec::new()
    }
}

#[test]
fn every_client_works_over_tls_with_a_login() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    assert_every_client_works(&Fixture::of_others(site.settings()));
}

#[test]
fn every_client_works_with_no_more_rights_than_the_documentation_names() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    let Some(everything) = Fixture::apache_kafka() else {
        return;
    };
    let fixture = Fixture::of_others(site.guest());
    let (prefix, of) = (fixture.name(""), &everything.settings);
    let on_topics = [
        Right::Describe,
        Right::DescribeConfigs,
        Right::Read,
        Right::Write,
        Right::Create,
    ];
    raw::allow(of, "guest", On::Topics, &prefix, &on_topics);
    let on_groups = [Right::Read, Right::Describe];
    // librdkafka asks for the group's coordinator even if a consumer joins no group.
    for group in [prefix.as_str(), "waybill-no-group"] {
        raw::allow(of, "guest", On::Groups, group, &on_groups);
    }
    // The broker reads access rights from its own log, a moment later.
    let deadline = Instant::now() + PATIENCE;
    let probe = [TopicSpec::new(fixture.name("probe"), 1)];
    while fixture
        .runtime
        .block_on(fixture.admin.try_topics(&probe))
        .is_err()
    {
        assert!(Instant::now() < deadline, "the rights do not come");
    }
    let topic = assert_every_client_works(&fixture);
    let settings = fixture
        .runtime
        .block_on(fixture.admin.topic_settings(&[&topic]))
        .unwrap();
    assert!(settings.contains_key(&topic), "{settings:?}");
    // This user has no permission to delete it.
    fixture
        .runtime
        .block_on(fixture.admin.delete_topic(&topic))
        .unwrap_err();
    let deleted = everything.admin.delete_topic(&topic);
    everything.runtime.block_on(deleted).unwrap();
}

/// Returns the topic that the clients used.
fn assert_every_client_works(fixture: &Fixture) -> String {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b"]);
    let consumer = fixture.consumer(&topic, 0, 0);
    assert_eq!(values(&read(&consumer, 2)), [b"a", b"b"]);

    let group = GroupOptions::new(fixture.name("g"), "member");
    let mut member = GroupConsumer::new(&fixture.settings, &group).unwrap();
    member.subscribe(&[&topic]).unwrap();
    let mut counter = Counter::default();
    let deadline = Instant::now() + PATIENCE;
    while counter.0 < 2 {
        assert!(Instant::now() < deadline, "the group gets no records");
        member.poll(ALL, A_WHILE, &mut counter).unwrap();
    }
    topic
}

#[test]
fn a_client_that_cannot_connect_gets_the_reason_before_the_timeout() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    for (settings, reason) in [
        (site.with("sasl.password", "hunter2"), "invalid credentials"),
        (site.with("sasl.username", "nobody"), "invalid credentials"),
        (site.with("sasl.mechanism", "PLAIN"), "mechanism"),
        (
            site.with("ssl.ca.location", &site.path("other-ca.pem")),
            "certificate verify failed",
        ),
    ] {
        let started = Instant::now();
        let admin = Admin::new(&settings, "admin").unwrap();
        let refused = runtime.block_on(admin.wait_ready(PATIENCE)).unwrap_err();
        assert!(matches!(refused, AdminError::Refused { .. }), "{refused:?}");
        assert!(started.elapsed() < PATIENCE);
        let message = error_chain(&refused);
        assert!(message.contains(reason), "{message}");
        assert_no_secret(&site, &message);
    }
}

#[test]
fn a_tls_mismatch_between_client_and_broker_is_reported() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    let embedded = Fixture::embedded();
    let mut tls = site.settings();
    tls.brokers.clone_from(&embedded.settings.brokers);
    for (settings, reason) in [
        (
            KafkaSettings::new(site.brokers.clone()),
            "security.protocol",
        ),
        (tls, "SSL_HANDSHAKE"),
    ] {
        let admin = Admin::new(&settings, "admin").unwrap();
        let waited = Duration::from_secs(8);
        let failed = runtime.block_on(admin.wait_ready(waited)).unwrap_err();
        let message = error_chain(&failed);
        assert!(message.contains(reason), "{message}");
        assert_no_secret(&site, &message);
    }
}

#[test]
fn a_forbidden_action_is_refused_by_its_code_and_a_hidden_topic_is_not_reported_as_missing() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    let fixture = Fixture::of_others(site.settings());
    let topic = fixture.topic("t", 1);
    let runtime = Runtime::new().unwrap();
    let guest = Admin::new(&site.guest(), "guest").unwrap();
    runtime.block_on(guest.wait_ready(PATIENCE)).unwrap();

    let made = runtime.block_on(guest.create_topics(&[TopicSpec::new(fixture.name("u"), 1)]));
    let tried = runtime.block_on(guest.try_topics(&[TopicSpec::new(fixture.name("u"), 1)]));
    let seen = runtime.block_on(guest.partition_states(&topic));
    for code in [
        code(made.unwrap_err()),
        code(tried.unwrap_err()),
        code(seen.unwrap_err()),
    ] {
        assert_eq!(code, ErrorCode::TopicAuthorizationFailed);
    }
    let settings = runtime.block_on(guest.topic_settings(&[&topic])).unwrap();
    assert!(settings.is_empty(), "{settings:?}");
    let id = |settings: &KafkaSettings| {
        let consumer = PartitionConsumer::new(settings, &ConsumerOptions::new("c")).unwrap();
        consumer.topic_id(&topic, PartitionId(0), PATIENCE).unwrap()
    };
    assert_eq!(id(&site.guest()), None, "it is not shown");
    assert!(id(&site.settings()).is_some());
    let settings = runtime
        .block_on(fixture.admin.topic_settings(&[&topic]))
        .unwrap();
    assert!(settings.contains_key(&topic), "{settings:?}");
}

#[test]
fn a_consumer_whose_login_is_refused_reads_nothing_and_tries_again() {
    let Some(site) = Site::new_or_skip() else {
        return;
    };
    let refused = site.with("sasl.password", "hunter2");
    let consumer = PartitionConsumer::new(&refused, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    for _ in 0..3 {
        let polled = consumer.poll(ALL, A_WHILE, &mut |_| panic!());
        assert!(polled.is_ok(), "{polled:?}");
    }
}

fn code(error: AdminError) -> ErrorCode {
    match error {
        AdminError::Topic { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

/// All messages of an error, for people and for programmers.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut message = format!("{error:?}\n{error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    message
}

fn assert_no_secret(site: &Site, message: &str) {
    let [own, guest] = ["kafka", "guest"].map(|user| site.password(user));
    for secret in ["hunter2", &own, &guest] {
        assert!(!message.contains(secret), "a password is in {message:?}");
    }
}
