//! A server's address, and how to authenticate and encrypt.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;

use anyhow::Context as _;
use clap::Args;
use hyper::Request;
use hyper::header::{self, HeaderValue};
use openssl::ssl::{SslConnector, SslMethod};
use openssl::x509::X509;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// Credentials for the API.
#[derive(Args, Debug)]
#[command(next_help_heading = "Access")]
pub struct Access {
    /// File with the bearer token for the API
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use TLS for the API; its certificate must have this name
    #[arg(long, value_name = "NAME")]
    https: Option<String>,
    /// Additional trusted certificates (PEM)
    #[arg(long, value_name = "FILE", requires = "https")]
    ca_file: Option<PathBuf>,
}

/// A server's address, and how to authenticate and encrypt.
#[derive(Clone)]
pub struct Endpoint {
    address: SocketAddr,
    token: Option<HeaderValue>,
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    connector: SslConnector,
    name: String,
}

/// A connection.
pub enum Stream {
    /// Unencrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(SslStream<TcpStream>),
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
            tls: None,
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.address).finish()
    }
}

impl Endpoint {
    /// Adds the settings from the flags.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is invalid.
    pub fn with(mut self, access: &Access) -> anyhow::Result<Self> {
        if let Some(path) = &access.token_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("--token-file: {}", path.display()))?;
            let mut token = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
                .with_context(|| {
                    format!("--token-file: {} contains no valid token", path.display())
                })?;
            token.set_sensitive(true);
            self.token = Some(token);
        }
        if let Some(name) = &access.https {
            let mut connector = SslConnector::builder(SslMethod::tls_client())?;
            if let Some(path) = &access.ca_file {
                let text = std::fs::read(path)
                    .with_context(|| format!("--ca-file: {}", path.display()))?;
                for certificate in X509::stack_from_pem(&text)? {
                    connector.cert_store_mut().add_cert(certificate)?;
                }
            }
            self.tls = Some(Tls {
                connector: connector.build(),
                name: name.clone(),
            });
        }
        Ok(self)
    }

    /// The URL without a path.
    pub fn url(&self) -> String {
        match &self.tls {
            None => format!("http://{}", self.address),
            Some(_) => format!("https://{}", self.address),
        }
    }

    /// Adds the token to a request.
    pub fn admit<B>(&self, request: &mut Request<B>) {
        if let Some(token) = &self.token {
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, token.clone());
        }
    }

    /// The value of the `Host` header.
    pub fn host(&self) -> anyhow::Result<HeaderValue> {
        Ok(self.address.to_string().parse()?)
    }

    /// Connects with this protocol, in ALPN format: a length and the name.
    ///
    /// # Errors
    ///
    /// If no server answers, or its certificate is not trusted.
    pub async fn connect(&self, protocol: &[u8]) -> anyhow::Result<Stream> {
        let address = self.address;
        let socket = TcpStream::connect(address)
            .await
            .with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        let Some(Tls { connector, name }) = &self.tls else {
            return Ok(Stream::Plain(socket));
        };
        let mut ssl = connector.configure()?.into_ssl(name)?;
        ssl.set_alpn_protos(protocol)?;
        let mut stream = SslStream::new(ssl, socket)?;
        Pin::new(&mut stream)
            .connect()
            .await
            .with_context(|| format!("TLS handshake with {address} as {name} failed"))?;
        Ok(Stream::Tls(stream))
    }
}
