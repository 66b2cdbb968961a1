//! The subcommands, one module each.

pub mod growth;
pub mod run;
pub mod scenarios;
pub mod suite;
pub mod world;
