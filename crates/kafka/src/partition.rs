//! Conversions of partition numbers for librdkafka.

use waybill_engine::PartitionId;

/// A partition as Kafka numbers it. librdkafka never returns a record with a negative one.
pub(crate) fn partition_id(partition: i32) -> PartitionId {
    PartitionId(u32::try_from(partition).unwrap_or(0))
}

/// A partition for librdkafka. A number outside its range becomes `i32::MAX`, a partition that no
/// broker has.
pub(crate) fn partition_number(partition: PartitionId) -> i32 {
    i32::try_from(partition.0).unwrap_or(i32::MAX)
}
