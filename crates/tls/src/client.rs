//! TLS of clients.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::{X509, X509VerifyResult};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use crate::pem::{Identity, read_certificates};
use crate::reread::{FileRefused, LOOK_EVERY, Reread};
use crate::stream::Stream;

/// The files of a client of TLS. Without any, it trusts the system's certificates and shows none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientTlsConfig {
    /// Certificates (PEM) to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, followed by those of its issuers (PEM), and its private key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The client's side of TLS. Changed files take effect within seconds, on new connections.
#[derive(Clone)]
pub struct ClientTls(Settings);

#[derive(Clone)]
enum Settings {
    System(SslConnector),
    Files(Arc<Reread<SslConnector>>),
}

impl ClientTls {
    /// Reads the files. Errors name the configuration key `key`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or its content is invalid.
    pub fn open(key: String, config: &ClientTlsConfig) -> Result<Self, FileRefused> {
        let mut paths = Vec::new();
        paths.extend(config.ca_file.clone());
        if let Some((certificates, private)) = config.identity.clone() {
            paths.extend([certificates, private]);
        }
        if paths.is_empty() {
            return match system() {
                Ok(connector) => Ok(Self(Settings::System(connector))),
                Err(problem) => Err(FileRefused {
                    key: key.into(),
                    problem,
                }),
            };
        }
        let (named, config) = (paths.clone(), config.clone());
        let read = move |texts: &[Vec<u8>]| {
            let mut files = named.iter().zip(texts);
            let authorities = match (&config.ca_file, files.len()) {
                (Some(_), _) => {
                    let (path, text) = files.next().ok_or("no file was read")?;
                    read_certificates(path, text)?
                }
                (None, _) => Vec::new(),
            };
            let identity = match (files.next(), files.next()) {
                (Some((path, text)), Some((key_path, key))) => Some(Identity::read(
                    (path, text),
                    (key_path, key),
                    "a client of TLS",
                )?),
                _ => None,
            };
            connector(authorities, identity.as_ref())
        };
        let files = Reread::open(key, paths, read)?;
        Ok(Self(Settings::Files(Arc::new(files))))
    }

    /// Completes the TLS handshake with a server whose certificate must be for `name`, a host name
    /// or an address. Offers `protocols` (ALPN), each after its length.
    ///
    /// # Errors
    ///
    /// If the handshake fails, or the certificate is not accepted.
    pub async fn connect(
        &self,
        socket: TcpStream,
        name: &str,
        protocols: &[u8],
    ) -> io::Result<Stream> {
        let mut settings = match &self.0 {
            Settings::System(connector) => connector.configure()?,
            Settings::Files(files) => files.fresh(LOOK_EVERY).await.configure()?,
        };
        settings.set_alpn_protos(protocols)?;
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let mut stream = Box::new(SslStream::new(settings.into_ssl(name)?, socket)?);
        let connected = Pin::new(&mut *stream).connect().await;
        connected.map_err(|error| match stream.ssl().verify_result() {
            X509VerifyResult::OK => io::Error::other(error),
            refused => io::Error::other(format!(
                "the certificate of {name} is not accepted: {refused}"
            )),
        })?;
        Ok(Stream::Tls(stream))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// The settings that trust the system's certificates. These are many, so they are loaded once.
fn system() -> Result<SslConnector, String> {
    static SYSTEM: OnceLock<SslConnector> = OnceLock::new();
    if let Some(system) = SYSTEM.get() {
        return Ok(system.clone());
    }
    let system = connector(Vec::new(), None)?;
    Ok(SYSTEM.get_or_init(|| system).clone())
}

fn connector(authorities: Vec<X509>, identity: Option<&Identity>) -> Result<SslConnector, String> {
    let build = || {
        let mut connector = SslConnector::builder(SslMethod::tls_client())?;
        connector.set_verify(SslVerifyMode::PEER);
        // OpenSSL's default directory is that of the machine on which the program was built.
        let system = openssl_probe::probe();
        if let Some(file) = &system.cert_file {
            connector.load_verify_locations(Some(file), None)?;
        }
        for directory in &system.cert_dir {
            connector.load_verify_locations(None, Some(directory))?;
        }
        for authority in authorities {
            connector.cert_store_mut().add_cert(authority)?;
        }
        if let Some(identity) = identity {
            identity.add_to(&mut connector)?;
        }
        Ok(connector.build())
    };
    build().map_err(|error: openssl::error::ErrorStack| format!("TLS cannot be set up: {error}"))
}
