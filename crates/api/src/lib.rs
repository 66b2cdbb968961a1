//! The HTTP API: ids of operations, requests and their checks, the [forms](form) of workflows that
//! have their own, the rates of tenants, [verbs](verb), and [answers about operations](view).
//!
//! Ingestion checks requests by these rules before it accepts them. The scheduler repeats the
//! checks that follow from the record alone, for requests that were written straight to a topic.
//! What must hold: both compute the same hash of a request.
//!
//! Deliberately absent: connections, routes, the broker, and every particular workflow.

pub mod form;
pub mod id;
pub mod payloads;
pub mod request;
pub mod tenant_limits;
pub mod verb;
pub mod view;
