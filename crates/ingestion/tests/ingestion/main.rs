//! Ingestion as its clients and the topic see it: a real server on librdkafka's mock cluster or the
//! embedded broker, with the embedded store.

mod access;
mod batches;
mod events;
mod headers;
mod inputs;
mod limits;
mod ops;
mod pressure;
mod priority;
mod repeats;
mod setup;
mod status;
mod tls;
mod waiting;
mod wire;
