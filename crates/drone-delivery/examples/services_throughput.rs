//! Measures how many requests per second the services answer, and their CPU time per request.
//!
//! `cargo run --release -p waybill-drone-delivery --example services_throughput [seconds]`
//!
//! The services run on their own threads, whose CPU time the system counts (Linux). The client
//! shares the machine, so the cost per request is more meaningful than the rate.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use uuid::Uuid;
use waybill_drone_delivery::services::{Services, ServicesSettings};

const SERVICE_THREADS: &str = "services";
const CLIENTS: usize = 64;
const STEPS: [(&str, &str, &str); 5] = [
    ("GET", "Account", "account"),
    ("PUT", "packages", "package"),
    ("PUT", "ThirdPartyDeliveries", "third-party"),
    ("PUT", "DroneDeliveries", "drone"),
    ("PUT", "Deliveries", "delivery"),
];
const BODY: &[u8] =
    br#"{"pickupLocation":"my pickup","dropOffLocation":"drop off","size":"Small"}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    let directory = tempfile::tempdir()?;
    let config = ServicesSettings::new(([127, 0, 0, 1], 0).into(), directory.path().to_owned());
    for http2 in [false, true] {
        let servers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(SERVICE_THREADS)
            .enable_all()
            .build()?;
        let services = servers.block_on(Services::start(config.clone()))?;
        let clients = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let base = format!("http://{}", services.address());
        let cpu = cpu_of_services()?;
        let begin = Instant::now();
        let requests = clients.block_on(load(base, http2, Duration::from_secs(seconds)))?;
        let elapsed = begin.elapsed();
        let cpu = cpu_of_services()?.saturating_sub(cpu);
        println!(
            "{}: {:.0} requests/s, {:.1} µs of the services' CPU each",
            if http2 { "HTTP/2" } else { "HTTP/1.1" },
            requests as f64 / elapsed.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / requests as f64,
        );
        servers.block_on(services.shutdown());
    }
    Ok(())
}

/// Sends complete deliveries. Each client sends one request at a time.
async fn load(base: String, http2: bool, time: Duration) -> Result<u64, Box<dyn Error>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .build::<_, Full<Bytes>>(connector);
    let count = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + time;
    let mut running = Vec::new();
    for _ in 0..CLIENTS {
        let (client, base, count) = (client.clone(), base.clone(), count.clone());
        running.push(tokio::spawn(async move {
            while Instant::now() < end {
                let operation = Uuid::new_v4();
                for (method, collection, step) in STEPS {
                    let body = if method == "PUT" { BODY } else { &[] };
                    let request = Request::builder()
                        .method(method)
                        .uri(format!("{base}/api/{collection}/{operation}"))
                        .header("idempotency-key", format!("{operation}/{step}"))
                        .header("waybill-complete-by", "2100-01-01T00:00:00Z")
                        .body(Full::from(body))
                        .map_err(|error| error.to_string())?;
                    let answer = client.request(request).await;
                    let answer = answer.map_err(|error| error.to_string())?;
                    if !answer.status().is_success() {
                        return Err(format!("{step} answered {}", answer.status()));
                    }
                    let body = answer.into_body().collect().await;
                    body.map_err(|error| error.to_string())?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        }));
    }
    for client in running {
        client.await??;
    }
    Ok(count.load(Ordering::Relaxed))
}

/// The total CPU time of the services' threads.
fn cpu_of_services() -> Result<Duration, Box<dyn Error>> {
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let thread = thread?.path();
        if std::fs::read_to_string(thread.join("comm"))?.trim_end() == SERVICE_THREADS {
            let times = std::fs::read_to_string(thread.join("schedstat"))?;
            nanos += times
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanos))
}
