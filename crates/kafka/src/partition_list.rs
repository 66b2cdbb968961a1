//! Partition lists, as librdkafka takes and returns them.

use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use waybill_engine::{Offset, PartitionId};

use crate::partition::partition_number;

/// Partitions without offsets.
pub(crate) fn partitions_list<'a>(
    partitions: impl IntoIterator<Item = (&'a str, PartitionId)>,
) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in partitions {
        list.add_partition(topic, partition_number(partition));
    }
    list
}

/// Partitions with offsets.
pub(crate) fn offsets_list(
    offsets: &[(&str, PartitionId, Offset)],
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (topic, partition, offset) in offsets {
        let offset = rdkafka::Offset::Offset(offset.0);
        list.add_partition_offset(topic, partition_number(*partition), offset)?;
    }
    Ok(list)
}

/// The first error that a call set on a partition of its list. The call as a whole reports success.
pub(crate) fn check_each(list: &TopicPartitionList) -> KafkaResult<()> {
    list.elements()
        .iter()
        .try_for_each(TopicPartitionListElem::error)
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer as _};

    use super::*;

    #[test]
    fn a_call_that_succeeds_and_fails_for_one_partition_is_found_to_have_failed() {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", "127.0.0.1:1")
            .set("group.id", "g");
        let consumer: BaseConsumer = config.create().unwrap();
        let known = partitions_list([("known", PartitionId(0))]);
        consumer.assign(&known).unwrap();
        consumer.pause(&known).unwrap();
        check_each(&known).unwrap();

        let one_unknown = partitions_list([("known", PartitionId(0)), ("unknown", PartitionId(0))]);
        consumer.pause(&one_unknown).unwrap();
        check_each(&one_unknown).unwrap_err();
    }
}
