//! The subcommands, a module for each.

pub mod growth;
pub mod run;
pub mod scenarios;
pub mod suite;
pub mod world;
