//! A broker that checks logins: what a client may do before, and after, it has logged in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{
    ApiVersionsRequest, FetchRequest, FetchResponse, MetadataRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest,
};
use kafka_protocol::protocol::StrBytes;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};
use tokio::io::AsyncWriteExt;
use waybill_broker::{Action, Broker, Logins, Rights};
use waybill_sasl::{SALT_BYTES, Verifier};

use crate::common::*;

const PASSWORD: &str = "a password";

/// Accepts `owner`, who may do everything, and `agent`, who may read `asked`, write `answers` and
/// use the group `agents` until that is withdrawn.
#[derive(Debug, Default)]
struct Users {
    withdrawn: Arc<AtomicBool>,
}

impl Logins for Users {
    fn log_in(&self, user: &str, password: &str) -> Option<Arc<dyn Rights>> {
        match (user, password) {
            ("owner", PASSWORD) => Some(Arc::new(Owner)),
            ("agent", PASSWORD) => Some(Arc::new(Agent(Arc::clone(&self.withdrawn)))),
            _ => None,
        }
    }

    fn verifier(&self, user: &str) -> Option<(Verifier, Arc<dyn Rights>)> {
        let rights = self.log_in(user, PASSWORD)?;
        Some((Verifier::new(PASSWORD, &[7; SALT_BYTES]), rights))
    }
}

#[derive(Debug)]
struct Owner;

impl Rights for Owner {
    fn allow(&self, _action: Action<'_>) -> bool {
        true
    }
}

#[derive(Debug)]
struct Agent(Arc<AtomicBool>);

impl Rights for Agent {
    fn allow(&self, action: Action<'_>) -> bool {
        let is_its_own = matches!(
            action,
            Action::Read("asked")
                | Action::Write("answers")
                | Action::Group("agents")
                | Action::ProducerId
        );
        is_its_own && !self.0.load(Ordering::Relaxed)
    }
}

async fn guarded(dir: &std::path::Path) -> (Broker, Arc<AtomicBool>) {
    let users = Users::default();
    let withdrawn = Arc::clone(&users.withdrawn);
    let broker = broker_with(dir, |config| {
        config.logins = Some(Arc::new(users));
        config.login_timeout = Duration::from_millis(300);
    })
    .await;
    (broker, withdrawn)
}

fn as_user<'a>(user: &'a str, password: &'a str) -> [(&'static str, &'a str); 5] {
    logged_in("PLAIN", user, password)
}

fn logged_in<'a>(
    mechanism: &'static str,
    user: &'a str,
    password: &'a str,
) -> [(&'static str, &'a str); 5] {
    [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", mechanism),
        ("sasl.username", user),
        ("sasl.password", password),
        ("message.timeout.ms", "20000"),
    ]
}

/// Makes the topics, each with a record.
async fn with_topics(broker: &Broker) {
    let config = client(broker.address(), &as_user("owner", PASSWORD));
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topics = ["asked", "answers", "other"];
    let topics = topics.map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1)));
    let created = admin.create_topics(&topics, &AdminOptions::new()).await;
    assert!(created.unwrap().iter().all(Result::is_ok));
    for topic in ["asked", "answers", "other"] {
        write(broker, "owner", topic).await.unwrap();
    }
}

async fn write(broker: &Broker, user: &str, topic: &str) -> Result<(), RDKafkaErrorCode> {
    write_as(broker, &as_user(user, PASSWORD), topic).await
}

async fn write_as(
    broker: &Broker,
    login: &[(&str, &str)],
    topic: &str,
) -> Result<(), RDKafkaErrorCode> {
    let producer: FutureProducer = client(broker.address(), login).create().unwrap();
    let record = FutureRecord::<(), _>::to(topic)
        .partition(0)
        .payload("a record");
    let sent = producer.send(record, Timeout::After(BOUND)).await;
    sent.map(drop)
        .map_err(|(error, _)| error.rdkafka_error_code().expect("a code"))
}

/// The first record of a topic, or why there is none.
async fn first(
    broker: &Broker,
    user: &'static str,
    topic: &'static str,
) -> Result<i64, KafkaError> {
    let mut config = client(broker.address(), &as_user(user, PASSWORD));
    config.remove("message.timeout.ms");
    // librdkafka requests the coordinator of any group, even if it joins none.
    config.set("group.id", "agents");
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut assigned = TopicPartitionList::new();
        assigned
            .add_partition_offset(topic, 0, Offset::Offset(0))
            .unwrap();
        consumer.assign(&assigned).unwrap();
        next_offset(&consumer)
    })
    .await
    .unwrap()
}

/// The offset of the next record, or the error in its place.
fn next_offset(consumer: &BaseConsumer) -> Result<i64, KafkaError> {
    let deadline = Instant::now() + BOUND;
    loop {
        assert!(Instant::now() < deadline, "an answer in time");
        if let Some(record) = consumer.poll(Duration::from_millis(100)) {
            return record.map(|record| record.offset());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_login_may_only_ask_for_api_versions() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, _) = guarded(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let versions = wire.ask(3, &ApiVersionsRequest::default()).await;
    assert_eq!(versions.error_code, 0);
    wire.send(9, &MetadataRequest::default()).await;
    assert_eq!(wire.frame().await, None);

    // The broker does not wait for a large produce request.
    let mut wire = Wire::connect(broker.address()).await;
    let length = (1_u32 << 20).to_be_bytes();
    wire.stream.write_all(&length).await.unwrap();
    assert_eq!(wire.frame().await, None);

    // It does not wait long for a missing login either.
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(wire.frame().await, None);
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn handshake(mechanism: &'static str) -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(text(mechanism))
}

/// Logs in, and returns the code of the answer.
async fn log_in(wire: &mut Wire, message: &'static [u8]) -> i16 {
    assert_eq!(wire.ask(1, &handshake("PLAIN")).await.error_code, 0);
    let login = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
    wire.ask(2, &login).await.error_code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_ends_its_connection_and_a_second_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, _) = guarded(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let answer = wire.ask(1, &handshake("SCRAM-SHA-512")).await;
    let refused = ResponseError::UnsupportedSaslMechanism.code();
    assert_eq!(
        (answer.error_code, answer.mechanisms),
        (refused, vec![text("PLAIN"), text("SCRAM-SHA-256")])
    );
    let refused = ResponseError::SaslAuthenticationFailed.code();
    assert_eq!(log_in(&mut wire, b"\0agent\0wrong").await, refused);
    wire.send(1, &handshake("PLAIN")).await;
    assert_eq!(wire.frame().await, None);

    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(log_in(&mut wire, b"\0agent\0a password").await, 0);
    let login = SaslAuthenticateRequest::default().with_auth_bytes((&b"\0owner\0wrong"[..]).into());
    let illegal = ResponseError::IllegalSaslState.code();
    assert_eq!(wire.ask(2, &login).await.error_code, illegal);
    let metadata = wire.ask(9, &MetadataRequest::default()).await;
    assert_eq!(metadata.brokers.len(), 1);
    assert_eq!(broker.stats().logins_refused, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_logs_in_with_scram() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, withdrawn) = guarded(dir.path()).await;
    with_topics(&broker).await;
    let login = logged_in("SCRAM-SHA-256", "agent", PASSWORD);
    assert_eq!(write_as(&broker, &login, "answers").await, Ok(()));
    let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
    assert_eq!(write_as(&broker, &login, "other").await, Err(denied));
    withdrawn.store(true, Ordering::Relaxed);
    assert_eq!(write_as(&broker, &login, "answers").await, Err(denied));

    for (user, password) in [("agent", "another password"), ("nobody", PASSWORD)] {
        let before = broker.stats().logins_refused;
        let login = logged_in("SCRAM-SHA-256", user, password);
        tokio::select! {
            written = write_as(&broker, &login, "answers") => panic!("{user}: {written:?}"),
            () = until("the login is refused", async || broker.stats().logins_refused > before) => {}
        }
    }
}

/// The answer to the first message of a login with SCRAM.
async fn begin_scram(wire: &mut Wire, user: &str) -> String {
    assert_eq!(wire.ask(1, &handshake("SCRAM-SHA-256")).await.error_code, 0);
    let message = format!("n,,n={user},r=abc");
    let login = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
    let answer = wire.ask(2, &login).await;
    assert_eq!(answer.error_code, 0);
    String::from_utf8(answer.auth_bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn scram_does_not_show_which_users_exist() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, _) = guarded(dir.path()).await;
    let mut answers = Vec::new();
    for user in ["agent", "agent", "nobody", "nobody"] {
        let mut wire = Wire::connect(broker.address()).await;
        let answer = begin_scram(&mut wire, user).await;
        let (nonce, salt) = answer.split_once(",s=").unwrap();
        assert!(nonce.len() > "r=abc".len() + 16, "{answer}");
        let (salt, iterations) = salt.split_once(',').unwrap();
        let message = format!("c=biws,{nonce},p={}=", "A".repeat(43));
        let proof = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
        let refused = wire.ask(2, &proof).await;
        let message = refused.error_message.unwrap_or_default().to_string();
        answers.push((salt.to_owned(), iterations.to_owned(), message));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[2], answers[3]);
    assert_ne!(answers[0].0, answers[2].0);
    for (salt, iterations, message) in &answers {
        assert_eq!(salt.len(), answers[0].0.len());
        assert_eq!((iterations, message), (&answers[0].1, &answers[0].2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_login_is_not_finished_may_ask_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, _) = guarded(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    begin_scram(&mut wire, "agent").await;
    wire.send(9, &MetadataRequest::default()).await;
    assert_eq!(wire.frame().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_in_process_listener_has_its_own_logins() {
    #[derive(Debug)]
    struct OwnProcess;

    impl Logins for OwnProcess {
        fn log_in(&self, _user: &str, password: &str) -> Option<Arc<dyn Rights>> {
            (password == "own").then(|| Arc::new(Owner) as Arc<dyn Rights>)
        }

        fn verifier(&self, _user: &str) -> Option<(Verifier, Arc<dyn Rights>)> {
            None
        }
    }

    let refused = ResponseError::SaslAuthenticationFailed.code();
    for logins in [None, Some(Arc::new(Users::default()) as Arc<dyn Logins>)] {
        let is_guarded = logins.is_some();
        let dir = tempfile::tempdir().unwrap();
        let broker = broker_with(dir.path(), |config| {
            config.logins = logins;
            config.own_logins = Some(Arc::new(OwnProcess));
        })
        .await;
        let mut wire = Wire::connect(broker.own_address()).await;
        wire.send(9, &MetadataRequest::default()).await;
        assert_eq!(wire.frame().await, None, "no login");
        let mut wire = Wire::connect(broker.own_address()).await;
        assert_eq!(log_in(&mut wire, b"\0owner\0a password").await, refused);
        let mut wire = Wire::connect(broker.own_address()).await;
        assert_eq!(log_in(&mut wire, b"\0waybill\0own").await, 0);
        let metadata = wire.ask(9, &MetadataRequest::default()).await;
        assert_eq!(metadata.brokers.len(), 1);
        let mut wire = Wire::connect(broker.address()).await;
        if is_guarded {
            assert_eq!(log_in(&mut wire, b"\0waybill\0own").await, refused);
        } else {
            let metadata = wire.ask(9, &MetadataRequest::default()).await;
            assert_eq!(metadata.brokers.len(), 1, "everybody may");
        }
        assert!(broker.shutdown().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_rights_end_on_open_connections() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, withdrawn) = guarded(dir.path()).await;
    with_topics(&broker).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(log_in(&mut wire, b"\0agent\0a password").await, 0);
    let partition = FetchPartition::default()
        .with_fetch_offset(1)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(topic_name("asked"))
        .with_partitions(vec![partition]);
    let fetch = FetchRequest::default()
        .with_max_wait_ms(i32::MAX)
        .with_min_bytes(1)
        .with_max_bytes(10 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    wire.send(11, &fetch).await;
    until("the fetch waits", async || broker.stats().fetch_waits > 0).await;
    withdrawn.store(true, Ordering::Relaxed);
    write(&broker, "owner", "asked").await.unwrap();
    let (_, answer) = wire.receive::<FetchResponse>(11).await;
    let partition = &answer.responses[0].partitions[0];
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(partition.error_code, denied);
    assert!(
        partition
            .records
            .as_ref()
            .is_none_or(bytes::Bytes::is_empty)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_clients_do_what_their_login_allows() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, withdrawn) = guarded(dir.path()).await;
    with_topics(&broker).await;
    let denied = RDKafkaErrorCode::TopicAuthorizationFailed;

    assert_eq!(first(&broker, "agent", "asked").await, Ok(0));
    let refused = first(&broker, "agent", "answers").await.unwrap_err();
    assert_eq!(refused.rdkafka_error_code(), Some(denied));
    assert_eq!(write(&broker, "agent", "answers").await, Ok(()));
    for topic in ["asked", "other"] {
        assert_eq!(write(&broker, "agent", topic).await, Err(denied), "{topic}");
    }

    let config = client(broker.address(), &as_user("agent", PASSWORD));
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topic = NewTopic::new("new", 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new();
    let made = admin.create_topics([&topic], &options).await.unwrap();
    assert_eq!(made[0].as_ref().unwrap_err().1, denied);
    let deleted = admin.delete_topics(&["asked"], &options).await.unwrap();
    assert_eq!(deleted[0].as_ref().unwrap_err().1, denied);
    let seen = tokio::task::spawn_blocking(move || {
        let metadata = admin.inner().fetch_metadata(None, BOUND).unwrap();
        let mut names: Vec<_> = metadata
            .topics()
            .iter()
            .map(|t| t.name().to_owned())
            .collect();
        names.sort();
        names
    });
    assert_eq!(seen.await.unwrap(), ["answers", "asked"]);
    assert!(broker.stats().unauthorized > 0);

    withdrawn.store(true, Ordering::Relaxed);
    assert_eq!(write(&broker, "agent", "answers").await, Err(denied));
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_require_the_right_to_use_them() {
    let dir = tempfile::tempdir().unwrap();
    let (broker, _) = guarded(dir.path()).await;
    with_topics(&broker).await;
    let address = broker.address();
    let first = |group: &'static str| {
        tokio::task::spawn_blocking(move || {
            let mut config = client(address, &as_user("agent", PASSWORD));
            config.remove("message.timeout.ms");
            config
                .set("group.id", group)
                .set("auto.offset.reset", "earliest");
            let consumer: BaseConsumer = config.create().unwrap();
            consumer.subscribe(&["asked"]).unwrap();
            next_offset(&consumer)
        })
    };
    assert_eq!(first("agents").await.unwrap(), Ok(0));
    let refused = first("others").await.unwrap().unwrap_err();
    let denied = RDKafkaErrorCode::GroupAuthorizationFailed;
    assert_eq!(refused.rdkafka_error_code(), Some(denied));
}
