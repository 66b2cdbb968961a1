//! The records as bytes: golden bytes, round trips, bad input, evolution.

mod bad_bytes;
mod evolution;
mod records;
mod rewritten;
mod samples;
