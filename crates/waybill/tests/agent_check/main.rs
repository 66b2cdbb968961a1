//! `waybill agent-check`: it passes what keeps the rules, and catches what breaks them.
//!
//! The agents that keep them are the built-in declared one, as `waybill agents` runs it, and the sample
//! in Python; both are checked by the command. The broken ones are one small agent with a fault each.

mod broken;
mod faults;
mod kept;
mod world;
