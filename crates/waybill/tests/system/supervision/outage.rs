//! A long outage of a service: its operations wait at no cost, and all others continue.

use serde_json::{Value, json};
use waybill_test_support::setup::{Setup, delivery};
use waybill_test_support::supervision::balance::Ledger;

use super::{Setting, replaced};

/// A workflow that does not use drones.
const ERRAND: &str = "
name: errand
version: 1
steps:
  - name: package
    agent: package
    timeout: 1s
";

/// How many times the drone agent reports `not-attempted` during the outage.
const NOT_ATTEMPTED: f64 = 250.0;

/// How many attempts may fail before the breaker opens: those in its window, and those in progress
/// at that time.
const OPENING: f64 = 30.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_one_service_blocks_no_other_workflow() {
    const DELIVERIES: usize = 100;
    const ERRANDS: usize = 100;
    // The drone service is in another process, so that it can stop alone.
    let mut elsewhere = Setup::new("");
    let drones = elsewhere.start("services", &[], &["services"]);
    let mut setting = Setting::hasty();
    let (before, from) = setting
        .agents
        .split_once("  - name: drone\n")
        .expect("the drones have an agent");
    let at = format!(
        "baseUrl: \"http://{}\"\n      breaker: {{ calls: 10, openFor: 500ms }}\n",
        elsewhere.address("services")
    );
    let from = replaced(from, "baseUrl: \"{services}\"\n", &at, 1);
    setting.agents = format!("{before}  - name: drone\n{from}");
    // A delivery that opens the breaker has one failure, and must not have another one.
    let workflow = &mut setting.workflows[0];
    *workflow = replaced(workflow, "maxAttempts: 8", "maxAttempts: 2", usize::MAX);
    setting.workflows.push(ERRAND.to_owned());
    let mut setup = setting.setup();
    let _up = setup.up();
    setup.ready().await;
    let by_drone = |name: &'static str, count| {
        (0..count).map(move |index| delivery(&format!("{name}-{index}"), false))
    };
    let mut ids = setup.deliver_each(by_drone("before", 50)).await;
    setup.all_reach(&ids, "Processed").await;

    drones.kill();
    let waiting = setup.deliver_each(by_drone("during", DELIVERIES)).await;
    setup
        .eventually("the breaker opens", async || {
            setup
                .metric("waybill_agent_breaker_state", "agent=\"drone\"")
                .await
                > 0.0
        })
        .await;
    let attempts = async |outcome: &str| {
        let labels = format!("agent=\"drone\",outcome=\"{outcome}\"");
        setup.metric("waybill_agent_attempts_total", &labels).await
    };
    setup
        .eventually("the outage lasts", async || {
            attempts("not-attempted").await >= NOT_ATTEMPTED
        })
        .await;
    let errands = errands(&setup, ERRANDS).await;
    setup.all_reach(&errands, "Processed").await;
    for id in &waiting {
        let operation = setup.operation(id).await.expect("the API answers");
        assert_eq!(operation["state"], "Processing", "{operation:#}");
    }
    let failures = attempts("transient").await;
    assert!(
        failures <= OPENING,
        "{failures} attempts failed: those that opened the breaker, and who else?"
    );

    let _drones = elsewhere.again("services", &[], &["services"]);
    ids.extend(waiting);
    setup.all_reach(&ids, "Processed").await;
    let (here, there) = (setup.ledger().await, elsewhere.ledger().await);
    for id in &ids {
        let steps = |ledger: &Ledger| {
            let mut steps: Vec<_> = ledger[id].clone().into_iter().collect();
            steps.sort();
            steps
        };
        let once = |step: &str| ((step.to_owned(), "run".to_owned()), 1);
        assert_eq!(steps(&here), [once("delivery"), once("package")], "{id}");
        assert_eq!(steps(&there), [once("drone")], "{id}");
    }
}

/// Sends operations of the other workflow.
async fn errands(setup: &Setup, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for index in 0..count {
        let package = json!({ "packageId": format!("errand-{index}"), "size": "Small" });
        let body = json!({ "workflow": "errand", "input": { "packageInfo": package } });
        let url = setup.url("http", "/v1/operations");
        let answer = setup.client.post(url).json(&body).send().await;
        let answer = answer.expect("the API answers");
        assert_eq!(answer.status(), 202);
        let body: Value = answer.json().await.expect("an answer is JSON");
        ids.push(body["id"].as_str().expect("an answer has an id").to_owned());
    }
    ids
}
