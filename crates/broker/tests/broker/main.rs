//! The broker as its clients see it: ordinary ones, ones that speak the protocol frame by frame,
//! and ones whose broker is killed under them.

mod backup;
mod clients;
mod common;
mod crash;
mod files;
mod kcat;
mod logins;
mod protocol;
