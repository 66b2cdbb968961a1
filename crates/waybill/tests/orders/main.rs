//! The example examples/orders: orders and their requests written in one transaction to PostgreSQL,
//! requests produced by the shop itself, and the shop told of the end of each.
//!
//! What runs is the example as it is committed, on a PostgreSQL of its own, and beside it Waybill as
//! `up` and `agents`. Where PostgreSQL or Python cannot be had the tests say so and pass.

mod courses;
mod kills;
mod postgres;
mod shop;
mod strangers;
