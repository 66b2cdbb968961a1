//! The APIs and versions that the broker implements, and the shape of their requests.
//!
//! The shapes follow the protocol's message definitions, for the versions offered here. The highest
//! versions are those that need no feature which a single broker lacks: no topic IDs in `Fetch` and
//! `Produce`, no transactions, no newer group protocol.

use kafka_protocol::messages::ApiKey;

use super::shape::{Field, Shape};

/// An API that the broker implements.
#[derive(Debug)]
pub struct Api {
    /// Its number.
    pub key: ApiKey,
    /// The lowest version that clients see.
    pub advertised_min: i16,
    /// The lowest version that is served.
    pub min: i16,
    /// The highest version that is served.
    pub max: i16,
    /// The first version whose requests use the flexible encoding.
    pub(super) flexible_from: i16,
    pub(super) fields: &'static [Field],
}

/// The API with the number `key`.
#[must_use]
pub fn api(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key as i16 == key)
}

const ALL: i16 = i16::MAX;
const BYTE: Shape = Shape::Fixed(1);
const SHORT: Shape = Shape::Fixed(2);
const INT: Shape = Shape::Fixed(4);
const LONG: Shape = Shape::Fixed(8);
const UUID: Shape = Shape::Fixed(16);
const TEXT: Shape = Shape::Text;
const BLOB: Shape = Shape::Blob;

/// A field of the versions `from` to `to`.
const fn in_versions(from: i16, to: i16, shape: Shape) -> Field {
    Field { from, to, shape }
}

/// A field of the versions from `from` on.
const fn since(from: i16, shape: Shape) -> Field {
    in_versions(from, ALL, shape)
}

/// A field of all versions.
const fn has(shape: Shape) -> Field {
    since(0, shape)
}

const fn api_of(
    key: ApiKey,
    versions: std::ops::RangeInclusive<i16>,
    flexible_from: i16,
    fields: &'static [Field],
) -> Api {
    let (min, max) = (*versions.start(), *versions.end());
    Api {
        key,
        advertised_min: min,
        min,
        max,
        flexible_from,
        fields,
    }
}

/// A topic with a list of partition numbers.
const TOPIC_PARTITIONS: &[Field] = &[has(TEXT), has(Shape::List(&INT))];

/// All APIs, sorted by key, because some clients search the list.
pub static APIS: &[Api] = &[
    Api {
        // librdkafka assumes that a broker without version 0 does not support compression.
        advertised_min: 0,
        ..api_of(
            ApiKey::Produce,
            3..=9,
            9,
            &[
                has(TEXT),
                has(SHORT),
                has(INT),
                has(Shape::Structs(&[
                    has(TEXT),
                    has(Shape::Structs(&[has(INT), has(BLOB)])),
                ])),
            ],
        )
    },
    // From version 12 on a variable-length number before the records gives their length, which is
    // only known once they are read.
    api_of(
        ApiKey::Fetch,
        4..=11,
        12,
        &[
            has(INT),
            has(INT),
            has(INT),
            has(INT),
            has(BYTE),
            since(7, INT),
            since(7, INT),
            has(Shape::Structs(&[
                has(TEXT),
                has(Shape::Structs(&[
                    has(INT),
                    since(9, INT),
                    has(LONG),
                    since(5, LONG),
                    has(INT),
                ])),
            ])),
            since(7, Shape::Structs(TOPIC_PARTITIONS)),
            since(11, TEXT),
        ],
    ),
    api_of(
        ApiKey::ListOffsets,
        1..=7,
        6,
        &[
            has(INT),
            since(2, BYTE),
            has(Shape::Structs(&[
                has(TEXT),
                has(Shape::Structs(&[has(INT), since(4, INT), has(LONG)])),
            ])),
        ],
    ),
    api_of(
        ApiKey::Metadata,
        0..=12,
        9,
        &[
            has(Shape::Structs(&[since(10, UUID), has(TEXT)])),
            since(4, BYTE),
            in_versions(8, 10, BYTE),
            since(8, BYTE),
        ],
    ),
    api_of(
        ApiKey::OffsetCommit,
        2..=8,
        8,
        &[
            has(TEXT),
            has(INT),
            has(TEXT),
            since(7, TEXT),
            in_versions(2, 4, LONG),
            has(Shape::Structs(&[
                has(TEXT),
                has(Shape::Structs(&[
                    has(INT),
                    has(LONG),
                    since(6, INT),
                    has(TEXT),
                ])),
            ])),
        ],
    ),
    api_of(
        ApiKey::OffsetFetch,
        1..=8,
        6,
        &[
            in_versions(1, 7, TEXT),
            in_versions(1, 7, Shape::Structs(TOPIC_PARTITIONS)),
            since(
                8,
                Shape::Structs(&[has(TEXT), has(Shape::Structs(TOPIC_PARTITIONS))]),
            ),
            since(7, BYTE),
        ],
    ),
    api_of(
        ApiKey::FindCoordinator,
        0..=4,
        3,
        &[
            in_versions(0, 3, TEXT),
            since(1, BYTE),
            since(4, Shape::List(&TEXT)),
        ],
    ),
    api_of(
        ApiKey::JoinGroup,
        0..=9,
        6,
        &[
            has(TEXT),
            has(INT),
            since(1, INT),
            has(TEXT),
            since(5, TEXT),
            has(TEXT),
            has(Shape::Structs(&[has(TEXT), has(BLOB)])),
            since(8, TEXT),
        ],
    ),
    api_of(
        ApiKey::Heartbeat,
        0..=4,
        4,
        &[has(TEXT), has(INT), has(TEXT), since(3, TEXT)],
    ),
    api_of(
        ApiKey::LeaveGroup,
        0..=5,
        4,
        &[
            has(TEXT),
            in_versions(0, 2, TEXT),
            since(3, Shape::Structs(&[has(TEXT), has(TEXT), since(5, TEXT)])),
        ],
    ),
    api_of(
        ApiKey::SyncGroup,
        0..=5,
        4,
        &[
            has(TEXT),
            has(INT),
            has(TEXT),
            since(3, TEXT),
            since(5, TEXT),
            since(5, TEXT),
            has(Shape::Structs(&[has(TEXT), has(BLOB)])),
        ],
    ),
    api_of(
        ApiKey::DescribeGroups,
        0..=5,
        5,
        &[has(Shape::List(&TEXT)), since(3, BYTE)],
    ),
    api_of(
        ApiKey::ListGroups,
        0..=4,
        3,
        &[since(4, Shape::List(&TEXT))],
    ),
    Api {
        // librdkafka assumes that a broker without version 0 does not support SASL.
        advertised_min: 0,
        ..api_of(ApiKey::SaslHandshake, 1..=1, ALL, &[has(TEXT)])
    },
    api_of(
        ApiKey::ApiVersions,
        0..=4,
        3,
        &[since(3, TEXT), since(3, TEXT)],
    ),
    api_of(
        ApiKey::CreateTopics,
        2..=7,
        5,
        &[
            has(Shape::Structs(&[
                has(TEXT),
                has(INT),
                has(SHORT),
                has(Shape::Structs(&[has(INT), has(Shape::List(&INT))])),
                has(Shape::Structs(&[has(TEXT), has(TEXT)])),
            ])),
            has(INT),
            has(BYTE),
        ],
    ),
    api_of(
        ApiKey::DeleteTopics,
        1..=6,
        4,
        &[
            since(6, Shape::Structs(&[has(TEXT), has(UUID)])),
            in_versions(1, 5, Shape::List(&TEXT)),
            has(INT),
        ],
    ),
    api_of(
        ApiKey::DeleteRecords,
        0..=2,
        2,
        &[
            has(Shape::Structs(&[
                has(TEXT),
                has(Shape::Structs(&[has(INT), has(LONG)])),
            ])),
            has(INT),
        ],
    ),
    api_of(
        ApiKey::InitProducerId,
        0..=4,
        2,
        &[has(TEXT), has(INT), since(3, LONG), since(3, SHORT)],
    ),
    api_of(
        ApiKey::OffsetForLeaderEpoch,
        2..=4,
        4,
        &[
            since(3, INT),
            has(Shape::Structs(&[
                has(TEXT),
                has(Shape::Structs(&[has(INT), has(INT), has(INT)])),
            ])),
        ],
    ),
    api_of(
        ApiKey::DescribeConfigs,
        1..=4,
        4,
        &[
            has(Shape::Structs(&[
                has(BYTE),
                has(TEXT),
                has(Shape::List(&TEXT)),
            ])),
            has(BYTE),
            since(3, BYTE),
        ],
    ),
    api_of(ApiKey::SaslAuthenticate, 0..=2, 2, &[has(BLOB)]),
    api_of(
        ApiKey::CreatePartitions,
        0..=3,
        2,
        &[
            has(Shape::Structs(&[
                has(TEXT),
                has(INT),
                has(Shape::Structs(&[has(Shape::List(&INT))])),
            ])),
            has(INT),
            has(BYTE),
        ],
    ),
    api_of(ApiKey::DeleteGroups, 0..=2, 2, &[has(Shape::List(&TEXT))]),
    api_of(
        ApiKey::IncrementalAlterConfigs,
        0..=1,
        1,
        &[
            has(Shape::Structs(&[
                has(BYTE),
                has(TEXT),
                has(Shape::Structs(&[has(TEXT), has(BYTE), has(TEXT)])),
            ])),
            has(BYTE),
        ],
    ),
    api_of(
        ApiKey::DescribeCluster,
        0..=1,
        0,
        &[has(BYTE), since(1, BYTE)],
    ),
];

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::*;
    use kafka_protocol::protocol::{Decodable, Encodable};

    use super::super::shape::check;
    use super::super::shape::tests::{Numbers, sample};
    use super::*;

    /// Asserts that samples of every version decode to the last byte, and that the decoder's own
    /// encoder writes them back unchanged, except for unknown tagged fields, which both keep.
    fn holds<R: Decodable + Encodable>(key: ApiKey) {
        let api = api(key as i16).unwrap();
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for version in api.min..=api.max {
            let flexible = version >= api.flexible_from;
            assert_eq!(
                key.request_header_version(version) >= 2,
                flexible,
                "{key:?} v{version}"
            );
            for _ in 0..50 {
                let bytes = sample(api.fields, version, flexible, &mut numbers);
                check(api.fields, &bytes, version, flexible).unwrap();
                let mut left = Bytes::from(bytes.clone());
                let decoded = R::decode(&mut left, version)
                    .unwrap_or_else(|error| panic!("{key:?} v{version}: {error}"));
                assert!(
                    left.is_empty(),
                    "{key:?} v{version} leaves {} bytes",
                    left.len()
                );
                let mut written = Vec::new();
                decoded.encode(&mut written, version).unwrap();
                assert_eq!(written, bytes, "{key:?} v{version}");
                for cut in 0..bytes.len() {
                    assert!(check(api.fields, &bytes[..cut], version, flexible).is_err());
                }
            }
        }
    }

    #[test]
    fn the_shapes_are_those_of_the_decoder() {
        holds::<ProduceRequest>(ApiKey::Produce);
        holds::<FetchRequest>(ApiKey::Fetch);
        holds::<ListOffsetsRequest>(ApiKey::ListOffsets);
        holds::<MetadataRequest>(ApiKey::Metadata);
        holds::<OffsetCommitRequest>(ApiKey::OffsetCommit);
        holds::<OffsetFetchRequest>(ApiKey::OffsetFetch);
        holds::<FindCoordinatorRequest>(ApiKey::FindCoordinator);
        holds::<JoinGroupRequest>(ApiKey::JoinGroup);
        holds::<HeartbeatRequest>(ApiKey::Heartbeat);
        holds::<LeaveGroupRequest>(ApiKey::LeaveGroup);
        holds::<SyncGroupRequest>(ApiKey::SyncGroup);
        holds::<DescribeGroupsRequest>(ApiKey::DescribeGroups);
        holds::<ListGroupsRequest>(ApiKey::ListGroups);
        holds::<SaslHandshakeRequest>(ApiKey::SaslHandshake);
        holds::<ApiVersionsRequest>(ApiKey::ApiVersions);
        holds::<CreateTopicsRequest>(ApiKey::CreateTopics);
        holds::<DeleteTopicsRequest>(ApiKey::DeleteTopics);
        holds::<DeleteRecordsRequest>(ApiKey::DeleteRecords);
        holds::<InitProducerIdRequest>(ApiKey::InitProducerId);
        holds::<OffsetForLeaderEpochRequest>(ApiKey::OffsetForLeaderEpoch);
        holds::<DescribeConfigsRequest>(ApiKey::DescribeConfigs);
        holds::<SaslAuthenticateRequest>(ApiKey::SaslAuthenticate);
        holds::<CreatePartitionsRequest>(ApiKey::CreatePartitions);
        holds::<DeleteGroupsRequest>(ApiKey::DeleteGroups);
        holds::<IncrementalAlterConfigsRequest>(ApiKey::IncrementalAlterConfigs);
        holds::<DescribeClusterRequest>(ApiKey::DescribeCluster);
    }

    #[test]
    fn the_apis_are_in_the_order_of_their_keys() {
        assert!(APIS.is_sorted_by_key(|api| api.key as i16));
    }
}
