//! Requests that another program writes straight to their topic: valid ones work as over HTTP, and
//! invalid ones go to the dead-letter topic.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, OperationStatus, RequestHash,
    StatusKind, Timestamp, partition_for,
};
use waybill_messages::Record as _;
use waybill_test_support::process::{Process, log_tail, without_variables};

use crate::shop::{PATIENCE, get, root, wait_until};

const REQUESTS: &str = "waybill.operation-requests.v1";
const DEAD: &str = "waybill.operation-requests.v1.dlq";
const STATUSES: &str = "waybill.operation-status.v1";
const ALERTS: &str = "waybill.operator-alerts.v1";
const PARTITIONS: u32 = 4;

/// A default `waybill up`, and an independent producer.
struct Setup {
    http: SocketAddr,
    client: ClientConfig,
    producer: BaseProducer,
    _process: Process,
    dir: TempDir,
}

impl Setup {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        without_variables(&mut command)
            .current_dir(root())
            .arg("up")
            .arg("--data-dir")
            .arg(dir.path().join("data"));
        for flag in ["--http", "--admin", "--broker-listen", "--services"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        let announces = ["http", "broker"];
        let (process, addresses) = Process::start(command, &announces, &dir.path().join("log.txt"));
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", addresses["broker"].to_string());
        Self {
            http: addresses["http"],
            producer: client.create().unwrap(),
            client,
            _process: process,
            dir,
        }
    }

    /// Writes a request to its own partition.
    fn write(&self, create: CreateRequest) {
        let key = create.operation.key();
        let home = partition_for(create.operation, PARTITIONS).0;
        self.write_to(home, &key, create);
    }

    fn write_to(&self, partition: u32, key: &[u8], create: CreateRequest) {
        let mut value = Vec::new();
        OperationRequest::Create(create).encode(&mut value).unwrap();
        let record = BaseRecord::to(REQUESTS)
            .partition(i32::try_from(partition).unwrap())
            .key(key)
            .payload(&value);
        self.producer
            .send(record)
            .map_err(|(error, _)| error)
            .unwrap();
        self.producer.flush(PATIENCE).unwrap();
    }

    fn operation(&self, id: &str) -> Option<Value> {
        get(self.http, &format!("/v1/operations/{id}")).ok()
    }

    fn wait_for_state(&self, id: &str, state: &str) {
        let log = || log_tail(&self.dir.path().join("log.txt"));
        wait_until(&format!("{id} is {state}\n{}", log()), || {
            self.operation(id)
                .is_some_and(|operation| operation["state"] == state)
        });
    }

    /// The number of records on a topic.
    fn count(&self, topic: &str) -> i64 {
        let consumer: BaseConsumer = self.client.create().unwrap();
        let ends = |partition| {
            let ends = consumer.fetch_watermarks(topic, partition, PATIENCE);
            ends.unwrap().1
        };
        (0..i32::try_from(PARTITIONS).unwrap()).map(ends).sum()
    }

    /// The first `count` records on a topic.
    fn read(&self, topic: &str, count: usize) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = self
            .client
            .clone()
            .set("group.id", format!("direct-requests-{topic}-{count}"))
            .set("auto.offset.reset", "earliest")
            .create()
            .unwrap();
        consumer.subscribe(&[topic]).unwrap();
        let mut records = Vec::new();
        wait_until(&format!("{topic} has {count} records"), || {
            while let Some(record) = consumer.poll(Duration::from_millis(50)) {
                records.extend(record.ok().map(|record| record.detach()));
            }
            records.len() >= count
        });
        records
    }

    /// Posts a delivery and returns the status.
    fn post(&self, body: &Value) -> u16 {
        let output = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}"])
            .args(["-H", "Content-Type: application/json", "-d"])
            .arg(body.to_string())
            .arg(format!("http://{}/api/deliveryrequests", self.http))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().parse().unwrap()
    }
}

fn delivery() -> Value {
    json!({
        "ownerId": "ada", "pickupLocation": "12 Harbour Street", "dropOffLocation": "7 Hill Road",
        "packageInfo": {"packageId": "p-1", "size": "Small", "weight": 1.5},
    })
}

/// A delivery with the caller's ID and the minimum of fields.
fn request(caller_id: &str, input: &Value) -> CreateRequest {
    CreateRequest {
        operation: OperationId::of_caller("", caller_id),
        id_origin: IdOrigin::Caller,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: Some(caller_id.to_owned()),
        input: input.to_string().into_bytes(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([0; 16]),
        verify_hash: false,
        requested_at: Timestamp(jiff::Timestamp::now().as_microsecond()),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    }
}

#[test]
fn a_request_on_the_topic_is_treated_like_one_over_http() {
    let setup = Setup::start();
    setup.write(request("d-1", &delivery()));
    setup.wait_for_state("d-1", "Processed");

    // Over HTTP an equal request is a repeat, and a different one is a conflict.
    let mut body = delivery();
    body["deliveryId"] = "d-1".into();
    assert_eq!(setup.post(&body), 200);
    body["packageInfo"]["size"] = "Large".into();
    assert_eq!(setup.post(&body), 409);

    // Twice on the topic, the second time with another body: the first one counts.
    setup.write(request("d-1", &delivery()));
    let mut other = delivery();
    other["ownerId"] = "bob".into();
    setup.write(request("d-1", &other));
    let statuses = setup.read(STATUSES, 2);
    let kinds: Vec<StatusKind> = statuses
        .iter()
        .map(|record| {
            OperationStatus::decode(record.payload().unwrap())
                .unwrap()
                .kind
        })
        .collect();
    assert_eq!(kinds, [StatusKind::Final, StatusKind::Rejected]);

    // A request in another partition is rerouted.
    let away = request("d-2", &delivery());
    let key = away.operation.key();
    let home = partition_for(away.operation, PARTITIONS).0;
    setup.write_to((home + 1) % PARTITIONS, &key, away);
    setup.wait_for_state("d-2", "Processed");

    // A request for an unknown workflow gets an operation that reports it.
    let unknown = CreateRequest {
        workflow: "no-such".to_owned(),
        ..request("d-3", &json!({}))
    };
    setup.write(unknown);
    setup.wait_for_state("d-3", "Error");
    assert_eq!(
        setup.operation("d-3").unwrap()["error"]["code"],
        "workflow-unknown"
    );

    // A passed deadline ends an operation that has not begun anything.
    let mut overdue = request("d-4", &delivery());
    overdue.deadline = Some(Timestamp(overdue.requested_at.as_micros() + 1));
    setup.write(overdue);
    setup.wait_for_state("d-4", "Compensated");
    let operation = setup.operation("d-4").unwrap();
    assert_eq!(operation["error"]["code"], "deadline-unreachable");
    assert_eq!(operation["steps"][0]["state"], "NotStarted");
    assert_eq!(setup.count(DEAD), 0);
}

#[test]
fn a_bad_request_ends_in_the_dead_letter_topic_with_its_cause() {
    let setup = Setup::start();
    let mut huge = delivery();
    huge["packageInfo"]["size"] = "Huge".into();
    let mut late = request("late", &delivery());
    late.deadline = Some(late.requested_at);
    let elsewhere = CreateRequest {
        tenant: "another".to_owned(),
        ..request("elsewhere", &delivery())
    };
    let no_object = CreateRequest {
        workflow: "anything".to_owned(),
        ..request("no-object", &json!([1]))
    };
    for bad in [request("huge", &huge), late, elsewhere, no_object] {
        setup.write(bad);
    }
    let other_key = request("other-key", &delivery());
    let home = partition_for(other_key.operation, PARTITIONS).0;
    setup.write_to(home, b"order-17", other_key);

    let causes: Vec<String> = setup
        .read(DEAD, 5)
        .iter()
        .map(|dead_letter| {
            let headers = dead_letter.headers().unwrap();
            let cause = headers
                .iter()
                .find(|header| header.key == "__connect.errors.exception.message");
            String::from_utf8(cause.unwrap().value.unwrap().to_vec()).unwrap()
        })
        .collect();
    for expected in [
        "the request is refused: input/packageInfo/size: must be one of Small, Medium, Large",
        "the request is refused: deadline: must be later than requested_at",
        "the request is refused: operation: must be ",
        "the request is refused: input: must be a JSON object",
        "the record's key is not the id of its operation, ",
    ] {
        let matching = causes.iter().filter(|cause| cause.starts_with(expected));
        assert_eq!(matching.count(), 1, "{expected} in {causes:?}");
    }
    for id in ["huge", "late", "no-object", "other-key"] {
        assert_eq!(setup.operation(id), None, "{id}");
    }
    // The partitions continue.
    for n in 0..8 {
        setup.write(request(&format!("good-{n}"), &delivery()));
    }
    for n in 0..8 {
        setup.wait_for_state(&format!("good-{n}"), "Processed");
    }
}

#[test]
fn a_request_cannot_have_its_status_written_to_a_topic_that_is_not_allowed() {
    let setup = Setup::start();
    let sly = CreateRequest {
        reply_to: Some(ALERTS.to_owned()),
        ..request("sly", &delivery())
    };
    setup.write(sly);
    setup.wait_for_state("sly", "Processed");
    // After a later operation of the same producer has ended, all earlier records were sent.
    let statuses = setup.read(STATUSES, 1);
    assert_eq!(statuses.len(), 1);
    assert_eq!(setup.count(ALERTS), 0);
}
