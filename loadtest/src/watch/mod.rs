//! Follows requests to their ends, and measures CPU and memory, while a run lasts.

pub mod processes;
pub mod sampler;
pub mod status;
