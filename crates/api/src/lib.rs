//! What the HTTP API takes: the ids of operations, requests with what can be wrong with them, and the rates of tenants.
//!
//! Ingestion checks requests by these rules before it accepts them. The scheduler repeats the checks that follow from the
//! record alone, for requests that came through a topic. What must hold: both compute the same hash of a request.
//!
//! Deliberately absent: connections, routes and the broker.

pub mod id;
pub mod request;
pub mod tenant_limits;
