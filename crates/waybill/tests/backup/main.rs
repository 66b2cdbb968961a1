//! Backups of the program under load, restores of them, and operations that move between stores.

mod transfer;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use uuid::Uuid;
use waybill_test_support::process::Process;
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{Setup, delivery};
use waybill_test_support::supervision;
use waybill_test_support::supervision::setting::Setting;

/// The number of concurrent clients.
const CLIENTS: usize = 8;
/// The number of accepted deliveries before the backup, and before the kill.
const BEFORE: usize = 600;
const AFTER: usize = 900;
/// A client's pause between deliveries.
const PAUSE: Duration = Duration::from_millis(10);

fn is_remote(index: usize) -> bool {
    index.is_multiple_of(5)
}

/// A setup with this setting. Its checkpoints move often, so that one beyond its log would be
/// found.
fn setup_of(setting: &Setting) -> Setup {
    let setup = Setup::new("");
    let yaml = setting.sections(setup.path("").as_path());
    let yaml = format!("scheduler: {{ checkpointEvery: 50ms, handOffAfter: 300ms }}\n{yaml}");
    std::fs::write(setup.path("waybill.yaml"), yaml).unwrap();
    setup
}

/// A setup with the services of another process.
fn setup_at(services: &Setup) -> Setup {
    let mut setup = setup_of(&Setting::hasty());
    let address = services.address("services");
    setup.addresses.insert("services".to_owned(), address);
    setup
}

fn up(setup: &mut Setup) -> Process {
    let services = setup.address("services").to_string();
    let flags = ["--no-services", "--services", &services];
    setup.start("up", &flags, &["http", "admin", "broker"])
}

fn waybill(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command).args(arguments);
    command.output().unwrap()
}

/// Runs `waybill backup`. Fails with its error.
fn backup(setup: &Setup, file: &Path) -> String {
    let admin = setup.address("admin").to_string();
    let made = waybill(&["backup", file.to_str().unwrap(), "--admin", &admin]);
    message(&made, 0)
}

/// Runs `waybill restore` to the data directory of a setup.
fn restore(file: &Path, data_dir: &Path, code: i32) -> String {
    let data_dir = data_dir.to_str().unwrap();
    let restored = waybill(&["restore", file.to_str().unwrap(), "--data-dir", data_dir]);
    message(&restored, code)
}

fn message(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

/// Sends deliveries until it is stopped, and keeps the IDs of accepted ones.
struct Load {
    accepted: Arc<Mutex<Vec<(usize, String)>>>,
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn begin(setup: &Setup) -> Self {
        let accepted: Arc<Mutex<Vec<(usize, String)>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let clients = (0..CLIENTS).map(|_| {
            let (accepted, stop, next) = (Arc::clone(&accepted), stop.clone(), next.clone());
            let (client, url) = (
                setup.client.clone(),
                setup.url("http", "/api/deliveryrequests"),
            );
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(PAUSE).await;
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let body = delivery(&format!("delivery-{index}"), is_remote(index));
                    // The outcome of an unanswered request is unknown.
                    let Ok(answer) = client.post(&url).json(&body).send().await else {
                        continue;
                    };
                    if answer.status().is_success()
                        && let Ok(body) = answer.json::<serde_json::Value>().await
                    {
                        let id = body["id"].as_str().unwrap().to_owned();
                        accepted.lock().unwrap().push((index, id));
                    }
                }
            })
        });
        Self {
            clients: clients.collect(),
            accepted,
            stop,
        }
    }

    fn accepted(&self) -> Vec<(usize, String)> {
        self.accepted.lock().unwrap().clone()
    }

    async fn reaches(&self, setup: &Setup, count: usize) {
        let reached = async || self.accepted.lock().unwrap().len() >= count;
        setup.eventually("enough is accepted", reached).await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_restores_every_accepted_operation() {
    // The same keys are refused before and after the backup: undos after the backup are repeated.
    let faults =
        json!({ "errorRate": 0.01, "refuseRate": 0.05, "doThenTimeoutRate": 0.01, "jitterMs": 60 });
    let mut services = setup_of(&Setting::hasty().with_faults(&faults));
    let _services = services.start("services", &[], &["services"]);
    let mut first = setup_at(&services);
    let running = up(&mut first);
    first.ready().await;
    let load = Load::begin(&first);
    load.reaches(&first, BEFORE).await;
    let before = load.accepted();
    let file = first.path("one.tar.zst");
    let report = backup(&first, &file);
    assert!(report.contains(" operations, "), "{report}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut tar = Command::new("tar");
    let listed = tar.args(["--zstd", "-tf"]).arg(&file).output().unwrap();
    let listed = message(&listed, 0);
    for member in ["store/state/00000000", "manifest.json"] {
        assert!(listed.lines().any(|line| line == member), "{listed}");
    }
    assert!(!first.path("one.tar.zst.partial").exists());
    let nowhere = first.path("missing/one.tar.zst");
    let admin = first.address("admin").to_string();
    let refused = waybill(&["backup", nowhere.to_str().unwrap(), "--admin", &admin]);
    let refused = message(&refused, 1);
    let expected = format!("cannot create {}.partial: No such file", nowhere.display());
    assert!(refused.contains(&expected), "{refused}");
    let while_it_was_made = load.accepted().len();
    load.reaches(&first, AFTER.max(while_it_was_made + 1)).await;
    running.kill();
    let later = load.accepted();
    load.end().await;

    let mut second = setup_at(&services);
    let report = restore(&file, &second.path("data"), 0);
    assert!(report.contains(" operations, "), "{report}");
    let running = up(&mut second);
    second.ready().await;
    let answers = json!({ "errorRate": 0, "doThenTimeoutRate": 0 });
    for service in supervision::setting::SERVICES {
        services.put_faults(service, &answers).await;
    }
    let (indices, ids): (Vec<_>, Vec<_>) = before.into_iter().unzip();
    let remote = |index: usize| is_remote(indices[index]);
    let ends = second.all_end_in_balance(&ids, remote).await;
    assert_eq!(ends.error + ends.compensation_failed, 0, "{ends:?}");
    assert!(ends.processed > BEFORE / 2, "{ends:?}");
    // Later accepted deliveries are lost with the first setup. Sent again, each takes effect once.
    let mut later = later.iter().filter(|(index, _)| !indices.contains(index));
    let (index, id) = later.next_back().expect("the load continued");
    let again = second
        .deliver(&delivery(&format!("delivery-{index}"), is_remote(*index)))
        .await;
    assert_eq!(&again, id);
    second
        .all_end_in_balance(&[again], |_| is_remote(*index))
        .await;
    assert_eq!(running.terminate(), Some(0), "{}", second.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_backups_and_used_directories_are_refused() {
    let mut setup = Setup::new("partitions: 1\n");
    let running = setup.up();
    setup.ready().await;
    let id = setup.deliver(&delivery("one", false)).await;
    setup
        .all_reach(std::slice::from_ref(&id), "Processed")
        .await;
    let file = setup.path("whole.tar.zst");
    backup(&setup, &file);
    // An existing file is replaced.
    backup(&setup, &file);

    let taken = restore(&file, &setup.path("data"), 1);
    assert!(taken.contains("new or empty"), "{taken}");
    let whole = std::fs::read(&file).unwrap();
    let (bad, new) = (setup.path("bad.tar.zst"), setup.path("new"));
    let half = whole.len() / 2;
    let mut flipped = whole.clone();
    flipped[half] ^= 1;
    for (bytes, why) in [
        (&whole[..half], "truncated or altered "),
        (
            &whole[..whole.len() - 1],
            "truncated or altered after manifest.json",
        ),
        (&flipped[..], "truncated or altered "),
        (&b"{}"[..], "not a Waybill backup"),
    ] {
        std::fs::write(&bad, bytes).unwrap();
        let refused = restore(&bad, &new, 1);
        assert!(refused.contains(why), "{refused}");
        assert!(!new.exists() && !setup.path("new.partial").exists());
    }
    // A leftover of unknown origin.
    std::fs::create_dir(setup.path("new.partial")).unwrap();
    let left = restore(&file, &new, 1);
    assert!(left.contains("new.partial"), "{left}");
    std::fs::remove_dir(setup.path("new.partial")).unwrap();

    // An empty directory is free.
    std::fs::create_dir(&new).unwrap();
    restore(&file, &new, 0);
    assert_eq!(running.terminate(), Some(0));
    std::fs::rename(setup.path("data"), setup.path("old")).unwrap();
    std::fs::rename(&new, setup.path("data")).unwrap();
    let _running = setup.up();
    setup.ready().await;
    assert_eq!(setup.state(&id).await.as_deref(), Some("Processed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_backup_is_made_at_a_time_and_an_unread_one_is_aborted() {
    let mut setup = Setup::new("partitions: 1\n");
    let _running = setup.up();
    setup.ready().await;
    fill(&setup).await;
    let url = setup.url("admin", "/backup");
    let request = || setup.client.post(&url).json(&json!({})).send();
    let unread = request().await.unwrap();
    assert_eq!(unread.status(), 200);
    let second = request().await.unwrap();
    assert_eq!(second.status(), 409);
    let problem: serde_json::Value = second.json().await.unwrap();
    assert_eq!(problem["type"], "/problems/verb-refused", "{problem}");
    let admin = setup.address("admin").to_string();
    let file = setup.path("second.tar.zst");
    let refused = waybill(&["backup", file.to_str().unwrap(), "--admin", &admin]);
    let refused = message(&refused, 1);
    assert!(refused.contains("another backup"), "{refused}");
    assert!(!file.exists() && !setup.path("second.tar.zst.partial").exists());
    // The setup continues in the meantime, and the next backup can be made afterwards.
    let id = setup.deliver(&delivery("meanwhile", false)).await;
    setup.all_reach(&[id], "Processed").await;
    drop(unread);
    setup
        .eventually("the place is free again", async || {
            let answer = request().await;
            answer.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
}

/// Writes more to the broker than fits into the buffers to a client that does not read, although
/// the backup is compressed.
async fn fill(setup: &Setup) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", setup.address("broker").to_string());
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topic = NewTopic::new("ballast", 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new();
    admin.create_topics([&topic], &options).await.unwrap();
    let producer: FutureProducer = config.create().unwrap();
    for _ in 0..40 {
        let payload: Vec<u8> = (0..900_000 / 16)
            .flat_map(|_| Uuid::new_v4().into_bytes())
            .collect();
        let record = FutureRecord::<(), _>::to("ballast").payload(&payload);
        let sent = producer.send(record, Duration::from_secs(30)).await;
        sent.unwrap();
    }
}
