//! Ingestion as its clients and the topic see it: a real server, librdkafka's mock cluster or the
//! embedded broker, and the embedded store.

mod access;
mod batches;
#[path = "../../../http/tests/support/tls.rs"]
mod certificate;
mod events;
mod expedited;
mod inputs;
mod limits;
mod ops;
mod pressure;
mod repeats;
#[path = "../support/rows.rs"]
mod rows;
mod status;
mod tls;
mod wire;
mod world;
