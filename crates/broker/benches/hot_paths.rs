//! Counts the instructions of requests in the embedded broker, from the bytes of a frame to those
//! of its answer: produce requests that append to a log, and fetch requests that read it.
//! `.ci/budgets` holds the limits.
//!
//! What must hold: a benchmark does the same whenever and wherever it runs. Its allocator is linked
//! in; the benchmark's own thread alone is counted, and no request of it waits for another one.
//!
//! Deliberately absent: sockets, and syncs, which another thread makes. The kernel's work is not
//! counted.
//!
//! `.ci/budgets/check broker` runs it.

#![expect(missing_docs, reason = "the macros make public items without a word")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use gungraun::prelude::*;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreateTopicsRequest, FetchRequest, ProduceRequest, ProduceResponse, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};
use waybill_broker::{Broker, BrokerSettings};

/// The program's own allocator: the system's costs something else on every system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How many requests are made.
const REQUESTS: usize = 100;

/// How large a record's value is, in bytes.
const VALUE_BYTES: usize = 600;

/// The highest versions that librdkafka speaks with this broker, except for requests not counted.
const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 11;
const CREATE_TOPICS_VERSION: i16 = 7;

const TOPIC: &str = "operation-requests";

// One record is what a quiet producer sends, a hundred are what a busy one gathers.
#[library_benchmark]
#[bench::one_record(args = (1), setup = to_produce)]
#[bench::hundred_records(args = (100), setup = to_produce)]
fn produce(fixture: Fixture) -> Fixture {
    fixture.ask_all()
}

// As above: a consumer that waits gets one record, one that lags behind gets a whole batch.
#[library_benchmark]
#[bench::one_record(args = (1, 1), setup = to_fetch)]
#[bench::hundred_records(args = (100, 64 << 10), setup = to_fetch)]
fn fetch(fixture: Fixture) -> Fixture {
    fixture.ask_all()
}

library_benchmark_group!(name = broker, benchmarks = [produce, fetch]);

main!(library_benchmark_groups = broker);

/// A broker, and the requests to send to it. Their prerequisites are dropped after it.
struct Fixture {
    requests: Vec<Bytes>,
    answers: Vec<Bytes>,
    broker: Broker,
    runtime: Runtime,
    _dir: TempDir,
}

impl Fixture {
    /// A broker with an empty topic of one partition, and no requests yet.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("there is room for a log");
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs little");
        let mut config = BrokerSettings::new(dir.path());
        config.listen = ([127, 0, 0, 1], 0).into();
        // No background work runs while instructions are counted.
        config.retention_interval = Duration::from_secs(24 * 60 * 60);
        let broker = runtime
            .block_on(Broker::start(config))
            .expect("the directory is new, and any port will do");
        let topic = CreatableTopic::default()
            .with_name(topic_name())
            .with_num_partitions(1)
            .with_replication_factor(1);
        let create = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(60_000);
        runtime
            .block_on(broker.answer(frame(CREATE_TOPICS_VERSION, &create)))
            .expect("a new topic is answered");
        Self {
            requests: Vec::new(),
            answers: Vec::with_capacity(REQUESTS),
            broker,
            runtime,
            _dir: dir,
        }
    }

    /// Sends every request and waits for its answer, one after the other.
    fn ask_all(mut self) -> Self {
        for request in std::mem::take(&mut self.requests) {
            let answer = pin!(self.broker.answer(request));
            let Poll::Ready(answer) = answer.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("no request here has to wait");
            };
            self.answers
                .push(answer.expect("every request here is answered"));
        }
        self
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // The broker's tasks end on its runtime.
        let _entered = self.runtime.enter();
    }
}

fn to_produce(records: usize) -> Fixture {
    let mut fixture = Fixture::new();
    // The first request creates what the broker creates on demand.
    fixture.requests = vec![produce_request(records)];
    fixture = fixture.ask_all();
    check_produced(fixture.answers.remove(0));
    fixture.requests = (0..REQUESTS).map(|_| produce_request(records)).collect();
    fixture
}

/// A log of batches of `records` records, and requests for `bytes` of it from the start of a batch.
fn to_fetch(records: usize, bytes: i32) -> Fixture {
    let mut fixture = to_produce(records).ask_all();
    fixture.requests = vec![fetch_request(0, bytes)];
    fixture = fixture.ask_all();
    let answered = fixture.answers.last().expect("it was answered").len();
    assert!(
        answered > records * VALUE_BYTES,
        "records are in the answer"
    );
    fixture.answers.clear();
    let offsets = (0..REQUESTS).map(|batch| batch * records);
    fixture.requests = offsets
        .map(|offset| fetch_request(i64::try_from(offset).expect("the number is small"), bytes))
        .collect();
    fixture
}

/// Fails unless the broker took the records: otherwise something else would be counted.
fn check_produced(mut answer: Bytes) {
    // Its length; the correlation id and the tags of its header.
    answer.advance(4 + 5);
    let answer = ProduceResponse::decode(&mut answer, PRODUCE_VERSION).expect("it is an answer");
    let error_code = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(error_code, 0, "{answer:?}");
}

fn produce_request(records: usize) -> Bytes {
    let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
    let records: Vec<_> = (0..i32::try_from(records).expect("the number is small"))
        .map(|number| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            timestamp_type: TimestampType::Creation,
            offset: number.into(),
            // The encoder begins another batch where sequences do not rise with offsets.
            sequence: NO_SEQUENCE + number,
            timestamp: 1_760_000_000_000,
            key: Some(Bytes::from_static(b"0190b1e2-3c4d-7e5f-8a9b-0c1d2e3f4a5b")),
            value: Some(value.clone()),
            headers: [].into_iter().collect(),
        })
        .collect();
    let mut batch = BytesMut::new();
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    RecordBatchEncoder::encode(&mut batch, &records, &options).expect("they are ordinary records");
    let partition = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(batch.freeze()));
    let topic = TopicProduceData::default()
        .with_name(topic_name())
        .with_partition_data(vec![partition]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(60_000)
        .with_topic_data(vec![topic]);
    frame(PRODUCE_VERSION, &request)
}

fn fetch_request(offset: i64, bytes: i32) -> Bytes {
    let partition = FetchPartition::default()
        .with_partition(0)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(bytes);
    let topic = FetchTopic::default()
        .with_topic(topic_name())
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(10 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    frame(FETCH_VERSION, &request)
}

fn topic_name() -> TopicName {
    TopicName(StrBytes::from_static_str(TOPIC))
}

/// A request's frame, preceded by its length.
fn frame<R: Request>(version: i16, request: &R) -> Bytes {
    let mut frame = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(1)
        .with_client_id(Some(StrBytes::from_static_str("benchmark")));
    header
        .encode(&mut frame, R::header_version(version))
        .and_then(|()| request.encode(&mut frame, version))
        .expect("the version has a place for every field");
    frame.freeze()
}
