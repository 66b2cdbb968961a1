//! The server's side of SASL logins: the messages of PLAIN (RFC 4616) and SCRAM-SHA-256 (RFC 5802,
//! RFC 7677), and what a server stores for SCRAM.
//!
//! PLAIN sends the password. SCRAM proves that the client has the password, and that the server has
//! its verifier, and sends neither.
//!
//! What must hold: no message can make this code panic, allocate more than a few times the length
//! of the message, or show in `Debug` what a login depends on.
//!
//! Deliberately absent: I/O, randomness (the caller passes nonces and salts), channel bindings, and
//! SASLprep: names and passwords are compared byte by byte.

mod plain;
mod scram;
mod verifier;

pub use plain::plain;
pub use scram::{Exchange, Refused};
pub use verifier::{InvalidVerifier, SALT_BYTES, Verifier};
