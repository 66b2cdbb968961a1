//! `waybill agent-check`: it passes agents that keep the rules and fails those that break one.
//!
//! The good agents are a built-in one, as `waybill agents` runs it, and the sample in Python. The
//! broken ones are one small agent with one fault each.

mod broken;
mod faults;
mod kept;
mod setup;
mod strategies;
