//! The waybill program.

use std::process::ExitCode;

/// Measured to be faster: an operation makes many small allocations on many threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    waybill::program::main()
}
