//! The broker from the perspective of its clients: ordinary ones, ones that speak the protocol
//! frame by frame, and ones whose broker is killed.

mod backup;
mod clients;
mod common;
mod crash;
mod files;
mod kcat;
mod logins;
mod protocol;
