//! What servers and clients of TLS share: certificates, private keys and secrets in files, and the
//! encrypted stream.
//!
//! What must hold: a changed file is [read again](reread), and a broken one changes nothing; a
//! private key belongs to its certificate; and no secret is in a log line or in `Debug` output.
//!
//! The system's OpenSSL implements TLS, as for every connection that this program makes.
//!
//! Deliberately absent: listeners, HTTP, and who may call whom.

mod client;
mod pem;
pub mod reread;
mod secret_file;
mod stream;

pub use client::{ClientTls, ClientTlsConfig};
pub use pem::{Identity, read_certificates};
pub use reread::FileRefused;
pub use secret_file::SecretFile;
pub use stream::Stream;
