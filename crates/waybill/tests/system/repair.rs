//! Failures that are compensated, parked and repaired through the API alone, and compared with the
//! ledger.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_test_support::process::Process;
use waybill_test_support::setup::{Setup, delivery};

/// A workflow that parks failures: its last step has no undo, but the first one has.
const PARKING: &str = "
name: parking
version: 1
onFailure: park
steps:
  - name: package
    agent: package
    compensation: { tombstones: true }
  - name: account
    agent: account
    kind: pure
";

/// All roles in one process, ready.
async fn up() -> (Setup, Process) {
    let mut setup = Setup::of_either_kind("");
    std::fs::write(setup.path("parking.yaml"), PARKING).expect("the directory is writable");
    let file = setup.path("parking.yaml");
    let yaml = format!(
        "partitions: 4\nworkflows: {{ files: [{}] }}\n",
        file.display()
    );
    std::fs::write(setup.path("waybill.yaml"), yaml).expect("the directory is writable");
    let process = setup.up();
    setup.ready().await;
    (setup, process)
}

fn verbs_of(history: &Value) -> Vec<String> {
    let entries = history.as_array().map(Vec::as_slice).unwrap_or_default();
    let applied = entries.iter().filter(|entry| entry["refused"].is_null());
    applied
        .map(|entry| entry["verb"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_drone_undoes_the_delivery_and_it_can_be_resubmitted() {
    let (setup, _process) = up().await;
    setup.put_faults("drone", &json!({"refuseRate": 1})).await;
    let id = setup.deliver(&delivery("refused", false)).await;
    let events = setup.events(&id).await;
    assert_eq!(events[0].0, "received");
    let (last, state) = events.last().expect("there are events");
    assert_eq!((last.as_str(), state.as_str()), ("final", "Compensated"));

    let shown = setup.reaches(&id, "Compensated").await;
    assert_eq!(shown["error"]["step"], "drone");
    assert_eq!(shown["verbs"], json!(["resubmit-as-new"]));
    let (standing, undone) = setup.balance(&id).await;
    assert_eq!(standing, Vec::<String>::new());
    assert_eq!(undone, ["package"]);

    setup.reset_faults("drone").await;
    let asked = setup
        .verb(&id, "resubmit", json!({"asNew": true, "by": "kim"}))
        .await;
    let new = asked["resubmittedAs"]
        .as_str()
        .expect("there is a new operation");
    let shown_new = setup.reaches(new, "Processed").await;
    assert_eq!(shown_new["resubmissionOf"], id);
    assert_eq!(setup.balance(new).await.0.len(), 3);
    setup
        .eventually("the old operation names the new one", async || {
            setup.shown(&id).await["resubmittedAs"] == new
        })
        .await;
    assert_eq!(setup.shown(&id).await["state"], "Compensated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_is_cancelled_before_and_after_its_request() {
    let (setup, _process) = up().await;
    setup.put_faults("drone", &json!({"latencyMs": 1500})).await;
    let id = setup.deliver(&delivery("slow", false)).await;
    setup
        .eventually("the drone is being scheduled", async || {
            let shown = setup.shown(&id).await;
            shown["steps"][3]["state"] == "Running"
        })
        .await;
    let early = json!({"pickupTime": "2030-01-01T11:00:00Z"});
    let path = "/api/deliveryrequests/slow";
    let (status, problem) = setup.request(Method::PATCH, path, Some(early)).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::CONFLICT, &json!("step-sent"))
    );
    let (status, asked) = setup.request(Method::DELETE, path, None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{asked}");
    let shown = setup.reaches(&id, "Cancelled").await;
    assert_eq!(shown["cancel"], "applied");
    assert_eq!(verbs_of(&shown["history"]), ["cancel"]);
    assert_eq!(shown["history"][0]["by"], "caller");
    assert_eq!(setup.balance(&id).await.0, Vec::<String>::new());

    let path = "/api/deliveryrequests/not-yet";
    let (status, _) = setup.request(Method::DELETE, path, None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let id = setup.deliver(&delivery("not-yet", false)).await;
    let shown = setup.reaches(&id, "Cancelled").await;
    assert_eq!(shown["cancel"], "applied");
    assert!(
        !setup.ledger().await.contains_key(&id),
        "no step took effect"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_undo_is_listed_survives_a_restart_and_is_repaired() {
    let (setup, process) = up().await;
    setup.put_faults("drone", &json!({"refuseRate": 1})).await;
    setup
        .put_faults("package", &json!({"undoRefuseRate": 1}))
        .await;
    let id = setup.deliver(&delivery("stuck", false)).await;
    setup.reaches(&id, "CompensationFailed").await;
    assert_eq!(setup.balance(&id).await.0, ["package"]);
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());

    let process = setup.again("up", &[], &["http", "admin", "broker", "services"]);
    setup.ready().await;
    let list = "/v1/operations?state=CompensationFailed";
    let (_, page) = setup.request(Method::GET, list, None).await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1), "{page}");
    let item = &page["items"][0];
    assert_eq!(
        (&item["id"], &item["step"]),
        (&json!(id), &json!("package"))
    );
    let events = setup.events(&id).await;
    let (last, state) = events.last().expect("there are events");
    assert_eq!(
        (last.as_str(), state.as_str()),
        ("final", "CompensationFailed")
    );
    // The restarted process did not see the operation being parked.
    setup.parked_become("CompensationFailed", 1.0).await;
    setup.parked_become("Error", 0.0).await;
    let age = "waybill_parked_oldest_age_seconds";
    assert!(
        setup.metric(age, "").await > 0.0,
        "the operation has been waiting"
    );
    let shown = setup.shown(&id).await;
    let open = shown["verbs"].as_array().expect("verbs are listed");
    for verb in ["retry-compensation", "undone", "abandon"] {
        assert!(open.contains(&json!(verb)), "{shown}");
    }

    setup.reset_faults("package").await;
    setup.reset_faults("drone").await;
    let why = json!({"reason": "the service is repaired", "by": "kim"});
    setup.verb(&id, "retry-compensation", why).await;
    let shown = setup.reaches(&id, "Compensated").await;
    assert_eq!(setup.balance(&id).await.0, Vec::<String>::new());
    let history = shown["history"].as_array().expect("there is a history");
    let entry = history.last().expect("the history has the verb");
    assert_eq!(
        (&entry["verb"], &entry["by"], &entry["reason"]),
        (
            &json!("retry-compensation"),
            &json!("kim"),
            &json!("the service is repaired")
        )
    );
    let (_, page) = setup.request(Method::GET, list, None).await;
    assert_eq!(page["items"], json!([]));
    setup.parked_become("CompensationFailed", 0.0).await;
    assert_eq!(setup.metric(age, "").await, 0.0, "no operation waits");
    assert_eq!(process.terminate(), Some(0), "{}", setup.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_operation_is_resumed_or_abandoned() {
    let (setup, _process) = up().await;
    setup.put_faults("account", &json!({"refuseRate": 1})).await;
    let mut ids = Vec::new();
    for name in ["goes-on", "stays"] {
        let input = delivery(name, false);
        let body = json!({"workflow": "parking", "id": name, "input": input});
        let (status, view) = setup
            .request(Method::POST, "/v1/operations", Some(body))
            .await;
        assert_eq!(status, StatusCode::ACCEPTED, "{view}");
        ids.push(
            view["id"]
                .as_str()
                .expect("the response has an id")
                .to_owned(),
        );
    }
    for id in &ids {
        setup.reaches(id, "Error").await;
    }
    let (_, page) = setup
        .request(Method::GET, "/v1/operations?step=account&limit=10", None)
        .await;
    let items = page["items"].as_array().expect("items are listed");
    assert_eq!(items.len(), 2, "{page}");
    assert_eq!(items[0]["fingerprint"], items[1]["fingerprint"]);

    setup.reset_faults("account").await;
    setup.verb(&ids[0], "resubmit", json!({})).await;
    let shown = setup.reaches(&ids[0], "Processed").await;
    assert_eq!(setup.balance(&ids[0]).await.0, ["package"]);
    let effects = &setup.ledger().await[&ids[0]];
    assert!(effects.values().all(|times| *times == 1), "{effects:?}");
    assert!(verbs_of(&shown["history"]).contains(&"resubmit".to_owned()));

    let why = json!({"reason": "the customer left"});
    setup.verb(&ids[1], "abandon", why).await;
    setup
        .eventually("the operation is abandoned", async || {
            setup.shown(&ids[1]).await["abandoned"] == json!(true)
        })
        .await;
    let (_, page) = setup.request(Method::GET, "/v1/operations", None).await;
    assert_eq!(page["items"], json!([]), "no operation is parked");
    assert_eq!(
        setup.balance(&ids[1]).await.0,
        ["package"],
        "the effects of the operation remain"
    );
}
