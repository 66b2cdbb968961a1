//! A certificate authority with one certificate, for a test.

use std::io::Write as _;

use native_tls::Identity;
use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_native_tls::TlsAcceptor;

/// A self-signed certificate for `localhost`.
pub struct Authority {
    certificate: X509,
    key: PKey<Private>,
}

impl Authority {
    pub fn new() -> Self {
        let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();

        let mut serial = BigNum::new().unwrap();
        serial.rand(64, MsbOption::MAYBE_ZERO, false).unwrap();
        let mut name = X509NameBuilder::new().unwrap();
        name.append_entry_by_text("CN", "localhost").unwrap();
        let name = name.build();

        let mut certificate = X509::builder().unwrap();
        certificate.set_version(2).unwrap();
        let serial = serial.to_asn1_integer().unwrap();
        certificate.set_serial_number(&serial).unwrap();
        certificate.set_subject_name(&name).unwrap();
        certificate.set_issuer_name(&name).unwrap();
        certificate.set_pubkey(&key).unwrap();
        let [start, end] = [0, 1].map(|days| Asn1Time::days_from_now(days).unwrap());
        certificate.set_not_before(&start).unwrap();
        certificate.set_not_after(&end).unwrap();
        let constraints = BasicConstraints::new().critical().ca().build().unwrap();
        certificate.append_extension(constraints).unwrap();
        let mut names = SubjectAlternativeName::new();
        let names = names.dns("localhost");
        let names = names.build(&certificate.x509v3_context(None, None));
        certificate.append_extension(names.unwrap()).unwrap();
        certificate.sign(&key, MessageDigest::sha256()).unwrap();
        Self {
            certificate: certificate.build(),
            key,
        }
    }

    /// The certificate's file, for clients that trust it.
    pub fn certificate_file(&self) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        let pem = self.certificate.to_pem().unwrap();
        file.write_all(&pem).unwrap();
        file
    }

    /// The TLS settings of a server with this certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        let certificate = self.certificate.to_pem().unwrap();
        let key = self.key.private_key_to_pem_pkcs8().unwrap();
        let identity = Identity::from_pkcs8(&certificate, &key).unwrap();
        native_tls::TlsAcceptor::new(identity).unwrap().into()
    }
}

/// Answers one request over HTTPS with 200, and returns its head; `None` if the client disconnects
/// without a request.
pub async fn serve_https_once(listener: TcpListener, acceptor: TlsAcceptor) -> Option<String> {
    let (stream, _) = listener.accept().await.ok()?;
    let mut stream = acceptor.accept(stream).await.ok()?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(answer).await.ok()?;
    // A close with unread bytes would reset the connection, and the answer might be lost.
    let _ = stream.read_to_end(&mut request).await;
    String::from_utf8(request).ok()
}
