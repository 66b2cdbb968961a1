//! The embedded single-node broker: the Kafka protocol over segment files
