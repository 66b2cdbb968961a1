//! The example examples/orders: an order and its request are written in one PostgreSQL transaction,
//! the shop itself produces the requests, and it is notified of the end of each.
//!
//! The test runs the committed example on its own PostgreSQL, with Waybill as `up` and `agents`.
//! Without PostgreSQL or Python, the tests say so and pass.

mod direct_requests;
mod kills;
mod outcomes;
mod postgres;
mod shop;
