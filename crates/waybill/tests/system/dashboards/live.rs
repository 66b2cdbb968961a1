//! Every panel on a real Prometheus that scrapes a Waybill in which all events of the panels
//! happen.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use waybill_test_support::setup::{PATIENCE, Setup, delivery};
use waybill_test_support::supervision::setting::Setting;

use super::{Dashboard, as_sent};
use crate::{REPLIES, REQUESTS, is_remote};

/// Receivers at an address without a listener.
const NOBODY: &str = "\
alerts:
  receivers:
    pager: { webhook: { url: 'http://127.0.0.1:9/', secret: whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0 } }
  owners:
    sms: { url: 'http://127.0.0.1:9/', template: '{\"text\": \"{{notice.text}}\"}' }
";
/// The pause between two checks of the panels.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);
const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../prometheus/waybill.rules.yaml"
);

/// The test's own Prometheus. Dropping it kills it.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Scrapes the setup's admin port every second. Returns `None` if this machine has no
    /// Prometheus.
    fn scraping(setup: &Setup) -> Option<Self> {
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [RULES],
            "scrape_configs": [{
                "job_name": "waybill",
                "static_configs": [{ "targets": [setup.address("admin").to_string()] }],
            }],
        });
        let path = setup.path("prometheus.yml");
        std::fs::write(&path, config.to_string()).expect("the directory is writable");
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                setup.path("prometheus").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut lines = BufReader::new(child.stderr.take().expect("the output is piped")).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("msg=\"Listening on\"")?;
            let (_, address) = rest.split_once("address=")?;
            address.split_whitespace().next().map(str::to_owned)
        });
        // Reads to the end, so that it never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.expect("Prometheus says where it listens");
        Some(Self { child, address })
    }

    /// The number of results of a query.
    async fn results(&self, setup: &Setup, query: &str) -> usize {
        let url = format!("http://{}/api/v1/query", self.address);
        let asked = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
        let answer = setup
            .client
            .get(asked)
            .send()
            .await
            .expect("the process answers");
        let answer: Value = answer.json().await.expect("an answer is JSON");
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_panel_shows_data_of_a_running_installation() {
    let mut setting = Setting::hasty();
    setting.more.push_str(NOBODY);
    let mut setup = setting.setup();
    if setup.is_on_servers() {
        println!(
            "SKIPPED: dashboards on servers: panels of the embedded broker have nothing to show"
        );
        return;
    }
    let _up = setup.up();
    let Some(prometheus) = Prometheus::scraping(&setup) else {
        println!(
            "SKIPPED: dashboards were not held against Prometheus, which is not on this machine"
        );
        return;
    };
    setup.ready().await;
    everything_happens(&setup).await;

    let dashboards = Dashboard::all();
    let deadline = Instant::now() + PATIENCE;
    for round in 0.. {
        let mut empty = Vec::new();
        for (title, expression) in dashboards.iter().flat_map(Dashboard::queries) {
            if prometheus.results(&setup, &as_sent(expression)).await == 0 {
                empty.push(format!("{title}: {expression}"));
            }
        }
        if empty.is_empty() {
            return;
        }
        let message = empty.join("\n");
        assert!(Instant::now() < deadline, "nothing to show:\n{message}");
        // Keeps the system busy, because panels show the last half minute.
        let more = (0..20).map(|index| delivery(&format!("round-{round}-{index}"), false));
        setup.deliver_each(more).await;
        tokio::time::sleep(BETWEEN_ROUNDS).await;
    }
}

/// Deliveries that succeed, fail in several ways and are parked, and undecodable records.
async fn everything_happens(setup: &Setup) {
    let of = |prefix: &'static str| {
        (0..40).map(move |index| delivery(&format!("{prefix}-{index}"), is_remote(index)))
    };
    setup.deliver_each(of("well")).await;

    setup
        .put_faults(
            "drone",
            &json!({ "errorRate": 0.3, "doThenTimeoutRate": 0.1, "refuseRate": 0.3 }),
        )
        .await;
    setup
        .put_faults("package", &json!({ "undoRefuseRate": 1 }))
        .await;
    let failing = of("badly").map(|mut body| {
        body["notify"] = json!(["tel:+491701234567"]);
        body
    });
    setup.deliver_each(failing).await;

    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", setup.address("broker").to_string())
        .create()
        .expect("a producer can be made");
    for topic in [REQUESTS, REPLIES, "drone.requests"].map(|name| setup.topic(name)) {
        let record = BaseRecord::<[u8], [u8]>::to(&topic)
            .partition(0)
            .payload(b"garbage");
        producer.send(record).expect("there is room");
    }
    producer.flush(PATIENCE).expect("the broker accepts it");
}
