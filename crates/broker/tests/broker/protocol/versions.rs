//! Which versions of which requests are answered, and how the others are.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;

use super::*;
use crate::common::*;

#[tokio::test]
async fn unsupported_versions_get_the_error_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let known = wire.ask(3, &ApiVersionsRequest::default()).await;
    assert_eq!(known.error_code, 0);

    // ApiVersions of the future: answered in version 0, with everything that is supported.
    wire.send_frame(&[0, 18, 0, 99, 0, 0, 0, 7, 1, 2, 3]).await;
    let (correlation_id, answer) = wire.receive::<ApiVersionsResponse>(0).await;
    assert_eq!(
        (correlation_id, answer.error_code),
        (7, code(ResponseError::UnsupportedVersion))
    );
    assert_eq!(answer.api_keys.len(), known.api_keys.len());

    // An API that the broker does not support, with a place for an error in its answer.
    let answer = wire.ask(0, &ConsumerGroupHeartbeatRequest::default()).await;
    assert_eq!(answer.error_code, code(ResponseError::UnsupportedVersion));

    // Other requests end the connection, as in Kafka. The broker continues.
    for (key, version) in [(0_i16, 2_i16), (1, 12), (1, 99), (999, 0), (-1, -1)] {
        let mut wire = Wire::connect(broker.address()).await;
        let header = [
            key.to_be_bytes(),
            version.to_be_bytes(),
            [0, 0],
            [0, 1],
            [0xff, 0xff],
        ];
        wire.send_frame(&header.concat()).await;
        assert_eq!(wire.frame().await, None, "API {key} version {version}");
    }
    assert_eq!(
        wire.ask(0, &ApiVersionsRequest::default()).await.error_code,
        0
    );
    assert_eq!(broker.stats().malformed, 5);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn every_version_that_is_offered_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    wire.produce("t", &plain(b"x")).await;
    let offered = wire.ask(3, &ApiVersionsRequest::default()).await;
    let versions = |key: ApiKey| {
        let api = offered
            .api_keys
            .iter()
            .find(|api| api.api_key == key as i16)
            .unwrap();
        api.min_version..=api.max_version
    };
    for version in 4..=*versions(ApiKey::Fetch).end() {
        let request = fetch_request("t", 0).with_session_epoch(if version < 7 { -1 } else { 0 });
        let answer = wire.ask(version, &request).await;
        assert_eq!(
            answer.responses[0].partitions[0].high_watermark, 1,
            "v{version}"
        );
        assert!(
            answer.responses[0].partitions[0]
                .records
                .as_ref()
                .is_some_and(|r| !r.is_empty())
        );
    }
    for version in 3..=*versions(ApiKey::Produce).end() {
        let answer = wire
            .ask(version, &produce_request("t", 1, &plain(b"y")))
            .await;
        assert_eq!(
            answer.responses[0].partition_responses[0].error_code, 0,
            "v{version}"
        );
    }
    for version in versions(ApiKey::Metadata) {
        let topic = |name| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic("t"), topic("missing")]))
            .with_allow_auto_topic_creation(true);
        let answer = wire.ask(version, &request).await;
        assert_eq!(answer.topics[0].partitions.len(), 1, "v{version}");
        assert_eq!(
            answer.topics[1].error_code,
            code(ResponseError::UnknownTopicOrPartition)
        );
        assert_eq!(answer.brokers[0].port, i32::from(broker.address().port()));
    }
    for version in versions(ApiKey::FindCoordinator) {
        let key = StrBytes::from_static_str("g");
        let request = if version >= 4 {
            FindCoordinatorRequest::default().with_coordinator_keys(vec![key])
        } else {
            FindCoordinatorRequest::default().with_key(key)
        };
        wire.ask(version, &request).await;
    }
    for version in versions(ApiKey::JoinGroup) {
        let request = JoinGroupRequest::default().with_session_timeout_ms(-5);
        let answer = wire.ask(version, &request).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::InvalidGroupId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::SyncGroup) {
        let answer = wire.ask(version, &SyncGroupRequest::default()).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::UnknownMemberId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::Heartbeat) {
        let answer = wire.ask(version, &HeartbeatRequest::default()).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::UnknownMemberId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::LeaveGroup) {
        wire.ask(version, &LeaveGroupRequest::default()).await;
    }
    for version in versions(ApiKey::OffsetCommit) {
        wire.ask(version, &OffsetCommitRequest::default()).await;
    }
    for version in versions(ApiKey::OffsetFetch) {
        let request = OffsetFetchRequest::default();
        wire.ask(
            version,
            &if (2..8).contains(&version) {
                request.with_topics(None)
            } else {
                request
            },
        )
        .await;
    }
    for version in versions(ApiKey::DescribeGroups) {
        let request = DescribeGroupsRequest::default().with_groups(vec![GroupId::default()]);
        assert_eq!(
            &*wire.ask(version, &request).await.groups[0].group_state,
            "Dead"
        );
    }
    for version in versions(ApiKey::ListGroups) {
        wire.ask(version, &ListGroupsRequest::default()).await;
    }
    for version in versions(ApiKey::InitProducerId) {
        let request = InitProducerIdRequest::default().with_transactional_id(None);
        assert!(wire.ask(version, &request).await.producer_id.0 >= 0);
    }
    for version in versions(ApiKey::DescribeCluster) {
        assert_eq!(
            wire.ask(version, &DescribeClusterRequest::default())
                .await
                .brokers
                .len(),
            1
        );
    }
    for version in versions(ApiKey::ListOffsets) {
        let request = ListOffsetsRequest::default();
        wire.ask(version, &request).await;
    }
    for version in versions(ApiKey::OffsetForLeaderEpoch) {
        wire.ask(version, &OffsetForLeaderEpochRequest::default())
            .await;
    }
    for version in versions(ApiKey::DescribeConfigs) {
        wire.ask(version, &DescribeConfigsRequest::default()).await;
    }
    for version in versions(ApiKey::CreateTopics) {
        wire.ask(version, &CreateTopicsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteTopics) {
        wire.ask(version, &DeleteTopicsRequest::default()).await;
    }
    for version in versions(ApiKey::CreatePartitions) {
        wire.ask(version, &CreatePartitionsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteRecords) {
        wire.ask(version, &DeleteRecordsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteGroups) {
        wire.ask(version, &DeleteGroupsRequest::default()).await;
    }
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        wire.ask(version, &IncrementalAlterConfigsRequest::default())
            .await;
    }
    assert_eq!(broker.stats().malformed, 0);
    assert!(broker.shutdown().await);
}
