//! Records that are large or deceptive, written straight to the program's topics.

use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use sha2::{Digest as _, Sha256};
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash, Timestamp,
};
use waybill_messages::headers::{CUT_BYTES, CUT_SHA256, ERRORS_OFFSET, ERRORS_TOPIC};
use waybill_messages::{DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Record as _};
use waybill_test_support::batches::set_topic;

use super::replies::WORKFLOW;
use super::*;

/// Close to what the topics accept.
const WHOLE_BYTES: usize = RECORD_BYTES_MAX as usize - 1_024;
/// More than a dead-letter topic accepts.
const CUT: usize = DEAD_LETTER_BYTES_MAX as usize + 50_000;

fn client<C: rdkafka::config::FromClientConfig>(site: &Site) -> C {
    ClientConfig::new()
        .set("bootstrap.servers", site.address("broker").to_string())
        .set("group.id", format!("reader-{}", uuid::Uuid::new_v4()))
        .set("auto.offset.reset", "earliest")
        .set("message.max.bytes", "4000000")
        .set("message.timeout.ms", "30000")
        .create()
        .unwrap()
}

async fn send(producer: &FutureProducer, topic: &str, key: &str, value: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let record = FutureRecord::to(topic).partition(0).key(key).payload(value);
        let sent = producer.send(record, Timeout::After(PATIENCE)).await;
        let Err((error, _)) = sent else { return };
        // A setting may take effect a moment later.
        assert!(Instant::now() < deadline, "{topic}: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct DeadLetter {
    partition: i32,
    offset: i64,
    value: Vec<u8>,
    headers: HashMap<String, String>,
}

fn read_dead_letter(consumer: &BaseConsumer, what: &str) -> DeadLetter {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{what}: no dead letter came");
        // Errors occur while a group or a connection is starting.
        let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let headers = record.headers().into_iter().flat_map(|all| all.iter());
        let text = |value| String::from_utf8_lossy(value).into_owned();
        let headers = headers
            .map(|header| {
                let value = header.value.unwrap_or_default();
                (header.key.to_owned(), text(value))
            })
            .collect();
        return DeadLetter {
            partition: record.partition(),
            offset: record.offset(),
            value: record.payload().unwrap_or_default().to_vec(),
            headers,
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_of_every_size_gets_one_dead_letter_on_every_topic() {
    for broker in Broker::all() {
        let site = Site::start_at(broker);
        site.deliver("before-large-poison").await;
        for topic in TOPICS {
            large_poison_gets_one_dead_letter(&site, topic).await;
        }
        site.deliver("behind-large-poison").await;
        site.remove().await;
    }
}

async fn large_poison_gets_one_dead_letter(site: &Site, topic: &str) {
    let producer: FutureProducer = client(site);
    let consumer: BaseConsumer = client(site);
    let name = site.topic(topic);
    consumer.subscribe(&[&format!("{name}.dlq")]).unwrap();
    let whole = vec![b'w'; WHOLE_BYTES];
    send(&producer, &name, "poison", &whole).await;
    let DeadLetter { value, headers, .. } = read_dead_letter(&consumer, topic);
    assert!(value == whole, "{topic}: it is unchanged");
    assert_eq!(headers[ERRORS_TOPIC], name);
    assert!(!headers.contains_key(CUT_BYTES), "{topic}: {headers:?}");

    // Somebody has raised the limit of the topic, and not that of its dead-letter topic.
    let code = set_topic(
        site.address("broker"),
        &name,
        "max.message.bytes",
        "4000000",
    );
    assert_eq!(code, 0, "{topic}");
    let large = vec![b'c'; CUT];
    send(&producer, &name, "poison", &large).await;
    let DeadLetter { value, headers, .. } = read_dead_letter(&consumer, topic);
    assert!(value.len() < large.len() && large.starts_with(&value));
    let hash = Sha256::digest(&large);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(headers[CUT_SHA256], hash, "{topic}");
    assert_eq!(headers[CUT_BYTES], CUT.to_string(), "{topic}");
    assert!(headers.contains_key(ERRORS_OFFSET), "{topic}: {headers:?}");
    let dead_letters = format!("{name}.dlq");
    let (_, end) = consumer
        .fetch_watermarks(&dead_letters, 0, PATIENCE)
        .unwrap();
    assert_eq!(end, 2, "{topic}: one for each");
}

/// IDs that look like others, or reverse the text after them.
const DECEPTIVE: [&str; 2] = ["order\u{202e}1", "order\u{200b}1"];

#[tokio::test(flavor = "multi_thread")]
async fn an_id_with_invisible_characters_is_refused_and_never_shown_as_it_is() {
    let site = Site::start_with(&Options {
        workflows: &[("vault.yaml", WORKFLOW)],
        ..Options::default()
    });
    site.ready().await;
    for id in DECEPTIVE {
        let order = json!({"workflow": "vault", "id": id, "input": {}});
        let request = site.http.post(site.url("http", "/v1/operations"));
        let answer = request.json(&order).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY, "{id:?}");
        let page = answer.text().await.unwrap();
        assert!(page.contains("/id"), "{page}");
        assert!(shows_no_invisible_characters(&page), "{page}");
    }

    // Written past the API, it does not reach an engine.
    let producer: FutureProducer = client(&site);
    let consumer: BaseConsumer = client(&site);
    let topic = site.topic("operation-requests.v1");
    consumer.subscribe(&[&format!("{topic}.dlq")]).unwrap();
    let mut place = [String::new(), String::new()];
    for id in DECEPTIVE {
        let operation = OperationId::of_caller("", id);
        send(&producer, &topic, id, &request(operation, id)).await;
        let dead_letter = read_dead_letter(&consumer, id);
        place = [
            dead_letter.partition.to_string(),
            dead_letter.offset.to_string(),
        ];
        let path = format!("/v1/operations/{operation}");
        let (status, page) = site.get("http", &path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{page}");
    }
    for (command, shows_ids) in [
        (&["dlq", "list", "--output", "table"][..], false),
        (&["dlq", "list", "--output", "json"], true),
        (
            &["dlq", "show", "operation-requests", &place[0], &place[1]],
            false,
        ),
    ] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_waybill"));
        run.args(command).arg("--brokers");
        run.arg(site.address("broker").to_string());
        let output = without_variables(&mut run).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(
            shows_no_invisible_characters(&shown),
            "{command:?}: {shown}"
        );
        // As escapes.
        assert!(!shows_ids || shown.contains("order\\u"), "{shown}");
    }
    let log = site.log();
    assert!(shows_no_invisible_characters(&log), "{log}");
}

/// A request for a new operation, as a record.
fn request(operation: OperationId, id: &str) -> Vec<u8> {
    let mut value = Vec::new();
    let request = OperationRequest::Create(CreateRequest {
        operation,
        id_origin: IdOrigin::Caller,
        workflow: "vault".to_owned(),
        tenant: String::new(),
        caller_id: Some(id.to_owned()),
        input: b"{}".to_vec(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([0; 16]),
        verify_hash: false,
        requested_at: Timestamp(1),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    });
    request.encode(&mut value).unwrap();
    value
}

fn shows_no_invisible_characters(text: &str) -> bool {
    !text.contains(['\u{202e}', '\u{200b}'])
}
