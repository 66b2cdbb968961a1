//! Tests of the clients against brokers: the embedded one, and Apache Kafka if
//! `WAYBILL_TEST_BROKERS` names it (`HOST:PORT`). Each test runs on both, which shows where the two
//! differ. Faults that neither makes on demand come from librdkafka's mock cluster.
//!
//! Logins and TLS are tested on the listener of Apache Kafka that `WAYBILL_TEST_SECURED_BROKERS`
//! names.
//!
//! On Apache Kafka each test uses topics and groups of its own names, and deletes its topics.

mod consuming;
mod fenced;
mod fixture;
mod groups;
mod line;
mod mock_cluster;
mod poison;
mod producing;
mod raw;
mod secured;
mod support;
mod topics;
mod transactions;
mod unreachable;

/// Turns each of these functions into a test on the embedded broker and one on Apache Kafka.
macro_rules! on_both_brokers {
    ($($test:ident)+) => {
        mod embedded {
            $(#[test]
            fn $test() {
                super::$test(&$crate::fixture::Fixture::embedded());
            })+
        }
        mod apache_kafka {
            $(#[test]
            fn $test() {
                if let Some(fixture) = $crate::fixture::Fixture::apache_kafka() {
                    super::$test(&fixture);
                }
            })+
        }
    };
}
pub(crate) use on_both_brokers;
