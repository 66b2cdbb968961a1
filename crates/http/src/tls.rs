//! TLS on the process's own listeners.
//!
//! What must hold: a renewed certificate applies to new connections, and no open connection ends
//! because of it; an unusable certificate changes nothing; and a slow handshake delays no other
//! client.
//!
//! The system's OpenSSL implements it, as for every connection that this program makes. TLS 1.2 is
//! the oldest version, with the ciphers of Mozilla's intermediate recommendation. ALPN offers
//! HTTP/2 and HTTP/1.1.
//!
//! Deliberately absent: client certificates. Tokens authenticate callers.

mod config;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::{
    AlpnError, Ssl, SslAcceptor, SslConnector, SslMethod, SslOptions, SslVerifyMode, SslVersion,
    select_next_proto,
};
use openssl::x509::X509;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;
use waybill_tls::reread::{FileRefused, Reread};
use waybill_tls::{Identity, Stream};

pub use config::TlsConfig;

/// The protocols that ALPN offers, the best first, each after its length.
const PROTOCOLS: &[u8] = b"\x02h2\x08http/1.1";

/// The certificate of a listener, if TLS is on.
#[derive(Clone, Debug, Default)]
pub struct Tls(Option<Arc<Reread<Served>>>);

/// A certificate, and what accepts connections with it.
struct Served {
    acceptor: SslAcceptor,
    certificate: X509,
}

impl Tls {
    /// Loads the files of the section `key`. TLS is off if it names none.
    ///
    /// # Errors
    ///
    /// If the files cannot be read, or do not belong together.
    pub fn load(key: &'static str, config: &TlsConfig) -> Result<Self, FileRefused> {
        let (Some(chain), Some(private)) = (&config.cert_file, &config.key_file) else {
            return Ok(Self(None));
        };
        let paths = vec![chain.clone(), private.clone()];
        let read = {
            let paths = paths.clone();
            move |texts: &[Vec<u8>]| Served::read(&paths, texts)
        };
        let identity = Reread::open(key, paths, read)?;
        Ok(Self(Some(Arc::new(identity))))
    }

    /// Whether TLS is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Reloads the files if they have changed. Blocks.
    pub fn reload(&self) {
        if let Some(identity) = &self.0 {
            identity.reload();
        }
    }

    /// Completes the TLS handshake on an accepted connection, if TLS is on.
    ///
    /// # Errors
    ///
    /// If the handshake fails.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<Stream> {
        let Some(identity) = &self.0 else {
            return Ok(Stream::Plain(socket));
        };
        let ssl = Ssl::new(identity.get().acceptor.context())?;
        let mut stream = Box::new(SslStream::new(ssl, socket)?);
        Pin::new(&mut *stream)
            .accept()
            .await
            .map_err(io::Error::other)?;
        Ok(Stream::Tls(stream))
    }

    /// Connects to this listener from its own process. Compares the certificate itself: its name is
    /// for other clients.
    ///
    /// # Errors
    ///
    /// If the connection fails, or the certificate is another.
    pub async fn connect(&self, own: SocketAddr) -> io::Result<Stream> {
        let socket = TcpStream::connect(own).await?;
        socket.set_nodelay(true)?;
        let Some(identity) = &self.0 else {
            return Ok(Stream::Plain(socket));
        };
        let mut connector = SslConnector::builder(SslMethod::tls_client())?;
        connector.set_verify(SslVerifyMode::NONE);
        let mut configuration = connector.build().configure()?;
        configuration.set_verify_hostname(false);
        configuration.set_use_server_name_indication(false);
        let ssl = configuration.into_ssl("localhost")?;
        let mut stream = Box::new(SslStream::new(ssl, socket)?);
        Pin::new(&mut *stream)
            .connect()
            .await
            .map_err(io::Error::other)?;
        let shown = stream.ssl().peer_certificate();
        let is_own = match &shown {
            Some(shown) => shown.to_der()? == identity.get().certificate.to_der()?,
            None => false,
        };
        match is_own {
            true => Ok(Stream::Tls(stream)),
            false => Err(io::Error::other(
                "the certificate is not that of this process",
            )),
        }
    }
}

impl Served {
    fn read(paths: &[PathBuf], texts: &[Vec<u8>]) -> Result<Self, String> {
        let ([chain_path, key_path], [chain, key]) = (paths, texts) else {
            return Err("needs a certificate and its key".to_owned());
        };
        let identity = Identity::read((chain_path, chain), (key_path, key), "a listener")?;
        let acceptor = acceptor(&identity)
            .map_err(|error| format!("{} cannot be used: {error}", chain_path.display()))?;
        Ok(Self {
            acceptor,
            certificate: identity.certificate().to_owned(),
        })
    }
}

fn acceptor(identity: &Identity) -> Result<SslAcceptor, ErrorStack> {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
    acceptor.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    acceptor.set_options(SslOptions::NO_RENEGOTIATION);
    identity.add_to(&mut acceptor)?;
    acceptor.set_alpn_select_callback(|_, offered| {
        select_next_proto(PROTOCOLS, offered).ok_or(AlpnError::NOACK)
    });
    Ok(acceptor.build())
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}
