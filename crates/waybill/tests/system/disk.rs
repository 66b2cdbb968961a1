//! A disk that is low on space or full: the data directory is on a small file system that a foreign
//! file fills.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use waybill_test_support::process::Process;
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{Setup, delivery};

use crate::is_remote;

const LISTENERS: &[&str] = &["http", "admin", "broker", "services"];
/// The size of the file system. `storage.freeMin: auto` is a quarter of it.
const DISK_MIB: u64 = 160;

/// A file system in memory. Dropping it unmounts it, even while it is in use.
struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one at `at`. If that is not possible, prints a line and returns `None`.
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).expect("the directory is writable");
        if Self::is_mounted(&at, &format!("size={DISK_MIB}m")) {
            return Some(Self { at });
        }
        println!("SKIPPED: a full disk: only root can mount a small file system, on Linux");
        None
    }

    fn is_mounted(at: &Path, options: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        let status = mount.stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Changes how many files it may have.
    fn limit_files(&self, files: u32) {
        let options = format!("remount,size={DISK_MIB}m,nr_inodes={files}");
        assert!(Self::is_mounted(&self.at, &options), "it is mounted again");
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.at).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    fn foreign(&self) -> PathBuf {
        self.at.join("foreign")
    }

    /// Fills it with a foreign file, except for `leave` bytes.
    fn fill(&self, leave: u64) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.foreign())
            .expect("a file can be made");
        while self.free() > leave {
            let piece = (self.free() - leave).clamp(1, 1 << 20) as usize;
            match file.write_all(&vec![1; piece]) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return,
                written => written.expect("only room can lack"),
            }
        }
    }

    /// Removes the foreign file.
    fn empty(&self) {
        fs::remove_file(self.foreign()).expect("the other file exists");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// A setup with its own disk for data. The services are elsewhere, because their ledger must stay
/// writable.
fn setup_on_a_disk() -> Option<(Setup, Disk)> {
    let setup = Setup::new("partitions: 2\n");
    if setup.is_on_servers() {
        println!("SKIPPED: a full disk, on servers: nothing of theirs is on it");
        return None;
    }
    let disk = Disk::mount(setup.path("data"))?;
    fs::create_dir(setup.path("services")).expect("the directory is writable");
    std::os::unix::fs::symlink(setup.path("services"), setup.path("data/services"))
        .expect("links can be made");
    Some((setup, disk))
}

/// Starts or stops all schedulers.
async fn run(setup: &Setup, running: bool) {
    for shard in 0..2 {
        let url = setup.url("admin", &format!("/schedulers/{shard}"));
        let body = serde_json::json!({ "running": running });
        let answer = setup.client.put(url).json(&body).send().await;
        let answer = answer.expect("the admin port answers");
        let status = answer.status();
        let message = answer.text().await.unwrap_or_default();
        assert!(
            status.is_success(),
            "{status}: {message}\n{}",
            setup.log_tail()
        );
    }
}

async fn deliver(setup: &Setup, prefix: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for index in 0..count {
        let request = delivery(&format!("{prefix}-{index}"), is_remote(index));
        ids.push(setup.deliver(&request).await);
    }
    ids
}

/// Waits until a new request is refused for lack of space, and returns its answer.
async fn refused(setup: &Setup, id: &str) -> (Option<String>, Value) {
    let url = setup.url("http", "/api/deliveryrequests");
    let refusal = tokio::sync::Mutex::new(None);
    // Each with a new ID, because a repeat of an accepted one is answered as accepted.
    let asked = AtomicUsize::new(0);
    setup
        .eventually("new requests are refused", async || {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            let request = delivery(&format!("{id}-{number}"), false);
            let Ok(answer) = setup.client.post(&url).json(&request).send().await else {
                return false;
            };
            let is_503 = answer.status() == 503;
            let after = answer.headers().get("retry-after");
            let after = after.map(|value| value.to_str().expect("a number").to_owned());
            let body: Value = answer.json().await.unwrap_or_default();
            let is_it = is_503 && body["type"] == "/problems/insufficient-storage";
            *refusal.lock().await = Some((after, body));
            is_it
        })
        .await;
    refusal.into_inner().expect("it was answered")
}

async fn readiness(setup: &Setup) -> String {
    let answer = setup.client.get(setup.url("admin", "/readyz")).send().await;
    let text = answer.expect("the admin port answers").text().await;
    text.expect("readiness is text")
}

fn doctor(setup: &Setup) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    let ran = without_variables(&mut command)
        .args(["doctor", "--config"])
        .arg(setup.path("waybill.yaml"))
        .args(["--admin", &setup.address("admin").to_string()])
        .args(["--http", &setup.address("http").to_string()])
        .args(["--brokers", &setup.address("broker").to_string()])
        .output()
        .expect("the program was built");
    let printed = [ran.stdout, ran.stderr].concat();
    String::from_utf8_lossy(&printed).into_owned()
}

fn is_alive(process: &mut Process) -> bool {
    let ended = process
        .child
        .try_wait()
        .expect("the child can be waited for");
    ended.is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_low_disk_refuses_new_requests_and_finishes_accepted_ones() {
    let Some((mut setup, disk)) = setup_on_a_disk() else {
        return;
    };
    let mut process = setup.start("up", &[], LISTENERS);
    setup.ready().await;
    let log = fs::read_to_string(setup.path("log.txt")).expect("the process writes a log");
    assert!(
        log.contains("the topics may outgrow the disk") && log.contains("of 160MiB are free"),
        "{log}"
    );
    run(&setup, false).await;
    let ids = deliver(&setup, "before", 40).await;

    // The threshold is a quarter of the disk. The rest is enough for accepted operations.
    disk.fill((DISK_MIB / 4 - 8) << 20);
    let (after, body) = refused(&setup, "during").await;
    assert_eq!(after.as_deref(), Some("10"), "{body}");
    let readiness = readiness(&setup).await;
    assert!(readiness.contains("free disk space ("), "{readiness}");
    assert!(
        readiness.contains("storage.freeMin is 40 MiB"),
        "{readiness}"
    );
    assert_eq!(setup.metric("waybill_disk_low", "").await, 1.0);
    let found = doctor(&setup);
    assert!(found.contains("storage.freeMin is 40 MiB"), "{found}");

    run(&setup, true).await;
    setup.all_reach(&ids, "Processed").await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());
    let repeated = setup.deliver(&delivery("before-0", is_remote(0))).await;
    assert_eq!(repeated, ids[0], "what was accepted is no new request");

    disk.empty();
    let more = deliver(&setup, "after", 5).await;
    setup.all_reach(&more, "Processed").await;
    setup.ready().await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// The broker has its own disk, which is not full: the embedded store must wait and continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_disk_ends_no_process() {
    let Some((mut setup, disk)) = setup_on_a_disk() else {
        return;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command.args([
        "broker",
        "--broker-listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    command.arg("--data-dir").arg(setup.path("brokers"));
    let (_broker, addresses) = Process::start(command, &["broker"], &setup.path("log.txt"));
    let at = addresses["broker"].to_string();
    let up = ["--brokers", &*at];
    let listeners = ["http", "admin", "services"];
    let mut process = setup.start("up", &up, &listeners);
    setup.ready().await;
    let done = deliver(&setup, "done", 10).await;
    setup.all_reach(&done, "Processed").await;
    run(&setup, false).await;
    let ids = deliver(&setup, "before", 40).await;

    disk.fill(0);
    // It answers once the partition has an owner, which is not possible yet.
    let setup = Arc::new(setup);
    let asking = tokio::spawn({
        let setup = setup.clone();
        async move { run(&setup, true).await }
    });
    refused(&setup, "during").await;
    setup
        .eventually("the store has met the full disk", async || {
            readiness(&setup)
                .await
                .contains("the state store could not write")
        })
        .await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());
    assert_eq!(
        setup.state(&done[0]).await.as_deref(),
        Some("Processed"),
        "reads continue"
    );
    asking.abort();
    process.kill();

    let mut process = setup.again("up", &up, &listeners);
    refused(&setup, "again").await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());

    disk.empty();
    setup.all_reach(&ids, "Processed").await;
    let more = deliver(&setup, "after", 5).await;
    setup.all_reach(&more, "Processed").await;
    setup.ready().await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// The whole `up` is on one disk: neither its broker nor its store can write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_on_a_full_disk_waits_and_recovers() {
    let Some((mut setup, disk)) = setup_on_a_disk() else {
        return;
    };
    let mut process = setup.start("up", &[], LISTENERS);
    setup.ready().await;
    let done = deliver(&setup, "done", 10).await;
    setup.all_reach(&done, "Processed").await;
    run(&setup, false).await;
    let ids = deliver(&setup, "before", 40).await;

    disk.fill(0);
    refused(&setup, "during").await;
    // It answers once the partition has an owner, which is not possible yet.
    let setup = Arc::new(setup);
    let asking = tokio::spawn({
        let setup = setup.clone();
        async move { run(&setup, true).await }
    });
    setup
        .eventually("the store has met the full disk", async || {
            readiness(&setup)
                .await
                .contains("the state store could not write")
        })
        .await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());
    assert_eq!(
        setup.state(&done[0]).await.as_deref(),
        Some("Processed"),
        "reads continue"
    );
    asking.abort();
    process.kill();

    // A start on a full disk works too.
    let mut process = setup.again("up", &[], LISTENERS);
    refused(&setup, "again").await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());

    disk.empty();
    setup.all_reach(&ids, "Processed").await;
    let more = deliver(&setup, "after", 5).await;
    setup.all_reach(&more, "Processed").await;
    setup.ready().await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// A first start has to create files, for which a full disk has no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_without_free_inodes_waits_until_there_are_some() {
    let Some((mut setup, disk)) = setup_on_a_disk() else {
        return;
    };
    disk.limit_files(60);
    let any = "127.0.0.1:0";
    let elsewhere = ["--http", any, "--broker-listen", any, "--services", any];
    let process = setup.start("up", &elsewhere, &["admin"]);
    setup
        .eventually("readiness names the inodes", async || {
            let readiness = readiness(&setup).await;
            readiness.contains("disk space for new data (") && readiness.contains("inodes")
        })
        .await;
    disk.limit_files(100_000);
    setup.ready().await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// A first start has to create files, for which a full disk has no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_on_a_full_disk_waits_until_there_is_room() {
    let Some((mut setup, disk)) = setup_on_a_disk() else {
        return;
    };
    // As a start leaves it that was killed before it created a file of the store.
    let store = setup.path("data/store");
    fs::create_dir(&store).expect("the disk is writable");
    // Enough for a few files: a start that does not wait fails halfway.
    disk.fill(200 << 10);
    let any = "127.0.0.1:0";
    let elsewhere = ["--http", any, "--broker-listen", any, "--services", any];
    let mut process = setup.start("up", &elsewhere, &["admin"]);
    setup
        .eventually("readiness names the disk", async || {
            let readiness = readiness(&setup).await;
            readiness.contains("disk space for new data (") && readiness.contains("16777216")
        })
        .await;
    setup
        .eventually("the log says that it waits", async || {
            setup.log_tail().contains("waiting until space is freed")
        })
        .await;
    assert!(is_alive(&mut process), "{}", setup.log_tail());
    let files = fs::read_dir(&store).expect("it is readable").count();
    assert!(!setup.path("data/broker").exists() && files == 0);

    disk.empty();
    setup.ready().await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
    let process = setup.start("up", &[], LISTENERS);
    setup.ready().await;
    let ids = deliver(&setup, "first", 5).await;
    setup.all_reach(&ids, "Processed").await;
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}
