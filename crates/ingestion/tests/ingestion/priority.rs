//! High-priority requests.

use reqwest::StatusCode;
use serde_json::json;
use waybill_engine::{Amendment, OperationRequest};

use super::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_expedited_delivery_and_its_verbs_use_the_high_priority_topic() {
    let setup = Setup::start().await;
    let mut body = delivery();
    body["expedited"] = json!(true);
    let response = setup.post(DELIVERIES, body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = location(&response);
    let (_, accepted) = answer(response).await;
    assert!(setup.requests().is_empty());
    let [(record, OperationRequest::Create(create))] = &setup.high_priority()[..] else {
        panic!("one create")
    };
    let prefix = &create.request_hash.to_string()[..8];
    let token = format!("x{}-{}-{prefix}", record.partition, record.offset);
    let id = create.operation;
    assert_eq!(location, format!("{DELIVERIES}/{id}?at={token}"));
    let (status, pending) = setup.get(&location).await;
    assert_eq!(
        (status, &pending["state"]),
        (StatusCode::OK, &json!("Pending"))
    );
    assert_eq!(
        pending["request"], accepted["request"],
        "it is read from its topic"
    );

    for at in [format!("?at={token}"), String::new()] {
        let cancel = setup
            .http
            .delete(setup.url(&format!("{DELIVERIES}/{id}{at}")));
        let cancelled = cancel.send().await.unwrap();
        assert_eq!(cancelled.status(), StatusCode::ACCEPTED, "{at}");
    }
    let behind = setup.high_priority().split_off(1);
    let is_cancel = |request: &OperationRequest| {
        matches!(request, OperationRequest::Amend(amend)
            if matches!(amend.amendment, Amendment::Cancel { .. }) && amend.operation == id)
    };
    assert_eq!(behind.len(), 2);
    assert!(behind.iter().all(|(_, request)| is_cancel(request)));
    assert!(setup.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_general_form_names_the_priority_of_a_request() {
    let setup = Setup::start().await;
    let mut high = order("fast", 1);
    high["priority"] = json!("high");
    assert_eq!(setup.request(high).await.status(), StatusCode::ACCEPTED);
    let mut plain = order("slow", 2);
    plain["priority"] = json!(null);
    assert_eq!(setup.request(plain).await.status(), StatusCode::ACCEPTED);
    let mut held_back = json!({"workflow": "drone-delivery", "input": delivery()});
    held_back["input"]["expedited"] = json!(true);
    held_back["priority"] = json!("normal");
    assert_eq!(
        setup.request(held_back).await.status(),
        StatusCode::ACCEPTED
    );
    let callers = |taken: Vec<(Lying, OperationRequest)>| {
        let mut ids: Vec<Option<String>> = taken
            .into_iter()
            .map(|(_, request)| match request {
                OperationRequest::Create(create) => create.caller_id,
                OperationRequest::Amend(_) => panic!("nothing was amended"),
            })
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(callers(setup.high_priority()), [Some("fast".to_owned())]);
    assert_eq!(callers(setup.requests()), [None, Some("slow".to_owned())]);

    let mut again = order("fast", 1);
    again["priority"] = json!("normal");
    let repeated = setup.request(again).await;
    assert_eq!(repeated.status(), StatusCode::ACCEPTED, "the same request");
    assert_eq!(setup.requests().len(), 2, "it is not sent again");

    let mut wrong = order("wrong", 3);
    wrong["priority"] = json!("very");
    let (status, kind, problem) = problem(setup.request(wrong).await).await;
    assert_eq!((status, kind.as_str()), (422, "invalid-values"));
    assert_eq!(problem["errors"][0]["pointer"], "/priority");
}
