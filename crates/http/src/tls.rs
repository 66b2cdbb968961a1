//! TLS on our own listeners.
//!
//! What must hold: a certificate that is renewed is shown to whoever connects from then on, and no connection ends for
//! it; one that cannot be used changes nothing; and a handshake that dawdles holds nobody else up.
//!
//! The system's OpenSSL does it, as for every connection that this program makes. TLS 1.2 is the oldest that is spoken,
//! with the ciphers of Mozilla's intermediate recommendation; HTTP/2 and HTTP/1.1 are offered (ALPN).
//!
//! Deliberately absent: certificates of clients. Who somebody is, tokens say.

mod config;
mod stream;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{
    AlpnError, Ssl, SslAcceptor, SslConnector, SslMethod, SslOptions, SslVerifyMode, SslVersion,
    select_next_proto,
};
use openssl::x509::X509;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;
use waybill_config::file_modes;

pub use config::TlsConfig;
pub use stream::Stream;

use crate::reread::{FileRefused, Reread};

/// The protocols that are offered, the best first, each behind its length.
const PROTOCOLS: &[u8] = b"\x02h2\x08http/1.1";

/// What a listener proves itself with, if it does.
#[derive(Clone, Debug, Default)]
pub struct Tls(Option<Arc<Reread<Identity>>>);

/// A certificate, and all that is made of it.
struct Identity {
    acceptor: SslAcceptor,
    certificate: X509,
}

impl Tls {
    /// By the files of the section `key`; in the clear where it names none.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or do not belong together.
    pub fn load(key: &'static str, config: &TlsConfig) -> Result<Self, FileRefused> {
        let (Some(chain), Some(private)) = (&config.cert_file, &config.key_file) else {
            return Ok(Self(None));
        };
        let paths = vec![chain.clone(), private.clone()];
        let read = {
            let paths = paths.clone();
            move |texts: &[Vec<u8>]| Identity::read(&paths, texts)
        };
        let identity = Reread::open(key, paths, read)?;
        Ok(Self(Some(Arc::new(identity))))
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Reads its files again if they have changed. Blocks.
    pub fn look(&self) {
        if let Some(identity) = &self.0 {
            identity.look();
        }
    }

    /// A connection that somebody has made, once both sides know whom they talk to.
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

    /// A connection to this listener from its own process. Who answers is known by the certificate itself: what name
    /// it bears is for others.
    ///
    /// # Errors
    ///
    /// If nobody answers, or somebody else.
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
            false => Err(io::Error::other("another certificate than this process's")),
        }
    }
}

impl Identity {
    fn read(paths: &[PathBuf], texts: &[Vec<u8>]) -> Result<Self, String> {
        let ([chain_path, key_path], [chain, key]) = (paths, texts) else {
            return Err("needs a certificate and its key".to_owned());
        };
        let chain = read_chain(chain_path, chain)?;
        let Some((certificate, issuers)) = chain.split_first() else {
            return Err(format!(
                "{} holds no certificate (PEM)",
                chain_path.display()
            ));
        };
        let key = read_key(key_path, key)?;
        file_modes::warn_if_they_may_read(key_path, "the key of a listener");
        if !certificate
            .public_key()
            .is_ok_and(|public| public.public_eq(&key))
        {
            return Err(format!(
                "the key in {} is not that of the first certificate in {}",
                key_path.display(),
                chain_path.display()
            ));
        }
        let acceptor = acceptor(certificate, issuers, &key)
            .map_err(|error| format!("{} cannot be used: {error}", chain_path.display()))?;
        let now = Asn1Time::days_from_now(0);
        if now.is_ok_and(|now| *certificate.not_after() < *now) {
            let path = chain_path.display();
            tracing::warn!(%path, "the certificate has expired: clients will refuse it");
        }
        Ok(Self {
            acceptor,
            certificate: certificate.clone(),
        })
    }
}

fn read_chain(path: &Path, text: &[u8]) -> Result<Vec<X509>, String> {
    X509::stack_from_pem(text)
        .map_err(|_| format!("{} holds a certificate that is none", path.display()))
}

fn read_key(path: &Path, text: &[u8]) -> Result<PKey<Private>, String> {
    // Without this answer the question for a passphrase would go to the terminal.
    PKey::private_key_from_pem_callback(text, |_| Ok(0)).map_err(|_| {
        format!(
            "{} holds no private key (PEM) without a passphrase",
            path.display()
        )
    })
}

fn acceptor(
    certificate: &X509,
    issuers: &[X509],
    key: &PKey<Private>,
) -> Result<SslAcceptor, ErrorStack> {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
    acceptor.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    acceptor.set_options(SslOptions::NO_RENEGOTIATION);
    acceptor.set_certificate(certificate)?;
    acceptor.set_private_key(key)?;
    for issuer in issuers {
        acceptor.add_extra_chain_cert(issuer.clone())?;
    }
    acceptor.check_private_key()?;
    acceptor.set_alpn_select_callback(|_, offered| {
        select_next_proto(PROTOCOLS, offered).ok_or(AlpnError::NOACK)
    });
    Ok(acceptor.build())
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}
