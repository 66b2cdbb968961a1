//! The subcommands, one module each.

pub mod growth;
pub mod installation;
pub mod run;
pub mod scenarios;
pub mod suite;
