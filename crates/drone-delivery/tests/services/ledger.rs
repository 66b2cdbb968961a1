//! The contents, answers and counts of the ledger, also after a kill.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use uuid::Uuid;
use waybill_drone_delivery::services::{LedgerError, PAGE_OPERATIONS_MAX, Services, StartError};

use crate::site::{Site, config, directory, entry, kill};

#[test]
fn effects_survive_an_end_without_shutdown_and_a_torn_line_is_cut() {
    let directory = directory();
    let operation = "0197f3a0-7d2b-7c55-9d2e-3a4b5c6d7e8f";
    let key = format!("{operation}/package");
    let first = Runtime::new().expect("a runtime");
    let site = first.block_on(async {
        let site = Site::start(directory.path()).await;
        site.send("PUT", "/api/packages/p", &key, json!({})).await;
        site
    });
    kill(site, first);
    let path = directory.path().join("ledger.ndjson");
    let before = std::fs::read(&path).expect("the ledger");
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("the ledger");
    file.write_all(&before[..before.len() / 2])
        .expect("half a line");
    drop(file);
    Runtime::new().expect("a runtime").block_on(async {
        let site = Site::start(directory.path()).await;
        assert_eq!(std::fs::read(&path).expect("the ledger"), before);
        site.send("PUT", "/api/packages/p", &key, json!({})).await;
        assert_eq!(
            site.entries(operation).await,
            [
                entry("package", "run", false),
                entry("package", "run", true)
            ]
        );
        assert_eq!(site.get("/ledger/summary").await["double"], 0);
    });
}

#[tokio::test]
async fn a_ledger_with_a_second_effect_of_a_key_says_so() {
    let directory = directory();
    let line = |service: &str, at: u32| {
        json!({
            "operation": "op", "step": "s", "action": "run", "key": "op/s", "repeat": false,
            "at": format!("2030-01-01T00:00:{at:02}Z"), "service": service
        })
        .to_string()
    };
    let lines = [line("drone", 1), line("drone", 2), line("package", 3)].join("\n") + "\n";
    std::fs::write(directory.path().join("ledger.ndjson"), lines).expect("a ledger");
    let site = Site::start(directory.path()).await;
    let summary = site.get("/ledger/summary").await;
    assert_eq!(summary["double"], 2);
    assert_eq!(summary["effects"]["s"]["double"], 2);
    assert_eq!(
        site.lines("/ledger/operations").await,
        [json!({
            "operation": "op", "standing": ["s"], "undone": [], "barred": [], "double": ["s"]
        })]
    );
}

#[tokio::test]
async fn a_ledger_that_is_damaged_or_in_use_is_not_opened() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let second = Services::start(config(directory.path())).await;
    assert!(matches!(
        second.expect_err("one process at a time"),
        StartError::Ledger(LedgerError::InUse { .. })
    ));
    site.services.shutdown().await;

    std::fs::write(directory.path().join("ledger.ndjson"), "{}\nrest").expect("a ledger");
    let damaged = Services::start(config(directory.path())).await;
    assert!(matches!(
        damaged.expect_err("a damaged ledger"),
        StartError::Ledger(LedgerError::Line { offset: 0, .. })
    ));
}

#[tokio::test]
async fn the_whole_ledger_is_streamed_and_an_operation_is_found_in_a_long_one() {
    let directory = directory();
    let operations = 5_000;
    let lines: String = (0..operations)
        .map(|number| {
            format!(
                "{{\"operation\":\"op-{number}\",\"step\":\"package\",\"action\":\"run\",\
                 \"key\":\"op-{number}/package\",\"repeat\":false,\
                 \"at\":\"2030-01-01T00:00:00Z\",\"service\":\"package\"}}\n"
            )
        })
        .collect();
    std::fs::write(directory.path().join("ledger.ndjson"), &lines).expect("a ledger");
    let site = Site::start(directory.path()).await;
    site.send("DELETE", "/api/Deliveries/d", "op-x/delivery", json!(null))
        .await;
    site.send("PUT", "/api/Deliveries/d", "op-17/delivery", json!({}))
        .await;
    assert_eq!(
        site.entries("op-17").await,
        [
            entry("package", "run", false),
            entry("delivery", "run", false)
        ]
    );
    assert_eq!(site.entries("op-170000").await, []);
    let answer = site.request("GET", "/ledger").send().await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.expect("text");
    assert!(text.starts_with(&lines));
    assert_eq!(text.lines().count(), operations + 1);
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).expect("a line of JSON");
        assert!(entry.get("tombstone").is_none());
    }
}

#[test]
fn the_effects_of_each_operation_are_listed_and_counted_even_after_a_restart() {
    let directory = directory();
    let put = async |site: &Site, path: &str, key: &str| {
        let body = json!({ "pickupLocation": "remote", "dropOffLocation": "b" });
        let made = site.send("PUT", path, key, body).await;
        assert_eq!(made.status(), 201, "{key}");
    };
    let delete = async |site: &Site, path: &str, key: &str| {
        let undone = site.send("DELETE", path, key, json!(null)).await;
        assert_eq!(undone.status(), 204, "{key}");
    };
    let (package, drone, delivery) = (
        "/api/packages/p",
        "/api/DroneDeliveries/d",
        "/api/Deliveries/d",
    );
    let third_party = "/api/ThirdPartyDeliveries/t";
    let first = Runtime::new().expect("a runtime");
    let site = first.block_on(async {
        let site = Site::start(directory.path()).await;
        put(&site, package, "by-drone/package").await;
        put(&site, drone, "by-drone/drone").await;
        put(&site, delivery, "by-drone/delivery").await;

        put(&site, package, "by-others/package").await;
        put(&site, third_party, "by-others/third-party").await;
        put(&site, delivery, "by-others/delivery").await;

        put(&site, package, "by-both/package").await;
        put(&site, third_party, "by-both/third-party").await;
        put(&site, drone, "by-both/drone").await;
        put(&site, delivery, "by-both/delivery").await;

        put(&site, package, "begun/package").await;

        put(&site, package, "gone/package").await;
        delete(&site, drone, "gone/drone").await;
        delete(&site, package, "gone/package").await;

        put(&site, package, "half/package").await;
        put(&site, drone, "half/drone").await;
        delete(&site, drone, "half/drone").await;

        put(&site, package, "half-barred/package").await;
        delete(&site, drone, "half-barred/drone").await;

        delete(&site, delivery, "never/delivery").await;
        site
    });
    let operation = |name: &str, standing: &[&str], undone: &[&str], barred: &[&str]| {
        json!({
            "operation": name, "standing": standing, "undone": undone, "barred": barred,
            "double": []
        })
    };
    let expected = [
        operation("by-drone", &["package", "drone", "delivery"], &[], &[]),
        operation(
            "by-others",
            &["package", "delivery", "third-party"],
            &[],
            &[],
        ),
        operation(
            "by-both",
            &["package", "drone", "delivery", "third-party"],
            &[],
            &[],
        ),
        operation("begun", &["package"], &[], &[]),
        operation("gone", &[], &["package"], &["drone"]),
        operation("half", &["package"], &["drone"], &[]),
        operation("half-barred", &["package"], &[], &["drone"]),
        operation("never", &[], &[], &["delivery"]),
    ];
    let check = async |site: &Site| {
        assert_eq!(site.lines("/ledger/operations").await, expected);
        let summary = site.get("/ledger/summary").await;
        for (name, count) in [
            ("operations", 8),
            ("complete", 2),
            ("partial", 2),
            ("halfUndone", 2),
            ("undone", 2),
            ("tombstones", 3),
            ("double", 0),
        ] {
            assert_eq!(summary[name], count, "{name} of {summary}");
        }
        let package = &summary["effects"]["package"];
        assert_eq!(
            (
                &package["run"],
                &package["compensate"],
                &package["standing"]
            ),
            (&json!(7), &json!(1), &json!(6))
        );
    };
    first.block_on(check(&site));
    kill(site, first);
    Runtime::new().expect("a runtime").block_on(async {
        let site = Site::start(directory.path()).await;
        check(&site).await;
    });
}

#[tokio::test]
async fn many_operations_are_paged_in_order_and_new_ones_come_last() {
    const OPERATIONS: u128 = 20_000;
    let directory = directory();
    let name = |number: u128| match number % 2 {
        0 => Uuid::from_u128(number << 64 | 7).to_string(),
        _ => format!("op-{number}"),
    };
    let mut lines = String::new();
    for number in 0..OPERATIONS {
        for step in ["package", "drone"] {
            let operation = name(number);
            writeln!(
                lines,
                "{{\"operation\":\"{operation}\",\"step\":\"{step}\",\"action\":\"run\",\
                 \"key\":\"{operation}/{step}\",\"repeat\":false,\
                 \"at\":\"2030-01-01T00:00:00Z\",\"service\":\"{step}\"}}"
            )
            .expect("a string takes all");
        }
    }
    std::fs::write(directory.path().join("ledger.ndjson"), &lines).expect("a ledger");
    let site = Site::start(directory.path()).await;
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = format!("/ledger/operations?limit={PAGE_OPERATIONS_MAX}{after}");
        let page = site.lines(&page).await;
        for line in &page {
            if line["operation"] != "new" {
                assert_eq!(line["standing"], json!(["package", "drone"]));
            }
            seen.push(line["operation"].as_str().expect("a name").to_owned());
        }
        if page.len() < PAGE_OPERATIONS_MAX {
            break;
        }
        if seen.len() == PAGE_OPERATIONS_MAX {
            site.send("PUT", "/api/packages/p", "new/package", json!({}))
                .await;
            // A known operation keeps its place.
            site.send(
                "PUT",
                "/api/Deliveries/d",
                &format!("{}/drone", name(0)),
                json!({}),
            )
            .await;
        }
        after = format!("&after={}", seen[seen.len() - 1]);
    }
    let expected: Vec<_> = (0..OPERATIONS).map(name).collect();
    assert_eq!(seen.len(), expected.len() + 1);
    assert_eq!(seen[..expected.len()], expected);
    assert_eq!(seen[expected.len()], "new");
}
