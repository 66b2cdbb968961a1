//! The open-loop load generator
fn main() {}
