//! Requests that this crate's clients never send, frame by frame.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{
    CreateAclsRequest, FetchRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{
    Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes,
};
use kafka_protocol::records::{
    Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions,
};
use waybill_kafka::KafkaSettings;
use waybill_test_support::batches::produce;

use crate::support::PATIENCE;

/// Appends records, in one batch, to partition 0 of a topic.
pub(crate) fn append(settings: &KafkaSettings, topic: &str, records: &[Record]) {
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut batch = BytesMut::new();
    RecordBatchEncoder::encode(&mut batch, records, &options).unwrap();
    append_batch(settings, topic, &batch);
}

/// Appends a batch with any contents to partition 0 of a topic.
pub(crate) fn append_batch(settings: &KafkaSettings, topic: &str, batch: &[u8]) {
    assert_eq!(produce(&settings.brokers, topic, batch), 0);
}

/// A record of a batch, with an empty key. All its lengths take one byte.
pub(crate) fn record(delta: u8, value: &[u8]) -> Vec<u8> {
    record_of(delta, u8::try_from(value.len()).unwrap() * 2, value)
}

/// A record whose value has the length -2: Apache Kafka keeps it, and librdkafka cannot parse it.
pub(crate) fn poison_record(delta: u8) -> Vec<u8> {
    record_of(delta, POISON_LENGTH, b"")
}

/// The length -2 as a record has it.
pub(crate) const POISON_LENGTH: u8 = 3;

fn record_of(delta: u8, value_length: u8, value: &[u8]) -> Vec<u8> {
    let body = [&[0, 0, delta * 2, 0, value_length], value, &[0]].concat();
    let length = u8::try_from(body.len()).unwrap() * 2;
    [&[length], &body[..]].concat()
}

/// The records of partition 0 of a topic, including those that a consumer does not see.
pub(crate) fn fetch(settings: &KafkaSettings, topic: &str) -> Vec<Record> {
    let partition = FetchPartition::default()
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_min_bytes(1)
        .with_max_wait_ms(10_000)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let mut answer = ask(settings, 11, &request);
    let partition = answer.responses.remove(0).partitions.remove(0);
    assert_eq!(partition.error_code, 0);
    let sets = RecordBatchDecoder::decode_all(&mut partition.records.unwrap()).unwrap();
    sets.into_iter().flat_map(|set| set.records).collect()
}

/// Resource types of access rights, by Kafka's numbers.
#[derive(Clone, Copy)]
pub(crate) enum On {
    Topics = 2,
    Groups = 3,
}

/// Operations that a right allows, by Kafka's numbers.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    Read = 3,
    Write = 4,
    Create = 5,
    Describe = 8,
    DescribeConfigs = 10,
}

/// Gives a user rights on all resources whose names have this prefix.
pub(crate) fn allow(settings: &KafkaSettings, user: &str, on: On, prefix: &str, rights: &[Right]) {
    const PREFIXED: i8 = 4;
    const ALLOW: i8 = 3;
    let acl = |right: &Right| {
        AclCreation::default()
            .with_resource_type(on as i8)
            .with_resource_name(StrBytes::from_string(prefix.to_owned()))
            .with_resource_pattern_type(PREFIXED)
            .with_principal(StrBytes::from_string(format!("User:{user}")))
            .with_host(StrBytes::from_static_str("*"))
            .with_operation(*right as i8)
            .with_permission_type(ALLOW)
    };
    let request = CreateAclsRequest::default().with_creations(rights.iter().map(acl).collect());
    let answer = ask(settings, 2, &request);
    let made = answer.results.iter().all(|result| result.error_code == 0);
    assert!(made, "{answer:?}");
}

fn ask<R: Request>(settings: &KafkaSettings, version: i16, request: &R) -> R::Response {
    let mut body = BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .encode(&mut body, R::header_version(version))
        .unwrap();
    request.encode(&mut body, version).unwrap();
    let mut broker = TcpStream::connect(&settings.brokers).unwrap();
    broker.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = u32::try_from(body.len()).unwrap();
    broker.write_all(&length.to_be_bytes()).unwrap();
    broker.write_all(&body).unwrap();
    let mut length = [0; 4];
    broker.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    broker.read_exact(&mut answer).unwrap();
    let mut answer = Bytes::from(answer);
    ResponseHeader::decode(&mut answer, R::Response::header_version(version)).unwrap();
    R::Response::decode(&mut answer, version).unwrap()
}

fn topic_name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}
