//! The waybill program.
fn main() {}
