//! An identity provider for tests: its metadata and its keys, over HTTPS. A test rotates its keys,
//! makes it misbehave, and reads how often it was asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::LOCATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use openssl::ssl::{Ssl, SslAcceptor, SslFiletype, SslMethod};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_openssl::SslStream;
use waybill_test_support::certificate::Certificate;

use super::jwt::{Signing, claims};

const METADATA: &str = "/realms/acme/.well-known/openid-configuration";
const KEYS: &str = "/realms/acme/keys";
const ELSEWHERE: &str = "/elsewhere";

/// How the provider behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    Good,
    /// It closes every connection.
    Unreachable,
    /// It answers 503.
    Unavailable,
    /// It redirects requests for keys to where they are.
    Redirecting,
    /// Its keys are followed by 2 MiB of spaces.
    Oversized,
    /// Its metadata is of another issuer, which is alike except for a slash.
    OtherIssuer,
    /// Its metadata has keys over HTTP on another machine.
    Unencrypted,
    /// A symmetric key is among its keys.
    Symmetric,
}

struct Shared {
    behaviour: Behaviour,
    signing: Signing,
    asked: Vec<String>,
}

/// A running provider.
pub struct IdentityProvider {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    directory: tempfile::TempDir,
}

impl IdentityProvider {
    /// Starts a provider with one key.
    pub async fn start(behaviour: Behaviour) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = Certificate::new().write(directory.path());
        // Without ALPN: clients then use HTTP/1.1.
        let mut tls = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        tls.set_certificate_chain_file(certificate).unwrap();
        tls.set_private_key_file(key, SslFiletype::PEM).unwrap();
        let tls = tls.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared {
            behaviour,
            signing: Signing::named("first"),
            asked: Vec::new(),
        }));
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                if lock(&serving).behaviour == Behaviour::Unreachable {
                    continue;
                }
                let (tls, serving) = (tls.clone(), Arc::clone(&serving));
                tokio::spawn(async move {
                    let ssl = Ssl::new(tls.context()).unwrap();
                    let mut stream = Box::pin(SslStream::new(ssl, socket).unwrap());
                    if stream.as_mut().accept().await.is_err() {
                        return;
                    }
                    let service = service_fn(move |request| {
                        let response = respond(&mut lock(&serving), address, &request);
                        async { Ok::<_, Infallible>(response) }
                    });
                    // One request a connection, so that a change of behaviour applies at once.
                    let mut http = http1::Builder::new();
                    let connection = http.keep_alive(false);
                    _ = connection
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            shared,
            directory,
        }
    }

    /// The file with the certificate to trust.
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("tls.crt")
    }

    /// Its name in tokens.
    pub fn issuer(&self) -> String {
        issuer(self.address)
    }

    /// The URL of its keys.
    pub fn keys_url(&self) -> String {
        format!("https://localhost:{}{KEYS}", self.address.port())
    }

    pub fn behave(&self, behaviour: Behaviour) {
        lock(&self.shared).behaviour = behaviour;
    }

    /// Replaces its key.
    pub fn rotate(&self, id: &str) {
        lock(&self.shared).signing = Signing::named(id);
    }

    /// Its current key.
    pub fn signing(&self) -> Signing {
        lock(&self.shared).signing.clone()
    }

    /// A token of a person in these groups.
    pub fn token(&self, groups: &Value) -> String {
        self.signing().token(&self.claims(groups))
    }

    /// The claims of such a token.
    pub fn claims(&self, groups: &Value) -> Value {
        let mut claims = claims("openid", "acme");
        claims["iss"] = json!(self.issuer());
        claims["realm_access"] = json!({"roles": groups});
        claims
    }

    /// How often its keys were asked for.
    pub fn fetches(&self) -> usize {
        self.count(KEYS)
    }

    /// How often a redirect was followed.
    pub fn redirects_followed(&self) -> usize {
        self.count(ELSEWHERE)
    }

    fn count(&self, path: &str) -> usize {
        let shared = lock(&self.shared);
        shared.asked.iter().filter(|asked| *asked == path).count()
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap()
}

fn issuer(address: SocketAddr) -> String {
    format!("https://localhost:{}/realms/acme", address.port())
}

fn respond(
    shared: &mut Shared,
    address: SocketAddr,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    shared.asked.push(path.clone());
    let response = |status: u16, text: String| {
        let response = Response::builder().status(status);
        response.body(Full::from(text)).unwrap()
    };
    if shared.behaviour == Behaviour::Unavailable {
        return response(503, "{}".to_owned());
    }
    let here = format!("https://localhost:{}", address.port());
    match (path.as_str(), shared.behaviour) {
        (METADATA, behaviour) => {
            let slash = match behaviour {
                Behaviour::OtherIssuer => "/",
                _ => "",
            };
            let keys = match behaviour {
                Behaviour::Unencrypted => format!("http://id.example{KEYS}"),
                _ => format!("{here}{KEYS}"),
            };
            let metadata = json!({"issuer": issuer(address) + slash, "jwks_uri": keys});
            response(200, metadata.to_string())
        }
        (KEYS, Behaviour::Redirecting) => Response::builder()
            .status(302)
            .header(LOCATION, format!("{here}{ELSEWHERE}"))
            .body(Full::default())
            .unwrap(),
        (KEYS, Behaviour::Oversized) => {
            response(200, shared.signing.set() + &" ".repeat(2 * 1024 * 1024))
        }
        (KEYS, Behaviour::Symmetric) => {
            let symmetric = json!({"kty": "oct", "kid": "secret", "k": "c2VjcmV0"});
            let mut set: Value = serde_json::from_str(&shared.signing.set()).unwrap();
            set["keys"].as_array_mut().unwrap().push(symmetric);
            response(200, set.to_string())
        }
        (KEYS | ELSEWHERE, _) => response(200, shared.signing.set()),
        _ => response(404, String::new()),
    }
}
