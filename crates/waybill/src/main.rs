//! The waybill program.

use std::process::ExitCode;

/// Faster than the system's allocator when measured: a delivery makes many small allocations on
/// many threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    waybill::program::main()
}
