//! `waybill records` and `waybill dlq` as processes, against a `waybill broker` in another.

mod dead_letters;
mod printing;
mod setup;
