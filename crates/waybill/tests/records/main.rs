//! `waybill records` and `waybill dlq` as processes, against a `waybill broker` in another.

mod dead_letters;
mod printing;
#[path = "../support/process.rs"]
mod process;
mod world;
