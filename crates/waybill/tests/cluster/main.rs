//! The program on real servers: every role in its own processes, on the Kafka of
//! `WAYBILL_TEST_BROKERS` and the ScyllaDB or Cassandra of `WAYBILL_TEST_SCYLLA` (each
//! `HOST:PORT`). Without both, these tests are skipped. Processes are killed, stopped and cut off;
//! then every accepted delivery is compared with the services' ledger.
//!
//! Each test has its own topics and keyspace, and removes them at its end. Two tests run
//! concurrently, because each starts many processes.
//!
//! Kafka is not cut off here, because its clients connect to the advertised address and bypass a
//! relay. `crates/kafka/tests/clients` tests clients with an unreachable broker.

mod brokers;
mod clocks;
mod cluster;
mod compressed;
mod faults;
mod full;
mod kills;
mod leases;
mod line;
mod logs;
mod member;
mod outage;
mod refusals;
mod repartitioning;
mod secured;
mod servers;
mod shards;
mod statuses;
mod stops;
mod undecodable;
mod upgrade;

/// The number of partitions of these tests' topics.
const PARTITIONS: u32 = 4;

/// Whether a delivery is remote, as every fifth one is.
fn is_remote(index: usize) -> bool {
    index.is_multiple_of(5)
}
