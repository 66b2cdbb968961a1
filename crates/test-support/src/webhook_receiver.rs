//! An HTTP server that receives alerts and answers as a test configures it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// The key of the tests' webhooks.
pub const KEY: &[u8] = b"123456789012345678901234";
/// [`KEY`] as a configuration has it.
pub const SECRET: &str = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0";

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This status.
    Status(u16),
    /// This status, with this `Retry-After`.
    RetryAfter(u16, &'static str),
    /// 200, once the test allows it.
    When(Arc<Notify>),
    /// No answer.
    Hang,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// When it was received.
    pub at: Instant,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Received {
    /// The value of the header, which must exist.
    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The number of further alerts of this kind that the request reports as repeats.
    pub fn repeats(&self) -> u64 {
        self.json()["data"]["repeats"].as_u64().unwrap()
    }

    /// Whether the request has a valid signature with this key.
    pub fn is_signed_with(&self, key: &[u8]) -> bool {
        let [id, timestamp, signature] =
            ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| self.header(name));
        let signature = signature.strip_prefix("v1,").expect("a v1 signature");
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(&self.body);
        mac.verify_slice(&BASE64_STANDARD.decode(signature).unwrap())
            .is_ok()
    }
}

#[derive(Clone)]
struct Shared {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    received: watch::Sender<Vec<Received>>,
}

/// The server. It answers 200 once its configured answers are used up.
pub struct Receiver {
    address: SocketAddr,
    received: watch::Receiver<Vec<Received>>,
    server: JoinHandle<()>,
}

impl Receiver {
    /// A server on a free port, with these first answers.
    pub async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answers)
    }

    /// A server on this listener, with these first answers.
    pub fn start_on(listener: TcpListener, answers: impl IntoIterator<Item = Answer>) -> Self {
        let (sender, received) = watch::channel(Vec::new());
        let shared = Shared {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            received: sender,
        };
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(answer).with_state(shared);
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            received,
            server,
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for alerts, with a key in its query.
    pub fn url(&self) -> String {
        format!("http://{}/alerts?key=hunter2", self.address)
    }

    /// All requests, once there are `count` of them.
    pub async fn received(&self, count: usize) -> Vec<Received> {
        let mut received = self.received.clone();
        let all = received.wait_for(|all| all.len() >= count).await.unwrap();
        all.clone()
    }

    /// The number of requests.
    pub fn count(&self) -> usize {
        self.received.borrow().len()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let answer = shared.answers.lock().unwrap().pop_front();
    shared.received.send_modify(|received| {
        received.push(Received {
            at: Instant::now(),
            headers,
            body,
        });
    });
    let status = |code| StatusCode::from_u16(code).unwrap();
    match answer.unwrap_or(Answer::Status(200)) {
        Answer::Status(code) => status(code).into_response(),
        Answer::RetryAfter(code, after) => (status(code), [("retry-after", after)]).into_response(),
        Answer::When(notify) => {
            notify.notified().await;
            status(200).into_response()
        }
        Answer::Hang => std::future::pending().await,
    }
}
