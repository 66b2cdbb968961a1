//! The embedded broker with authentication: the permissions of tokens.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::Message as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};
use reqwest::StatusCode;
use serde_json::Value;

use super::program::{Site, Token, Up, until};
use super::{PATIENCE, delivery};

const STEP_REQUESTS: &str = "waybill.package.requests.v1";
const STEP_REPLIES: &str = "waybill.step-replies.v1";
const STATUS: &str = "waybill.operation-status.v1";

/// A client that logs in with SCRAM.
fn scram_client(up: &Up, user: &str, token: &Token) -> ClientConfig {
    let mut config = client(up, Some(token));
    config
        .set("sasl.mechanism", "SCRAM-SHA-256")
        .set("sasl.username", user);
    config
}

/// A client with this token, or without any.
fn client(up: &Up, token: Option<&Token>) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", up.broker.to_string());
    if let Some(token) = token {
        config
            .set("security.protocol", "SASL_PLAINTEXT")
            .set("sasl.mechanism", "PLAIN")
            .set("sasl.username", "somebody")
            .set("sasl.password", &token.text);
    }
    config
}

/// The error of a write; `None` if it succeeds.
async fn refused(up: &Up, token: Option<&Token>, topic: &str) -> Option<RDKafkaErrorCode> {
    refused_client(client(up, token), topic).await
}

/// The same for a client.
async fn refused_client(mut config: ClientConfig, topic: &str) -> Option<RDKafkaErrorCode> {
    config.set("message.timeout.ms", "3000");
    let producer: FutureProducer = config.create().unwrap();
    let record = FutureRecord::<(), _>::to(topic).partition(0).payload("x");
    let sent = producer.send(record, Timeout::After(PATIENCE)).await;
    sent.err().and_then(|(error, _)| error.rdkafka_error_code())
}

/// The result of reading a topic from its start: a record or an error.
async fn read(up: &Up, token: &Token, topic: &'static str) -> Result<(), RDKafkaErrorCode> {
    let partitions = if topic == STEP_REQUESTS { 2 } else { 4 };
    let mut config = client(up, Some(token));
    config.set("group.id", "a-group-of-its-own");
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut assigned = TopicPartitionList::new();
        for partition in 0..partitions {
            let added = assigned.add_partition_offset(topic, partition, Offset::Beginning);
            added.unwrap();
        }
        consumer.assign(&assigned).unwrap();
        let began = std::time::Instant::now();
        loop {
            assert!(
                began.elapsed() < PATIENCE,
                "{topic}: neither record nor error"
            );
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(record)) => {
                    return record.payload().map(drop).ok_or(RDKafkaErrorCode::Fail);
                }
                Some(Err(error)) => return Err(error.rdkafka_error_code().unwrap()),
                None => {}
            }
        }
    })
    .await
    .unwrap()
}

/// The topics that a client sees.
async fn topics(up: &Up, token: &Token) -> Vec<String> {
    let admin: AdminClient<DefaultClientContext> = client(up, Some(token)).create().unwrap();
    let fetch = move || admin.inner().fetch_metadata(None, PATIENCE).unwrap();
    let metadata = tokio::task::spawn_blocking(fetch).await.unwrap();
    let names = metadata
        .topics()
        .iter()
        .map(|topic| topic.name().to_owned());
    names.collect()
}

async fn deliver(site: &Site, up: &Up, token: &Token) {
    let http = site.client();
    let url = format!("https://localhost:{}/api/deliveryrequests", up.http.port());
    let request = http.post(url).bearer_auth(&token.text).json(&delivery());
    let made = request.send().await.unwrap();
    assert_eq!(made.status(), StatusCode::ACCEPTED);
    let location = made.headers()["location"].to_str().unwrap().to_owned();
    let url = format!("https://localhost:{}{location}", up.http.port());
    until(async || {
        let asked = http.get(&url).bearer_auth(&token.text).send().await;
        asked
            .unwrap()
            .text()
            .await
            .unwrap()
            .contains("\"Processed\"")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_broker_refuses_reads_and_forged_records_without_a_token_for_it() {
    let mut site = Site::new();
    let orders = site.token("orders", "submit,read", "acme");
    let reports = site.token("reports", "read,submit", "*");
    let administrator = site.token("ops", "admin", "*");
    let stranger = Token::unknown();
    let up = site.up(&[]);
    deliver(&site, &up, &orders).await;

    let denied = RDKafkaErrorCode::TopicAuthorizationFailed;
    for token in [None, Some(&stranger)] {
        let code = refused(&up, token, STEP_REPLIES).await;
        assert_eq!(code, Some(RDKafkaErrorCode::MessageTimedOut));
    }
    for token in [&orders, &reports] {
        assert_eq!(refused(&up, Some(token), STEP_REPLIES).await, Some(denied));
        assert!(!topics(&up, token).await.contains(&STEP_REQUESTS.to_owned()));
    }
    assert_eq!(topics(&up, &orders).await, [""; 0]);
    assert_eq!(read(&up, &reports, STATUS).await, Ok(()));
    let admin: AdminClient<DefaultClientContext> = client(&up, Some(&reports)).create().unwrap();
    let deleted = admin.delete_topics(&[STATUS], &AdminOptions::new()).await;
    assert_eq!(deleted.unwrap()[0].as_ref().unwrap_err().1, denied);
    assert_eq!(read(&up, &administrator, STEP_REQUESTS).await, Ok(()));

    // A withdrawn token loses its permissions.
    site.revoke("ops");
    until(async || read(&up, &administrator, STEP_REQUESTS).await.is_err()).await;

    let log = up.stop();
    for token in [&orders, &reports, &administrator, &stranger] {
        assert!(!log.contains(&token.text), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_another_process_log_in_with_a_token_for_agents() {
    let mut site = Site::new();
    let orders = site.token("orders", "submit,read", "acme");
    let names = "account,package,third-party,drone,delivery";
    let agents = site.agents_token("agents", names);
    let up = site.up(&["--no-agents"]);
    let _agents = site.agents(&up, &agents);
    deliver(&site, &up, &orders).await;

    let denied = Some(RDKafkaErrorCode::TopicAuthorizationFailed);
    let requests = "waybill.operation-requests.v1";
    assert_eq!(refused(&up, Some(&agents), requests).await, denied);
    assert_eq!(refused(&up, Some(&agents), STEP_REQUESTS).await, denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_logs_in_with_scram_under_its_own_name() {
    let mut site = Site::new();
    let submitter = site.token("submitter", "submit", "*");
    let of_a_tenant = site.token("orders", "submit", "acme");
    let up = site.up(&[]);
    let requests = "waybill.operation-requests.v1";
    let refused =
        async |user, token| refused_client(scram_client(&up, user, token), requests).await;
    assert_eq!(refused("submitter", &submitter).await, None);
    let timed_out = Some(RDKafkaErrorCode::MessageTimedOut);
    let stranger = Token::unknown();
    for (user, token) in [
        ("somebody", &submitter),
        ("submitter", &stranger),
        ("orders", &of_a_tenant),
    ] {
        assert_eq!(refused(user, token).await, timed_out, "{user}");
    }

    site.revoke("submitter");
    until(async || refused("submitter", &submitter).await == timed_out).await;
    let log = up.stop();
    assert!(!log.contains(&submitter.text), "{log}");
    let refused = "a login was refused";
    let line = log.lines().find(|line| line.contains(refused)).unwrap();
    let reason = "the user name or the password is wrong";
    assert!(line.contains(reason), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_log_in_with_the_token_of_their_file() {
    let mut site = Site::new();
    let administrator = site.token("ops", "admin,read", "*");
    let up = site.up(&[]);
    let broker = up.broker.to_string();
    for command in [
        &["topics", "describe"][..],
        &["topics", "create"],
        &["dlq", "topics"],
        &["dlq", "list"],
        &["records", "failed-operations"],
    ] {
        let command = [command, &["--broker-listen", &broker]].concat();
        let done = site.run(&command, Some(&administrator));
        assert_eq!(done.code, 0, "{command:?}: {}", done.text);
        let refused = site.run(&command, None);
        assert_eq!(refused.code, 1, "{command:?}: {}", refused.text);
        assert!(refused.text.contains("--token-file"), "{}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_a_token_may_not_describe_are_named() {
    let mut site = Site::new();
    let reports = site.token("reports", "read", "*");
    let up = site.up(&[]);
    let broker = up.broker.to_string();
    let admin = format!("https://localhost:{}", up.admin.port());
    let api = format!("https://localhost:{}", up.http.port());
    let dlq_of = |topic: &str| format!("waybill.{topic}.v1.dlq");
    let forbidden = [
        "operation-requests",
        "high-priority-requests",
        "step-replies",
        "recovery",
        "owner-notices",
    ];

    for command in ["topics", "list"] {
        let done = site.run(
            &["dlq", command, "--broker-listen", &broker],
            Some(&reports),
        );
        assert_eq!(done.code, 1, "{}", done.text);
        let named = "not listed, because this login has no permission to describe them: ";
        assert!(done.stderr.contains(named), "{}", done.stderr);
        for topic in forbidden {
            assert!(done.stderr.contains(&dlq_of(topic)), "{}", done.stderr);
        }
        let open = dlq_of("failed-operations");
        assert!(!done.stderr.contains(&open), "{}", done.stderr);
        assert_eq!(done.stdout.contains(&open), command == "topics");
    }

    let doctor = [
        &["doctor", "--output", "json", "--broker-listen", &broker][..],
        &["--admin-url", &admin, "--api", &api],
    ];
    let done = site.run(&doctor.concat(), Some(&reports));
    let findings = done.stdout.lines().map(serde_json::from_str::<Value>);
    let findings: Vec<Value> = findings.map(Result::unwrap).collect();
    let findings_of = |what: &str| {
        let of_it = findings.iter().filter(|finding| finding["what"] == what);
        let verdicts =
            of_it.map(|finding| (finding["verdict"].as_str(), finding["message"].as_str()));
        let verdicts = verdicts.map(|(verdict, message)| (verdict.unwrap(), message.unwrap()));
        verdicts.collect::<Vec<_>>()
    };
    let topics = findings_of("topics");
    assert_eq!(topics.len(), 1, "{findings:?}");
    assert_eq!(topics[0].0, "note");
    assert!(topics[0].1.contains("does not allow this"), "{topics:?}");
    let unknown = (
        "note",
        "unknown: this login has no permission to describe the topics",
    );
    for what in ["agents", "lag"] {
        assert_eq!(findings_of(what), [unknown], "{what}");
    }
    let [none, unknown] = findings_of("dead letters")[..] else {
        panic!("{findings:?}")
    };
    assert_eq!(none, ("ok", "none: no records on 2 dead-letter topics"));
    assert_eq!(unknown.0, "note");
    for topic in forbidden.into_iter().chain(["drone.requests"]) {
        assert!(unknown.1.contains(&dlq_of(topic)), "{unknown:?}");
    }
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_of_a_command_names_the_flags() {
    let mut site = Site::new();
    let administrator = site.token("ops", "admin,read", "*");
    let up = site.up(&[]);
    let broker = up.broker.to_string();
    let token_file = administrator.file.to_str().unwrap();
    let flags = ["--broker-listen", &broker, "--token-file", token_file];
    let refused = Site::run_without_configuration(&[&["dlq", "list"][..], &flags].concat());
    assert_eq!(refused.code, 1, "{}", refused.text);
    let hint = "no login was sent, because authentication is off in this configuration: if the broker requires it, name \
                the broker's configuration (--config) and a token (--token-file)";
    assert!(refused.text.contains(hint), "{}", refused.text);
    let listed = site.run(
        &["dlq", "list", "--broker-listen", &broker],
        Some(&administrator),
    );
    assert_eq!(listed.code, 0, "{}", listed.text);

    let stranger = Token::unknown();
    let refused = site.run(
        &["dlq", "list", "--broker-listen", &broker],
        Some(&stranger),
    );
    assert_eq!(refused.code, 1, "{}", refused.text);
    let hint = "a token was sent, because authentication is on in this configuration: check that it is the broker's \
                configuration (--config), and that the token is valid there (--token-file)";
    assert!(refused.text.contains(hint), "{}", refused.text);
    up.stop();
}
