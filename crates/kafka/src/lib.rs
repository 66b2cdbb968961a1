//! Consumers, producers and the partitioner over rdkafka; bytes in, bytes out
