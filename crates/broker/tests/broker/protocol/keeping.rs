//! What is stored on disk, for how long, and what happens when it cannot be.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use rdkafka::producer::FutureRecord;
use rdkafka::util::Timeout;
use waybill_broker::{Broker, StartError};

use super::*;
use crate::common::*;

#[tokio::test]
async fn retention_deletes_closed_segments_by_size_and_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.retention_interval = Duration::from_millis(50);
    })
    .await;
    let mut wire = Wire::connect(broker.address()).await;
    let by_size = [
        ("segment.bytes", "2000"),
        ("retention.bytes", "4000"),
        ("retention.ms", "-1"),
    ];
    create(&mut wire, "size", 1, &by_size).await;
    for n in 0..100_u8 {
        wire.produce("size", &plain(&[n; 400])).await;
    }
    until("the log is short", async || {
        segments(dir.path(), "size").len() <= 4
    })
    .await;
    let earliest = offset_at(&mut wire, "size", -2).await;
    assert!((80..100).contains(&earliest), "{earliest}");
    assert_eq!(fetch(&mut wire, "size", earliest).await.error_code, 0);
    let gone = fetch(&mut wire, "size", earliest - 1).await.error_code;
    assert_eq!(gone, code(ResponseError::OffsetOutOfRange));

    create(&mut wire, "age", 1, &[("retention.ms", "200")]).await;
    for n in 0..10_u8 {
        wire.produce("age", &plain(&[n])).await;
    }
    until("all records were deleted", async || {
        offset_at(&mut wire, "age", -2).await == 10
    })
    .await;
    assert!(broker.shutdown().await);
    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(offset_at(&mut wire, "age", -2).await, 10);
    let fresh = plain(b"fresh");
    assert_eq!(wire.produce("age", &fresh).await.base_offset, 10);
    assert_eq!(fetch(&mut wire, "age", 10).await.high_watermark, 11);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn records_with_old_timestamps_are_kept_as_long_as_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.retention_interval = Duration::from_millis(50);
    })
    .await;
    let mut wire = Wire::connect(broker.address()).await;
    // The first are of 1970, as on a machine that has booted with an old clock.
    let settings = [("segment.bytes", "1024"), ("retention.ms", "600000")];
    create(&mut wire, "old", 1, &settings).await;
    for n in 0..20_u8 {
        wire.produce("old", &batch_of(-1, -1, -1, 1_000, &[n; 200]))
            .await;
    }
    wire.produce("old", &plain(b"of today")).await;
    let by_size = [("segment.bytes", "1024"), ("retention.bytes", "1024")];
    create(&mut wire, "size", 1, &by_size).await;
    for n in 0..20_u8 {
        wire.produce("size", &plain(&[n; 200])).await;
    }
    until("retention has been applied", async || {
        offset_at(&mut wire, "size", -2).await > 0
    })
    .await;
    assert_eq!(offset_at(&mut wire, "old", -2).await, 0);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn deleted_records_stay_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "2000")]).await;
    for n in 0..100_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    let full = broker.stats().log_bytes;
    assert_eq!(delete_before(&mut wire, "t", 50).await, (0, 50));
    assert_eq!(
        delete_before(&mut wire, "t", 20).await,
        (0, 50),
        "it never moves back"
    );
    let too_far = delete_before(&mut wire, "t", 101).await;
    assert_eq!(too_far, (code(ResponseError::OffsetOutOfRange), -1));
    assert_eq!(offset_at(&mut wire, "t", -2).await, 50);
    assert_eq!(offset_at(&mut wire, "t", 0).await, 50, "by time, too");
    let gone = fetch(&mut wire, "t", 49).await.error_code;
    assert_eq!(gone, code(ResponseError::OffsetOutOfRange));
    assert!(broker.stats().log_bytes <= full / 2 + 2_000);
    assert!(broker.shutdown().await);

    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(offset_at(&mut wire, "t", -2).await, 50);
    assert_eq!(delete_before(&mut wire, "t", -1).await, (0, 100));
    assert_eq!(
        broker.stats().log_bytes,
        0,
        "an active segment without a record to keep goes too"
    );
    assert_eq!(wire.produce("t", &plain(b"x")).await.base_offset, 100);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_topic_at_its_disk_bound_refuses_records_for_good_and_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let bound = [
        ("waybill.disk.bytes.max", "10000"),
        ("segment.bytes", "2000"),
    ];
    create(&mut wire, "t", 1, &bound).await;
    let mut taken = 0;
    let refused = loop {
        let answer = wire.produce("t", &plain(&[0; 400])).await;
        if answer.error_code != 0 {
            break answer;
        }
        taken += 1;
    };
    assert_eq!(refused.error_code, code(ResponseError::PolicyViolation));
    assert!(
        refused
            .error_message
            .unwrap()
            .contains("waybill.disk.bytes.max")
    );
    assert!(broker.stats().log_bytes <= 10_000 && taken > 15);
    assert_eq!(offset_at(&mut wire, "t", -2).await, 0);

    let producer = producer(broker.address(), &[]);
    let record = FutureRecord::<(), _>::to("t").payload(&[0; 400][..]);
    let started = Instant::now();
    let (error, _) = producer
        .send(record, Timeout::After(BOUND))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("PolicyViolation"), "{error}");
    assert!(started.elapsed() < BOUND / 4, "it was not tried again");

    assert_eq!(delete_before(&mut wire, "t", 10).await, (0, 10));
    assert_eq!(
        wire.produce("t", &plain(&[0; 400])).await.error_code,
        0,
        "space was freed"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn topics_refuse_records_on_a_low_disk_only_if_configured() {
    let dir = tempfile::tempdir().unwrap();
    let low = Arc::new(AtomicBool::new(false));
    let broker = broker_with(dir.path(), |config| config.low_on_disk = Arc::clone(&low)).await;
    let mut wire = Wire::connect(broker.address()).await;
    let refuse = [("waybill.disk.low.refuse", "true")];
    create(&mut wire, "requests", 1, &refuse).await;
    let bound = [("waybill.disk.bytes.max", "1000000")];
    create(&mut wire, "replies", 1, &bound).await;
    assert_eq!(wire.produce("requests", &plain(b"a")).await.error_code, 0);

    low.store(true, Ordering::Relaxed);
    let refused = wire.produce("requests", &plain(b"b")).await;
    assert_eq!(refused.error_code, code(ResponseError::PolicyViolation));
    let message = refused.error_message.unwrap();
    assert!(message.contains("storage.freeMin"), "{message:?}");
    assert_eq!(wire.produce("replies", &plain(b"c")).await.error_code, 0);

    low.store(false, Ordering::Relaxed);
    let taken = wire.produce("requests", &plain(b"b")).await;
    assert_eq!((taken.error_code, taken.base_offset), (0, 1));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_changed_setting_takes_effect_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let alter = |name: &'static str, value: &'static str| {
        let setting = AlterableConfig::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(StrBytes::from_static_str(value)));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("t"))
            .with_configs(vec![setting]);
        IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
    };
    let answer = wire.ask(1, &alter("max.message.bytes", "100")).await;
    assert_eq!(answer.responses[0].error_code, 0);
    let answer = wire.ask(1, &alter("max.message.bites", "100")).await;
    assert_eq!(
        answer.responses[0].error_code,
        code(ResponseError::InvalidConfig)
    );
    assert!(broker.shutdown().await);
    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let too_large = wire.produce("t", &plain(&[0; 100])).await.error_code;
    assert_eq!(too_large, code(ResponseError::MessageTooLarge));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_second_broker_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut config = waybill_broker::BrokerSettings::new(dir.path());
    config.listen = "127.0.0.1:0".parse().unwrap();
    let refused = Broker::start(config.clone()).await.unwrap_err();
    assert!(
        matches!(&refused, StartError::Locked { path } if path == dir.path()),
        "{refused}"
    );
    config.listen = broker.address();
    config.data_dir = dir.path().join("other");
    assert!(matches!(
        Broker::start(config).await,
        Err(StartError::Listen { .. })
    ));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_partition_whose_disk_fails_goes_offline() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let settings = [("flush.messages", "1"), ("segment.bytes", "2000")];
    create(&mut wire, "lost", 1, &settings).await;
    create(&mut wire, "kept", 1, &settings).await;
    // A removed directory takes no new segment.
    fs::remove_dir_all(dir.path().join("logs/lost")).unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..10 {
        outcomes.push(wire.produce("lost", &plain(&[0; 400])).await.error_code);
    }
    let failed = outcomes.iter().position(|&outcome| outcome != 0).unwrap();
    let expected = code(ResponseError::KafkaStorageError);
    assert!(
        outcomes[failed..]
            .iter()
            .all(|&outcome| outcome == expected),
        "{outcomes:?}"
    );
    let failure = tokio::time::timeout(BOUND, broker.failed()).await.unwrap();
    assert!(failure.to_string().contains("topic lost"), "{failure}");
    assert_eq!(fetch(&mut wire, "lost", 0).await.error_code, expected);
    assert_eq!(
        wire.produce("kept", &plain(b"x")).await.error_code,
        0,
        "other topics accept records"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn closed_segments_that_lost_their_index_are_read_once_and_get_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "2000")]).await;
    for n in 0..40_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    let indexes = || {
        let segments = segments(dir.path(), "t");
        segments
            .iter()
            .map(|path| path.with_extension("index"))
            .collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert!(broker.shutdown().await);
        assert!(indexes().iter().all(|path| path.exists()));
        indexes()
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
        broker = self::broker(dir.path()).await;
        let (_active, closed) = indexes()
            .split_last()
            .map(|(a, c)| (a.clone(), c.to_vec()))
            .unwrap();
        assert!(closed.len() > 5 && closed.iter().all(|path| path.exists()));
        assert_eq!(read(broker.address(), "t", 1, 40).await.len(), 40);
    }
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn the_record_with_the_largest_timestamp_is_found() {
    const MAX_TIMESTAMP: i64 = -3;
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "1024")]).await;
    let empty = listed(&mut wire, 7, "t", MAX_TIMESTAMP).await;
    assert_eq!(
        (empty.error_code, empty.offset, empty.timestamp),
        (0, -1, -1)
    );
    for timestamp in [5, 9, 3, 9, 7] {
        let batch = batch_of(-1, -1, -1, timestamp, &[0; 400]);
        wire.produce("t", &batch).await;
    }
    // Of equal timestamps, the first that remains.
    for (from, expected) in [(0, (1, 9)), (2, (3, 9)), (4, (4, 7)), (5, (-1, -1))] {
        assert_eq!(delete_before(&mut wire, "t", from).await, (0, from));
        let found = listed(&mut wire, 7, "t", MAX_TIMESTAMP).await;
        assert_eq!((found.offset, found.timestamp), expected, "from {from} on");
    }
    let refused = listed(&mut wire, 6, "t", MAX_TIMESTAMP).await.error_code;
    assert_eq!(refused, code(ResponseError::UnsupportedVersion));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_topic_that_was_just_deleted_is_unknown_by_name_and_by_id() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let asked = |topic| MetadataRequest::default().with_topics(Some(vec![topic]));
    let by_name = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
    let by_name = asked(by_name);
    let id = wire.ask(12, &by_name).await.topics[0].topic_id;
    let deleted = DeleteTopicState::default().with_name(Some(topic_name("t")));
    let request = DeleteTopicsRequest::default().with_topics(vec![deleted]);
    assert_eq!(wire.ask(6, &request).await.responses[0].error_code, 0);
    let by_id = MetadataRequestTopic::default().with_name(None);
    let by_id = asked(by_id.with_topic_id(id));
    for (request, error) in [
        (by_name, ResponseError::UnknownTopicOrPartition),
        (by_id, ResponseError::UnknownTopicId),
    ] {
        assert_eq!(
            wire.ask(12, &request).await.topics[0].error_code,
            code(error)
        );
    }
    assert!(broker.shutdown().await);
}
