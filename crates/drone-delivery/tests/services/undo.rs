//! Undos and probes: in either order with the forward action, repeated, raced, and after a restart.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::site::{Site, code, directory, entry, kill, locations};

/// The path at which each service makes its effects, and the step that the tests use.
const EFFECTS: [(&str, &str); 4] = [
    ("/api/packages/p", "package"),
    ("/api/ThirdPartyDeliveries/t", "third-party"),
    ("/api/DroneDeliveries/d", "drone"),
    ("/api/Deliveries/d", "delivery"),
];

#[tokio::test]
async fn an_undo_is_counted_once_and_blocks_the_key() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let (path, key) = ("/api/DroneDeliveries/d", "op/drone");
    site.send("PUT", path, key, json!({})).await;
    for _ in 0..2 {
        let undone = site.send("DELETE", path, key, json!(null)).await;
        assert_eq!(undone.status(), StatusCode::NO_CONTENT);
    }
    let late = site.send("PUT", path, key, json!({})).await;
    assert_eq!(code(late).await, (409, "undone-before".to_owned()));
    assert_eq!(
        site.entries("op").await,
        [
            entry("drone", "run", false),
            entry("drone", "compensate", false),
            entry("drone", "compensate", true),
        ]
    );
    let summary = site.get("/ledger/summary").await;
    assert_eq!(
        summary["effects"]["drone"],
        json!({
            "run": 1, "compensate": 1, "standing": 0, "tombstones": 0, "refused": 1,
            "repeats": 1, "double": 0
        })
    );
}

#[test]
fn an_early_undo_blocks_the_key_even_after_a_restart() {
    let directory = directory();
    let (path, key) = ("/api/Deliveries/d", "op/delivery");
    let first = Runtime::new().expect("a runtime");
    let site = first.block_on(async {
        let site = Site::start(directory.path()).await;
        for _ in 0..2 {
            let undone = site.send("DELETE", path, key, json!(null)).await;
            assert_eq!(undone.status(), StatusCode::NO_CONTENT);
        }
        let late = site.send("PUT", path, key, json!({})).await;
        assert_eq!(code(late).await, (409, "undone-before".to_owned()));
        site
    });
    kill(site, first);
    Runtime::new().expect("a runtime").block_on(async {
        let site = Site::start(directory.path()).await;
        let late = site.send("PUT", path, key, json!({})).await;
        assert_eq!(code(late).await, (409, "undone-before".to_owned()));
        assert_eq!(site.entries("op").await, []);
        let with_tombstones = site.get("/ledger?operation=op&tombstones=true").await;
        assert_eq!(with_tombstones[0]["tombstone"], true);
        assert_eq!(with_tombstones[0]["action"], "compensate");
        let refused = ("delivery".to_owned(), "refused");
        assert_eq!(
            site.all_entries("op").await,
            [("delivery".to_owned(), "barred"), refused.clone(), refused]
        );
        let summary = site.get("/ledger/summary").await;
        assert_eq!(
            (&summary["tombstones"], &summary["repeats"]),
            (&json!(1), &json!(0))
        );
        assert_eq!(
            summary["effects"]["delivery"],
            json!({
                "run": 0, "compensate": 0, "standing": 0, "tombstones": 1, "refused": 2,
                "repeats": 0, "double": 0
            })
        );
        assert_eq!(summary["undone"], 1);
    });
}

#[tokio::test]
async fn every_effect_is_probed_and_undone_at_its_service() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    for (path, step) in EFFECTS {
        let key = format!("op/{step}");
        let probe = async || site.send("GET", path, &key, json!(null)).await;
        let not_performed = (404, "not-performed".to_owned());
        assert_eq!(code(probe().await).await, not_performed);
        let made = site.send("PUT", path, &key, locations("a", "remote")).await;
        assert_eq!(made.status(), StatusCode::CREATED);
        for _ in 0..2 {
            let probed = probe().await;
            assert_eq!(probed.status(), StatusCode::OK);
            assert_eq!(probed.headers()["content-type"], "application/json");
        }
        assert_eq!(
            made.bytes().await.expect("a body"),
            probe().await.bytes().await.expect("a body")
        );
        let undone = site.send("DELETE", path, &key, json!(null)).await;
        assert_eq!(undone.status(), StatusCode::NO_CONTENT);
        assert_eq!(code(probe().await).await, not_performed);
    }
    let all: Vec<_> = EFFECTS
        .into_iter()
        .flat_map(|(_, step)| ["made", "undone"].map(|outcome| (step.to_owned(), outcome)))
        .collect();
    assert_eq!(site.all_entries("op").await, all);
}

#[tokio::test]
async fn a_probe_sees_only_its_own_key_at_its_own_service() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    site.send("PUT", "/api/packages/p", "op/package", json!({}))
        .await;
    for (path, key) in [
        ("/api/packages/p", "op-2/package"),
        ("/api/packages/p", "op/other"),
        ("/api/Deliveries/p", "op/package"),
    ] {
        let other = site.send("GET", path, key, json!(null)).await;
        assert_eq!(code(other).await, (404, "not-performed".to_owned()));
    }
}

#[tokio::test]
async fn an_unneeded_transport_has_no_effect_and_its_undo_blocks_it() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let (path, key) = ("/api/ThirdPartyDeliveries/t", "op/third-party");
    let near = locations("a", "b");
    let unneeded = site.send("PUT", path, key, near.clone()).await;
    assert_eq!(unneeded.status(), StatusCode::OK);
    let probe = site.send("GET", path, key, json!(null)).await;
    assert_eq!(code(probe).await, (404, "not-performed".to_owned()));
    let undo = site.send("DELETE", path, key, json!(null)).await;
    assert_eq!(undo.status(), StatusCode::NO_CONTENT);
    for body in [near, locations("a", "remote")] {
        let late = site.send("PUT", path, key, body).await;
        assert_eq!(code(late).await, (409, "undone-before".to_owned()));
    }
}

#[tokio::test]
async fn undo_and_forward_action_end_undone_in_either_order() {
    const RACES: u64 = 200;
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let path = "/api/Deliveries/d";
    for number in 0..RACES {
        let key = format!("op-{number}/delivery");
        let run = async || site.send("PUT", path, &key, json!({})).await.status();
        let undo = async || site.send("DELETE", path, &key, json!(null)).await.status();
        let (ran, undone) = if number % 2 == 0 {
            tokio::join!(run(), undo())
        } else {
            let (undone, ran) = tokio::join!(undo(), run());
            (ran, undone)
        };
        assert_eq!(undone, StatusCode::NO_CONTENT);
        assert!([StatusCode::CREATED, StatusCode::CONFLICT].contains(&ran));
    }
    let summary = site.get("/ledger/summary").await;
    let delivery = &summary["effects"]["delivery"];
    let count = |name: &str| delivery[name].as_u64().expect("a count");
    assert_eq!(summary["undone"], RACES);
    assert_eq!(count("standing"), 0);
    assert_eq!(count("run"), count("compensate"));
    assert_eq!(count("tombstones"), count("refused"));
    assert_eq!(count("run") + count("tombstones"), RACES);
}

#[tokio::test]
async fn a_forward_action_that_a_slow_service_performs_after_its_undo_is_refused() {
    let directory = directory();
    let site = Site::start(directory.path()).await;
    let (path, key) = ("/api/packages/p", "op/package");
    site.faults("package", json!({ "latencyMs": 3_000 })).await;
    let slow = site
        .request("PUT", path)
        .header("Idempotency-Key", key)
        .timeout(Duration::from_millis(500))
        .send()
        .await;
    assert!(slow.expect_err("no answer in time").is_timeout());
    site.faults("package", json!({ "latencyMs": 0 })).await;
    let undo = site.send("DELETE", path, key, json!(null)).await;
    assert_eq!(undo.status(), StatusCode::NO_CONTENT);
    let barred = ("package".to_owned(), "barred");
    let refused = ("package".to_owned(), "refused");
    site.wait_for(async || site.all_entries("op").await == [barred.clone(), refused.clone()])
        .await;
}
