//! Operations that move from one store to another and continue there.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use reqwest::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;
use waybill_test_support::drop_keyspace;
use waybill_test_support::process::Process;
use waybill_test_support::setup::{Setup, delivery};
use waybill_test_support::supervision::setting::Setting;

use super::{message, setup_at, setup_of, up, waybill};

const SCYLLA: &str = "WAYBILL_TEST_SCYLLA";

/// The exported file, and the services of its operations.
struct Exported {
    services: Setup,
    _services: Process,
    first: Setup,
    file: PathBuf,
    ids: Vec<String>,
    parked: String,
}

/// A separate store for the import, with the flags that name it.
struct Target {
    setup: Setup,
    flags: Vec<String>,
}

impl Target {
    fn embedded(services: &Setup) -> Self {
        let setup = setup_at(services);
        let data = setup.path("data").display().to_string();
        Self {
            flags: ["--data-dir".to_owned(), data].into(),
            setup,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let config = self.setup.path("waybill.yaml").display().to_string();
        let flags = self.flags.iter().map(String::as_str);
        let all: Vec<&str> = arguments.iter().copied().chain(flags).collect();
        waybill(&[&all[..], &["--config", &config]].concat())
    }

    fn import(&self, file: &Path, code: i32) -> String {
        message(&self.run(&["import", file.to_str().unwrap()]), code)
    }

    fn export(&self, file: &Path, code: i32) -> String {
        message(
            &self.run(&["export", "--out", file.to_str().unwrap()]),
            code,
        )
    }
}

/// A stopped and exported setup with final operations, a parked one, and running ones.
async fn exported() -> Exported {
    let mut services = setup_of(&Setting::hasty());
    let _services = services.start("services", &[], &["services"]);
    let from = Target::embedded(&services);
    let mut first = from.setup;
    let from_flags = from.flags;
    let running = up(&mut first);
    first.ready().await;
    let mut ids = Vec::new();
    for index in 0..4 {
        ids.push(
            first
                .deliver(&delivery(&format!("done-{index}"), false))
                .await,
        );
    }
    first.all_reach(&ids, "Processed").await;
    services
        .put_faults("drone", &json!({ "refuseRate": 1 }))
        .await;
    services
        .put_faults("package", &json!({ "undoRefuseRate": 1 }))
        .await;
    let parked = first.deliver(&delivery("parked", false)).await;
    first
        .all_reach(std::slice::from_ref(&parked), "CompensationFailed")
        .await;
    services.clear_faults().await;
    services
        .put_faults("drone", &json!({ "latencyMs": 30_000 }))
        .await;
    let mut under_way = Vec::new();
    for index in 0..3 {
        under_way.push(
            first
                .deliver(&delivery(&format!("lingers-{index}"), false))
                .await,
        );
    }
    first
        .eventually("the drones are requested", async || {
            let ledger = first.ledger().await;
            under_way.iter().all(|id| ledger.contains_key(id))
        })
        .await;
    let file = first.path("all.ndjson");
    let from = Target {
        setup: first,
        flags: from_flags,
    };
    let locked = from.export(&file, 1);
    assert!(
        locked.contains("is in use by another process: stop that process first"),
        "{locked}"
    );
    assert_eq!(locked.matches("another process").count(), 1, "{locked}");
    assert!(!file.exists());
    assert_eq!(running.terminate(), Some(0), "{}", from.setup.log_tail());
    let report = from.export(&file, 0);
    assert!(report.contains("exported 8 operations"), "{report}");
    assert!(!report.contains("no scheduler has read"), "{report}");
    ids.push(parked.clone());
    ids.extend(under_way);
    Exported {
        services,
        _services,
        first: from.setup,
        file,
        ids,
        parked,
    }
}

/// Starts a setup on the imported store: a parked operation is repaired there, and running ones
/// end.
async fn goes_on(mut exported: Exported, target: &mut Target, flags: &[&str]) -> Exported {
    exported
        .services
        .put_faults("drone", &json!({ "latencyMs": 0 }))
        .await;
    let services = exported.services.address("services").to_string();
    let flags = [&["--no-services", "--services", &services], flags].concat();
    let setup = &mut target.setup;
    let running = setup.start("up", &flags, &["http", "admin", "broker"]);
    setup.ready().await;
    assert_eq!(
        setup.state(&exported.parked).await.as_deref(),
        Some("CompensationFailed")
    );
    let api = setup.url("http", "");
    let listed = message(&waybill(&["ops", "list", "--api", &api]), 0);
    assert!(listed.contains("CompensationFailed"), "{listed}");
    let url = format!("{api}/v1/operations/{}:retry-compensation", exported.parked);
    let body = json!({ "by": "a test", "reason": "the package may be undone now" });
    let answer = setup.client.post(url).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let parked = std::slice::from_ref(&exported.parked);
    setup.all_reach(parked, "Compensated").await;
    let ends = setup.all_end_in_balance(&exported.ids, |_| false).await;
    assert_eq!((ends.processed, ends.compensated), (7, 1), "{ends:?}");
    // A repeat of an imported request is recognized, and a new request is accepted.
    let again = setup.deliver(&delivery("done-0", false)).await;
    assert_eq!(again, exported.ids[0]);
    let fresh = setup.deliver(&delivery("fresh", false)).await;
    setup.all_reach(&[fresh], "Processed").await;
    assert_eq!(running.terminate(), Some(0), "{}", setup.log_tail());
    exported.ids.sort();
    exported
}

/// The operations in a file by ID, without the fields that every import sets.
fn lines(file: &Path) -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let operation = line.get_mut("operation")?.take();
            let id = operation["id"].as_str()?.to_owned();
            Some((id, operation))
        })
        .collect();
    for (_, operation) in &mut lines {
        for name in [
            "locked_by",
            "epoch",
            "next_due",
            "handed_off",
            "last_reply",
            "last_asked",
        ] {
            operation["state"][name] = Value::Null;
        }
        operation["created"]["request"] = Value::Null;
        let expires = operation["expiresAt"].as_i64();
        // To the hour: a database counts the remaining seconds.
        operation["expiresAt"] = expires.map(|at| at / 3_600_000_000).into();
    }
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exported_operations_continue_in_another_installation() {
    let exported = exported().await;
    let file = exported.file.clone();
    let mut target = Target::embedded(&exported.services);
    let report = target.import(&file, 0);
    assert!(
        report.contains("imported 8 operations: 3 in progress, 1 parked"),
        "{report}"
    );
    let report = target.import(&file, 0);
    assert!(report.contains("imported 0 operations"), "{report}");
    assert!(report.contains("8 imported before"), "{report}");
    let back = target.setup.path("back.ndjson");
    target.export(&back, 0);
    assert_eq!(lines(&back), lines(&file));
    let exported = goes_on(exported, &mut target, &[]).await;

    // Operations that have continued since are not reset.
    let report = target.import(&file, 1);
    assert!(report.contains("different contents"), "{report}");
    assert!(report.contains(&exported.parked), "{report}");
    let after = target.setup.path("after.ndjson");
    target.export(&after, 0);
    let parked = lines(&after)
        .into_iter()
        .find(|(id, _)| *id == exported.parked);
    assert_eq!(parked.unwrap().1["state"]["state"], "Compensated");
    drop(exported.first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_export_is_refused_and_nothing_is_imported() {
    let mut setup = Setup::new("partitions: 1\n");
    let running = setup.up();
    setup.ready().await;
    let mut ids = Vec::new();
    for index in 0..3 {
        ids.push(
            setup
                .deliver(&delivery(&format!("one-{index}"), false))
                .await,
        );
    }
    setup.all_reach(&ids, "Processed").await;
    assert_eq!(running.terminate(), Some(0));
    let (file, data) = (setup.path("all.ndjson"), setup.path("data"));
    let from = data.to_str().unwrap();
    let out = message(&waybill(&["export", "--data-dir", from]), 0);
    let whole = out.lines().filter(|line| line.starts_with('{'));
    let whole: Vec<&str> = whole.collect();
    assert_eq!(whole.len(), 5, "{out}");
    let bad = whole[2].replace("\"Processed\"", "\"Lost\"");
    let ahead = Value::from(4_000_000_000_000_000_i64).to_string();
    let mut future: Value = serde_json::from_str(whole[3]).unwrap();
    future["operation"]["stamp"] = serde_json::from_str(&ahead).unwrap();
    let future = future.to_string();
    let new = setup.path("new");
    let import = |lines: &[&str], code| {
        std::fs::write(&file, lines.join("\n") + "\n").unwrap();
        let target = new.to_str().unwrap();
        message(
            &waybill(&["import", file.to_str().unwrap(), "--data-dir", target]),
            code,
        )
    };
    for (lines, line, why) in [
        (&whole[..4], 4, "truncated"),
        (&whole[1..], 1, "expected a file of `waybill export`"),
        (&[whole[0], whole[1], whole[4]][..], 3, "are missing"),
        (&[whole[0], whole[1], &bad][..], 3, "Lost"),
        (
            &[whole[0], whole[1], &future][..],
            3,
            "ahead of this machine's clock",
        ),
        (
            &[whole[0], whole[1], whole[1], whole[4]][..],
            3,
            "duplicate operation",
        ),
        (
            &[whole[0], "{\"operation\":{\"id\""][..],
            2,
            "not a line of an export: expected JSON, and it ends at column ",
        ),
        (
            &["junk"][..],
            1,
            "not a line of an export: expected JSON, found something else",
        ),
        (
            &[&whole[..], &whole[1..2]].concat()[..],
            6,
            "after the end of the export",
        ),
    ] {
        let refused = import(lines, 1);
        let place = format!("{}:{line}", file.display());
        assert!(
            refused.contains(&place) && refused.contains(why),
            "{refused}"
        );
        assert!(!new.exists(), "{refused}");
    }
    assert!(import(&whole, 0).contains("imported 3 operations"));
    let mode = std::fs::metadata(&new).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "only its user may access it");
    let missing = waybill(&["export", "--data-dir", file.to_str().unwrap()]);
    assert!(message(&missing, 1).contains("does not exist"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exported_operations_continue_in_a_cluster() {
    let Ok(scylla) = std::env::var(SCYLLA) else {
        println!("SKIPPED: operations that move to a cluster: {SCYLLA} names none");
        return;
    };
    let exported = exported().await;
    let keyspace = format!("test_{}", Uuid::new_v4().simple());
    let setup = setup_at(&exported.services);
    let flags = ["--scylla", &scylla, "--keyspace", &keyspace];
    let mut target = Target {
        setup,
        flags: flags.map(str::to_owned).into(),
    };
    let config = target.setup.path("waybill.yaml");
    let yaml = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        format!("store: {{ scylla: {{ replicationFactor: 1 }} }}\n{yaml}"),
    )
    .unwrap();
    message(&target.run(&["store", "migrate"]), 0);
    let report = target.import(&exported.file, 0);
    assert!(report.contains("imported 8 operations"), "{report}");
    let report = target.import(&exported.file, 0);
    assert!(report.contains("8 imported before"), "{report}");
    let back = target.setup.path("back.ndjson");
    let report = target.export(&back, 0);
    assert!(report.contains("give --brokers to count them"), "{report}");
    assert_eq!(lines(&back), lines(&exported.file));
    let exported = goes_on(exported, &mut target, &flags).await;
    let report = target.import(&exported.file, 1);
    assert!(report.contains("different contents"), "{report}");
    drop_keyspace(&scylla, &keyspace).await.unwrap();
}
