//! Certificates for tests, and connections that verify a server's certificate.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{Ssl, SslAcceptor, SslConnector, SslMethod};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// A self-signed certificate for `localhost` and 127.0.0.1.
pub struct Certificate {
    /// The certificate.
    pub x509: X509,
    key: PKey<Private>,
}

impl Certificate {
    /// A new certificate with its own key, valid for a day.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();
        let mut serial = BigNum::new().unwrap();
        serial.rand(64, MsbOption::MAYBE_ZERO, false).unwrap();
        let mut name = X509NameBuilder::new().unwrap();
        name.append_entry_by_text("CN", "localhost").unwrap();
        let name = name.build();
        let mut x509 = X509::builder().unwrap();
        x509.set_version(2).unwrap();
        x509.set_serial_number(&serial.to_asn1_integer().unwrap())
            .unwrap();
        x509.set_subject_name(&name).unwrap();
        x509.set_issuer_name(&name).unwrap();
        x509.set_pubkey(&key).unwrap();
        let [start, end] = [0, 1].map(|days| Asn1Time::days_from_now(days).unwrap());
        x509.set_not_before(&start).unwrap();
        x509.set_not_after(&end).unwrap();
        let constraints = BasicConstraints::new().critical().ca().build().unwrap();
        x509.append_extension(constraints).unwrap();
        let names = SubjectAlternativeName::new()
            .dns("localhost")
            .ip("127.0.0.1")
            .build(&x509.x509v3_context(None, None));
        x509.append_extension(names.unwrap()).unwrap();
        x509.sign(&key, MessageDigest::sha256()).unwrap();
        Self {
            x509: x509.build(),
            key,
        }
    }

    /// Writes the certificate and its key to `directory`. Returns their paths.
    pub fn write(&self, directory: &Path) -> (PathBuf, PathBuf) {
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.join(name));
        std::fs::write(&certificate, self.x509.to_pem().unwrap()).unwrap();
        let pem = self.key.private_key_to_pem_pkcs8().unwrap();
        std::fs::write(&key, pem).unwrap();
        (certificate, key)
    }

    /// A new file with the certificate, for clients that trust it.
    pub fn file(&self) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&self.x509.to_pem().unwrap()).unwrap();
        file
    }

    /// The TLS settings of a server with this certificate.
    pub fn acceptor(&self) -> SslAcceptor {
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&self.x509).unwrap();
        acceptor.set_private_key(&self.key).unwrap();
        acceptor.build()
    }

    /// Connects to a server with this certificate, for these protocols, such as `b"\x02h2"`.
    pub async fn connect(&self, to: SocketAddr, protocols: &[u8]) -> SslStream<TcpStream> {
        let mut connector = SslConnector::builder(SslMethod::tls_client()).unwrap();
        connector
            .cert_store_mut()
            .add_cert(self.x509.clone())
            .unwrap();
        connector.set_alpn_protos(protocols).unwrap();
        let ssl = connector.build().configure().unwrap();
        let ssl = ssl.into_ssl("localhost").unwrap();
        let socket = TcpStream::connect(to).await.unwrap();
        let mut stream = SslStream::new(ssl, socket).unwrap();
        Pin::new(&mut stream).connect().await.unwrap();
        stream
    }
}

/// Takes a client's TLS handshake on a connection.
///
/// # Errors
///
/// If it fails, such as for a client that does not trust the certificate.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &SslAcceptor,
    connection: S,
) -> io::Result<SslStream<S>> {
    let ssl = Ssl::new(acceptor.context())?;
    let mut stream = SslStream::new(ssl, connection)?;
    let accepted = Pin::new(&mut stream).accept().await;
    accepted.map_err(io::Error::other)?;
    Ok(stream)
}
