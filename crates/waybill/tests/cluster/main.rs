//! The program on real servers: every role in processes of its own, on the Kafka that
//! `WAYBILL_TEST_BROKERS` names and the ScyllaDB or Cassandra that `WAYBILL_TEST_SCYLLA` names (each
//! `HOST:PORT`). Without both these tests are skipped. Processes are killed, stopped and cut off;
//! then every accepted delivery is held against the services' ledger.
//!
//! Each test has topics and a keyspace of its own, and removes them at its end. Two tests run at once, since
//! each starts many processes.
//!
//! Kafka is not cut off here: its clients connect to the address that it advertises, past whatever
//! stands before it. `crates/kafka/tests/clients` has clients whose broker is away.

mod brokers;
mod clocks;
mod cluster;
mod compressed;
mod faults;
mod full;
mod growing;
mod kills;
mod leases;
mod line;
mod logs;
mod member;
mod outage;
mod refusals;
mod secured;
mod servers;
mod shards;
mod statuses;
mod stops;
mod undecodable;
mod upgrade;

/// Of how many partitions the topics of these tests are.
const PARTITIONS: u32 = 4;

/// Every fifth delivery goes by others.
fn is_remote(index: usize) -> bool {
    index.is_multiple_of(5)
}
