//! What becomes of requests, and what it costs: everything that is looked at while a run lasts.

pub mod book;
pub mod processes;
pub mod sampler;
pub mod status;
pub mod tally;
