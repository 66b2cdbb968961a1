//! The clients against librdkafka's built-in mock cluster, which speaks the real protocol over
//! local sockets and simulates faults.

mod compressed;
mod consuming;
mod producing;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use waybill_kafka::KafkaSettings;

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;

pub(crate) fn cluster(topic: &str, partitions: i32) -> (Cluster, KafkaSettings) {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    (cluster, settings)
}
