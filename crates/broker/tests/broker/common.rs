//! Shared by the broker's tests: brokers in temporary directories, ordinary Kafka clients, and a
//! client that speaks the protocol frame by frame.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::FutureProducer;
use rdkafka::{Offset, TopicPartitionList};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use waybill_broker::{Broker, BrokerSettings};

/// Longer than anything here takes; only a failing test waits for it.
pub const BOUND: Duration = Duration::from_secs(60);

/// A broker on a free port, with its data in `dir`.
pub async fn broker_with(dir: &Path, change: impl FnOnce(&mut BrokerSettings)) -> Broker {
    let mut config = BrokerSettings::new(dir);
    config.listen = "127.0.0.1:0".parse().unwrap();
    change(&mut config);
    Broker::start(config).await.unwrap()
}

pub async fn broker(dir: &Path) -> Broker {
    broker_with(dir, |_| {}).await
}

pub fn client(address: SocketAddr, settings: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address.to_string());
    config.set("linger.ms", "0");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    config
}

pub fn producer(address: SocketAddr, settings: &[(&str, &str)]) -> FutureProducer {
    client(address, settings).create().unwrap()
}

pub async fn create_topic(
    address: SocketAddr,
    name: &str,
    partitions: i32,
    settings: &[(&str, &str)],
) {
    let admin: AdminClient<DefaultClientContext> = client(address, &[]).create().unwrap();
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        topic = topic.set(name, value);
    }
    let created = admin
        .create_topics([&topic], &AdminOptions::new())
        .await
        .unwrap();
    created.into_iter().for_each(|created| {
        created.unwrap();
    });
}

/// A record as tests compare it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub partition: i32,
    pub offset: i64,
    pub payload: Vec<u8>,
}

/// Reads `count` records of the partitions `0..partitions` from their starts.
pub async fn read(address: SocketAddr, topic: &str, partitions: i32, count: usize) -> Vec<Seen> {
    read_from(address, topic, partitions, Offset::Beginning, count).await
}

pub async fn read_from(
    address: SocketAddr,
    topic: &str,
    partitions: i32,
    offset: Offset,
    count: usize,
) -> Vec<Seen> {
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || {
        let settings = [("group.id", "unused"), ("auto.offset.reset", "error")];
        let consumer: BaseConsumer = client(address, &settings).create().unwrap();
        let mut assigned = TopicPartitionList::new();
        for partition in 0..partitions {
            assigned
                .add_partition_offset(&topic, partition, offset)
                .unwrap();
        }
        consumer.assign(&assigned).unwrap();
        let deadline = Instant::now() + BOUND;
        let mut seen = Vec::new();
        while seen.len() < count {
            assert!(
                Instant::now() < deadline,
                "{} of {count} records",
                seen.len()
            );
            if let Some(record) = consumer.poll(Duration::from_millis(100)) {
                let record = record.unwrap();
                seen.push(Seen {
                    partition: record.partition(),
                    offset: record.offset(),
                    payload: record.payload().unwrap_or_default().to_vec(),
                });
            }
        }
        seen
    })
    .await
    .unwrap()
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition().await {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A client that sends exactly what a test specifies.
pub struct Wire {
    pub stream: TcpStream,
    correlation_id: i32,
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            correlation_id: 0,
        }
    }

    /// Sends a request; returns its correlation id.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.correlation_id += 1;
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("wire")))
            .encode(&mut frame, R::header_version(version))
            .unwrap();
        request.encode(&mut frame, version).unwrap();
        let length = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&frame).await.unwrap();
        self.correlation_id
    }

    /// Sends raw bytes as one frame.
    pub async fn send_frame(&mut self, bytes: &[u8]) {
        let mut frame = BytesMut::new();
        frame.put_i32(bytes.len() as i32);
        frame.put_slice(bytes);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// The next frame; `None` if the broker has closed the connection.
    pub async fn frame(&mut self) -> Option<Bytes> {
        let receive = async {
            let length = self.stream.read_i32().await.ok()?;
            let mut frame = vec![0; length as usize];
            self.stream.read_exact(&mut frame).await.ok()?;
            Some(Bytes::from(frame))
        };
        tokio::time::timeout(BOUND, receive)
            .await
            .expect("the broker answers")
    }

    /// The next answer, which is of this kind.
    pub async fn receive<R: Decodable + HeaderVersion>(&mut self, version: i16) -> (i32, R) {
        let mut frame = self.frame().await.expect("an answer");
        let header = ResponseHeader::decode(&mut frame, R::header_version(version)).unwrap();
        let answer = R::decode(&mut frame, version).unwrap();
        assert_eq!(frame.remaining(), 0, "the answer ends where its frame does");
        (header.correlation_id, answer)
    }

    /// Sends a request and waits for its answer.
    pub async fn ask<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let sent = self.send(version, request).await;
        let (answered, answer) = self.receive::<R::Response>(version).await;
        assert_eq!(answered, sent);
        answer
    }

    /// Produces one batch to partition 0 with acks=all.
    pub async fn produce(&mut self, topic: &str, batch: &[u8]) -> PartitionProduceResponse {
        let mut answer: ProduceResponse = self.ask(9, &produce_request(topic, -1, batch)).await;
        answer.responses.remove(0).partition_responses.remove(0)
    }
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

pub fn produce_request(topic: &str, acks: i16, batch: &[u8]) -> ProduceRequest {
    let data = PartitionProduceData::default().with_records(Some(Bytes::copy_from_slice(batch)));
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1_000)
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(topic_name(topic))
                .with_partition_data(vec![data]),
        ])
}

/// A batch of one record with `payload`, as an idempotent producer sends it (or, with producer -1,
/// an ordinary one).
pub fn batch_of(producer: i64, epoch: i16, sequence: i32, timestamp: i64, payload: &[u8]) -> Bytes {
    let mut record = BytesMut::new();
    record.put_i8(0);
    put_varint(&mut record, 0);
    put_varint(&mut record, 0);
    put_varint(&mut record, -1);
    put_varint(&mut record, payload.len() as i64);
    record.put_slice(payload);
    put_varint(&mut record, 0);
    let mut checked = BytesMut::new();
    checked.put_i16(0);
    checked.put_i32(0);
    checked.put_i64(timestamp);
    checked.put_i64(timestamp);
    checked.put_i64(producer);
    checked.put_i16(epoch);
    checked.put_i32(sequence);
    checked.put_i32(1);
    put_varint(&mut checked, record.len() as i64);
    checked.put_slice(&record);
    let mut batch = BytesMut::new();
    batch.put_i64(0);
    batch.put_i32(checked.len() as i32 + 9);
    batch.put_i32(-1);
    batch.put_i8(2);
    batch.put_u32(crc32c::crc32c(&checked));
    batch.put_slice(&checked);
    batch.freeze()
}

/// A batch of one record of this moment, without a producer id.
pub fn plain(payload: &[u8]) -> Bytes {
    batch_of(-1, -1, -1, now_ms(), payload)
}

pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    now.as_millis() as i64
}

fn put_varint(out: &mut BytesMut, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        out.put_u8(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag as u8);
}
