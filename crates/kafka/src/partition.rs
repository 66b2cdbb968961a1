//! Numbers of partitions, as librdkafka has them.

use waybill_engine::PartitionId;

/// A partition as Kafka numbers it. librdkafka never returns a record with a negative one.
pub(crate) fn partition_id(partition: i32) -> PartitionId {
    PartitionId(u32::try_from(partition).unwrap_or(0))
}

/// A partition for librdkafka. A number beyond its range becomes `i32::MAX`, which exists on no
/// broker.
pub(crate) fn partition_number(partition: PartitionId) -> i32 {
    i32::try_from(partition.0).unwrap_or(i32::MAX)
}
