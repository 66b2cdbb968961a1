//! Sample deliveries for new users. Like those of other clients, they go through the HTTP API, and
//! the status topic reports their completion.

use std::collections::HashMap;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::sync::CancellationToken;
use waybill_config::Secret;
use waybill_engine::{OperationId, OperationStatus, PartitionId, ProcessState};
use waybill_http::auth::{Principal, Scope, Tenants, bearer};
use waybill_kafka::{ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_messages::Framing;
use waybill_node::admin::Admin;
use waybill_node::config::Config;
use waybill_node::shutdown::{Running, Stage};

use super::Dependencies;
use super::ingestion::Api;

/// The number of concurrent requests.
const CLIENTS: usize = 16;
/// How often the progress line is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum time for the broker to return the end of the status topic.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends `count` sample deliveries once the process is ready.
pub(super) fn start(
    count: u64,
    api: Api,
    dependencies: Dependencies,
    config: &Config,
    admin: &Admin,
    running: &Running,
) {
    let Dependencies { kafka, topics, .. } = dependencies;
    // To the API the samples are ordinary requests, which need a token.
    let token = admin.auth().authenticator().map(|authenticator| {
        authenticator.own_token(Principal {
            name: "samples".into(),
            scopes: [Scope::Submit].into_iter().collect(),
            tenants: Tenants::All,
            agents: std::sync::Arc::default(),
        })
    });
    let topic = topics.operation_status().to_owned();
    let partitions = config.partitions;
    let readiness = admin.readiness.clone();
    let addresses = Addresses {
        http: url(api.address, api.tls.is_on()),
        is_encrypted: api.tls.is_on(),
        admin: url(
            admin.address().unwrap_or(config.admin.listen),
            config.admin.tls.is_on(),
        ),
        asks: token.is_some(),
    };
    running.spawn_job(Stage::Samples, "samples", |stop| async move {
        while !readiness.missing().is_empty() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        let samples = Arc::new(Samples::new(count, token, stop));
        let follower = samples.clone();
        let consumer =
            tokio::task::spawn_blocking(move || consumer_at_the_end(&kafka, &topic, partitions))
                .await??;
        let following =
            tokio::task::spawn_blocking(move || follower.follow(&consumer, topics.framing()));
        samples.run(api).await?;
        following.await??;
        println!("{}", samples.line());
        println!("{addresses}");
        Ok(())
    });
}

/// Addresses to print for the user.
struct Addresses {
    http: String,
    admin: String,
    /// Whether the API speaks TLS.
    is_encrypted: bool,
    /// Whether the listeners require a token.
    asks: bool,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            http,
            admin,
            is_encrypted,
            asks,
        } = self;
        let trust = if *is_encrypted {
            " --cacert CA-FILE"
        } else {
            ""
        };
        // Other users could see a token in an argument.
        let (header_file, token) = match asks {
            true => (
                "(umask 077; printf 'authorization: Bearer %s\\n' \"$(cat TOKEN-FILE)\" > HEADER-FILE)\n  ",
                " -H @HEADER-FILE",
            ),
            false => ("", ""),
        };
        write!(
            f,
            "\nSend one yourself:\n\n  {header_file}\
             curl -i{trust} {http}/api/deliveryrequests -H 'content-type: application/json'{token} -d '\n  \
             {{\"ownerId\":\"ada\",\"pickupLocation\":\"12 Harbour Street\",\
             \"dropOffLocation\":\"7 Hill Road\",\n   \
             \"packageInfo\":{{\"packageId\":\"p-1\",\"size\":\"Small\",\"weight\":1.5}}}}'\n\n\
             and follow the Location of the response with: curl -s{trust}{token} '{http}<Location>'\n\n\
             API documentation:   {http}/docs\n\
             Metrics, partitions: {admin}/metrics  {admin}/schedulers\n\n\
             Ctrl-C shuts the process down cleanly; the next start continues all operations."
        )
    }
}

/// The URL of an address for local clients; `localhost` if it listens on all addresses.
fn url(address: SocketAddr, is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "https" } else { "http" };
    match address.ip().is_unspecified() {
        true => format!("{scheme}://localhost:{}", address.port()),
        false => format!("{scheme}://{address}"),
    }
}

fn consumer_at_the_end(
    kafka: &KafkaSettings,
    topic: &str,
    partitions: u32,
) -> anyhow::Result<PartitionConsumer> {
    let consumer = PartitionConsumer::new(kafka, &ConsumerOptions::new("waybill-samples"))?;
    let mut ends = Vec::new();
    for partition in (0..partitions).map(PartitionId) {
        let (_, end) = consumer.watermarks(topic, partition, BROKER_TIMEOUT)?;
        ends.push((topic, partition, end));
    }
    consumer.assign(&ends)?;
    Ok(consumer)
}

struct Samples {
    count: u64,
    token: Option<Secret>,
    stop: CancellationToken,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    sent: u64,
    accepted: u64,
    refused: u64,
    /// Accepted and not final, with the start time.
    open: HashMap<OperationId, Instant>,
    /// Final before the answer to the request arrived.
    early: HashMap<OperationId, (Instant, ProcessState)>,
    durations: Vec<Duration>,
    failed: u64,
}

impl Samples {
    fn new(count: u64, token: Option<Secret>, stop: CancellationToken) -> Self {
        Self {
            count,
            token,
            stop,
            progress: Mutex::default(),
        }
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: &Arc<Self>, api: Api) -> anyhow::Result<()> {
        let Api { address, tls } = api;
        let connector = tower::service_fn(move |_: hyper::Uri| {
            let tls = tls.clone();
            Box::pin(async move { tls.connect(address).await.map(TokioIo::new) })
        });
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(self.clone().send_all(client.clone(), address));
        }
        let live = std::io::stdout().is_terminal();
        loop {
            if live {
                print!("\r{}", self.line());
                let _ = std::io::stdout().flush();
            }
            if self.is_over() {
                break;
            }
            tokio::time::sleep(PROGRESS_INTERVAL).await;
        }
        if live {
            print!("\r");
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        Ok(())
    }

    async fn send_all<C: Connect + Clone + Send + Sync + 'static>(
        self: Arc<Self>,
        client: Client<C, Full<Bytes>>,
        http: SocketAddr,
    ) -> anyhow::Result<()> {
        while let Some(number) = self.next() {
            let began = Instant::now();
            let mut request = Request::post(format!("http://{http}/api/deliveryrequests"))
                .header(header::CONTENT_TYPE, "application/json");
            if let Some(token) = &self.token {
                request = request.header(header::AUTHORIZATION, bearer(token)?);
            }
            let request = request.body(Full::from(sample(number).to_string()))?;
            let answer = client
                .request(request)
                .await
                .context("a sample got no response")?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            self.answered(status, &body, began);
        }
        Ok(())
    }

    fn next(&self) -> Option<u64> {
        let mut progress = self.progress();
        if progress.sent >= self.count || self.stop.is_cancelled() {
            return None;
        }
        progress.sent += 1;
        Some(progress.sent)
    }

    fn answered(&self, status: StatusCode, body: &[u8], began: Instant) {
        let mut progress = self.progress();
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let id = body["id"]
            .as_str()
            .and_then(|id| id.parse::<OperationId>().ok());
        match id.filter(|_| status == StatusCode::ACCEPTED) {
            Some(id) => {
                progress.accepted += 1;
                match progress.early.remove(&id) {
                    Some((at, state)) => progress.finished(began, at, state),
                    None => drop(progress.open.insert(id, began)),
                }
            }
            None => {
                progress.refused += 1;
                tracing::warn!(%status, %body, "the API refused a sample");
            }
        }
    }

    /// Reads final states until every sample has one.
    fn follow(&self, consumer: &PartitionConsumer, framing: &Framing) -> anyhow::Result<()> {
        const LIMITS: PollLimits = PollLimits {
            records: 1_000,
            bytes: 1024 * 1024,
        };
        while !self.is_over() {
            consumer.poll(LIMITS, PROGRESS_INTERVAL, &mut |record| {
                let decoded = record.value().map(|value| framing.decode(value));
                let Some(Ok::<OperationStatus, _>(status)) = decoded else {
                    return;
                };
                let now = Instant::now();
                let mut progress = self.progress();
                match progress.open.remove(&status.operation) {
                    Some(began) => progress.finished(began, now, status.state),
                    None => drop(progress.early.insert(status.operation, (now, status.state))),
                }
            })?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let progress = self.progress();
        let ended = progress.durations.len() as u64 + progress.failed + progress.refused;
        ended >= self.count || self.stop.is_cancelled()
    }

    /// The progress line.
    fn line(&self) -> String {
        let mut progress = self.progress();
        progress.durations.sort_unstable();
        let Progress {
            accepted,
            refused,
            open,
            durations,
            failed,
            ..
        } = &*progress;
        let quantile = |share: f64| {
            let rank = ((durations.len() as f64 * share).ceil() as usize).saturating_sub(1);
            durations
                .get(rank)
                .map_or(0.0, |duration| duration.as_secs_f64() * 1_000.0)
        };
        format!(
            "accepted {accepted}  in flight {}  completed {}  failed {}  p50 {:.1} ms  p99 {:.1} ms  ",
            open.len(),
            durations.len(),
            failed + refused,
            quantile(0.5),
            quantile(0.99),
        )
    }
}

impl Progress {
    fn finished(&mut self, began: Instant, at: Instant, state: ProcessState) {
        match state {
            ProcessState::Processed => {
                self.durations.push(at.saturating_duration_since(began));
            }
            _ => self.failed += 1,
        }
    }
}

/// A delivery. Every fifth one goes to a remote location.
fn sample(number: u64) -> serde_json::Value {
    let place = if number.is_multiple_of(5) {
        "a remote island"
    } else {
        "7 Hill Road"
    };
    serde_json::json!({
        "ownerId": format!("owner-{}", number % 100),
        "pickupLocation": "12 Harbour Street",
        "dropOffLocation": place,
        "packageInfo": {
            "packageId": format!("sample-{number}"),
            "size": "Small",
            "weight": 1.5,
            "tag": "sample",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_commands_contain_no_token() {
        let mut addresses = Addresses {
            http: "http://localhost:8080".to_owned(),
            admin: "http://localhost:8081".to_owned(),
            is_encrypted: false,
            asks: true,
        };
        let text = addresses.to_string();
        let commands: Vec<&str> = text.lines().filter(|it| it.contains("curl")).collect();
        assert_eq!(commands.len(), 2, "{text}");
        for command in commands {
            assert!(command.contains(" -H @HEADER-FILE"), "{command}");
            assert!(!command.contains("TOKEN-FILE"), "{command}");
        }
        assert!(text.contains("umask 077; printf "), "{text}");

        addresses.asks = false;
        assert!(!addresses.to_string().contains("HEADER-FILE"));
    }
}
