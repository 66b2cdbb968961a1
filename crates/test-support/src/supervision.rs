//! Services with faults, and how what becomes of operations is held against the effects that they made.

pub mod balance;
pub mod ends;
pub mod setting;
