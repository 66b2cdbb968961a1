//! Runs of the simulator: the input decides everything random in one, and no rule may be broken.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| waybill_simulation::run_bytes(bytes));
