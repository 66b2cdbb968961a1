//! Services with faults, and checks of operations against the effects in the ledger.

pub mod balance;
pub mod ends;
pub mod setting;
