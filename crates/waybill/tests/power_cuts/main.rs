//! Power cuts: `waybill up` is killed under load, and everything that it had not synced may be
//! lost. Whatever was accepted must be there after the next start, and end with one effect per
//! step.
//!
//! `WAYBILL_TEST_POWER_CUTS=<n>` sets how often, and `WAYBILL_TEST_POWER_SEED=<n>` how.

mod disk;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use waybill_test_support::setup::{Dice, Setup, delivery};

use self::disk::{Lost, UnsyncedDisk};

const CUTS: u64 = 4;
const SEED: u64 = 1;
/// How many callers send requests, each one after the other.
const CALLERS: usize = 4;
/// How many power cuts follow each other before all operations must have ended.
const CUTS_BEFORE_THE_END: u64 = 10;
const LISTENERS: &[&str] = &["http", "admin", "broker", "services"];

/// The IDs of accepted operations, in the order of their requests' numbers.
#[derive(Default)]
struct Accepted {
    next: AtomicUsize,
    ids: Mutex<Vec<(usize, String)>>,
}

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

/// Whether the delivery with this number goes to a remote place.
fn is_remote(number: usize) -> bool {
    number.is_multiple_of(2)
}

/// Sends requests until `stop`. A request without an answer is sent again after the next start,
/// with the same ID.
async fn call(setup: Arc<Setup>, accepted: Arc<Accepted>, stop: Arc<AtomicBool>) {
    let url = setup.url("http", "/api/deliveryrequests");
    while !stop.load(Ordering::Relaxed) {
        let number = accepted.next.fetch_add(1, Ordering::Relaxed);
        let request = delivery(&format!("cut-{number}"), is_remote(number));
        loop {
            if let Ok(answer) = setup.client.post(&url).json(&request).send().await
                && answer.status().is_success()
                && let Ok(body) = answer.json::<serde_json::Value>().await
            {
                let id = body["id"].as_str().expect("an answer has an id").to_owned();
                accepted
                    .ids
                    .lock()
                    .expect("no caller panicked")
                    .push((number, id));
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_power_cut_loses_or_doubles_what_was_accepted() {
    if !cfg!(target_os = "linux") {
        println!("SKIPPED: power cuts: only on Linux is a library preloaded and a file identified");
        return;
    }
    let cuts = setting("WAYBILL_TEST_POWER_CUTS", CUTS);
    let mut dice = Dice(setting("WAYBILL_TEST_POWER_SEED", SEED));
    let mut setup = Setup::new("partitions: 2\n");
    let disk = UnsyncedDisk::new(&setup.path(""), &setup.path("data"));
    // The services are the world outside: they keep what they did.
    std::fs::create_dir(setup.path("services")).expect("the directory is writable");
    std::os::unix::fs::symlink(setup.path("services"), setup.path("data/services"))
        .expect("links can be made");
    setup.env = disk.env();
    disk.boot();
    let mut process = setup.start("up", &[], LISTENERS);
    let setup = Arc::new(setup);
    let accepted = Arc::new(Accepted::default());
    let mut lost = Lost::default();
    let mut ended = 0;
    for cut in 1..=cuts {
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| tokio::spawn(call(setup.clone(), accepted.clone(), stop.clone())))
            .collect();
        setup.ready().await;
        // Any moment: this is no wait for a condition.
        tokio::time::sleep(Duration::from_millis(dice.below(1_200))).await;
        process.kill();
        stop.store(true, Ordering::Relaxed);
        let of_cut = disk.cut(&mut dice);
        lost.add(of_cut);
        disk.boot();
        process = setup.again("up", &[], LISTENERS);
        for caller in callers {
            caller.await.expect("a caller ends");
        }
        let is_last = cut == cuts;
        if is_last || cut.is_multiple_of(CUTS_BEFORE_THE_END) {
            // At the end all once more: nothing may change what has ended.
            let from = if is_last { 0 } else { ended };
            ended = all_end_well(&setup, &accepted, from).await;
            println!("{cut} power cuts, {ended} accepted, taken back: {lost:?}");
        }
    }
    assert!(lost.sectors > 0, "{lost:?}");
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

/// All operations that were accepted after the first `from` reach their end with one effect per
/// step. Returns how many were accepted.
async fn all_end_well(setup: &Setup, accepted: &Accepted, from: usize) -> usize {
    setup.ready().await;
    let ids = accepted.ids.lock().expect("no caller panicked")[from..].to_vec();
    let only_ids: Vec<String> = ids.iter().map(|(_, id)| id.clone()).collect();
    setup.all_reach(&only_ids, "Processed").await;
    let is_remote = |at: usize| is_remote(ids[at].0);
    setup.assert_one_effect_per_step(&only_ids, is_remote).await;
    from + ids.len()
}
