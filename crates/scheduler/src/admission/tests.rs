use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use serde_json::json;
use uuid::Uuid;
use waybill_api::id::fresh;
use waybill_api::request::{Envelope, Rules, in_form, operation, resubmission};
use waybill_api::tenant_limits::TenantLimits;
use waybill_contacts::ContactRules;
use waybill_drone_delivery::DroneDelivery;
use waybill_engine::{Contact, Timestamp, Workflow, WorkflowDefinition, Workflows};

use super::*;

const DRONE_DELIVERY: &str = DroneDelivery::WORKFLOW;
const NOW: Timestamp = Timestamp(1_000_000);

fn forms() -> Forms {
    Forms::new([&DroneDelivery as _])
}

fn rules() -> Rules {
    let workflow = |name: &str| -> Workflow {
        let definition: WorkflowDefinition = serde_json::from_value(
            json!({"name": name, "version": 1, "steps": [{"name": "one", "agent": "agent"}]}),
        )
        .unwrap();
        definition.try_into().unwrap()
    };
    Rules {
        tenant_limits: TenantLimits::default(),
        has_high_priority_topic: true,
        workflows: Arc::new(
            Workflows::new(vec![workflow(DRONE_DELIVERY), workflow("order")]).unwrap(),
        ),
        forms: forms(),
        json_depth_max: json::DEPTH_LIMIT_MAX,
        reply_to_prefixes: vec!["replies.".into()],
        contacts: ContactRules {
            email_domains: Some(Vec::new()),
            sms: true,
        },
    }
}

fn delivery_body() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "here",
        "dropOffLocation": "there",
        "deadline": "2030-05-08T22:00:00Z",
        "packageInfo": {"packageId": "p", "size": "Small", "weight": 10},
    })
}

/// The request that ingestion makes of a body of the general form.
fn accepted(body: &Value, envelope: &Envelope) -> CreateRequest {
    operation(body.to_string().as_bytes(), envelope, &rules(), NOW)
        .unwrap()
        .record
}

/// The request that ingestion makes of a delivery.
fn accepted_delivery(body: &Value, envelope: &Envelope) -> CreateRequest {
    let form = forms().of(DRONE_DELIVERY).unwrap();
    in_form(form, body.to_string().as_bytes(), envelope, &rules(), NOW)
        .unwrap()
        .record
}

fn admitted(create: CreateRequest) -> Result<CreateRequest, Vec<String>> {
    match admit(OperationRequest::Create(create), &forms()) {
        Ok(OperationRequest::Create(create)) => Ok(create),
        Ok(OperationRequest::Amend(amend)) => panic!("{amend:?} is no create"),
        Err(Refused(faults)) => Err(faults),
    }
}

/// The request that ingestion makes to run `create` again as a new operation.
fn resubmitted(create: CreateRequest) -> CreateRequest {
    let again = CreateRequest {
        operation: OperationId(create.operation.event_id("resubmit-as-new")),
        id_origin: IdOrigin::Caller,
        caller_id: None,
        requested_at: Timestamp(1_800_000_000_000_000),
        resubmission_of: Some(create.operation),
        ..create
    };
    resubmission(again, &forms()).unwrap()
}

/// A request of a workflow without its own rules, as an external client may write it.
fn written(input: &str) -> CreateRequest {
    CreateRequest {
        operation: OperationId::of_caller("acme", "order-17"),
        id_origin: IdOrigin::Caller,
        workflow: "order".to_owned(),
        tenant: "acme".to_owned(),
        caller_id: Some("order-17".to_owned()),
        input: input.as_bytes().to_vec(),
        deadline: None,
        reply_to: Some("replies.acme".to_owned()),
        request_hash: NO_HASH,
        verify_hash: false,
        requested_at: NOW,
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    }
}

#[test]
fn requests_that_ingestion_accepts_pass_unchanged() {
    let none = Envelope::default();
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", HeaderValue::from_static("\"k-1\""));
    let keyed = Envelope::of(&headers);
    let ours = fresh("acme").to_string();
    let delivery_of = |body: Value, envelope: &Envelope| accepted_delivery(&body, envelope);
    let mut named = delivery_body();
    named["deliveryId"] = "d-1".into();
    let order = |id: Option<&str>| {
        json!({
            "workflow": "order", "tenant": "acme", "id": id, "input": {"b": 1.50, "a": ["x", null]},
            "deadline": "2030-05-08T22:00:00Z", "replyTo": "replies.acme",
            "notify": ["mailto:anna@example.org"],
        })
    };
    let general = |input: Value| json!({"workflow": DRONE_DELIVERY, "tenant": "t", "input": input, "deadline": "2029-01-01T00:00:00Z"});
    for record in [
        delivery_of(delivery_body(), &none),
        delivery_of(delivery_body(), &keyed),
        delivery_of(named.clone(), &none),
        accepted(&general(delivery_body()), &none),
        accepted(&general(named), &none),
        accepted(&order(None), &none),
        accepted(&order(Some("order-17")), &none),
        accepted(&order(Some(&ours)), &none),
        accepted(&order(None), &keyed),
    ] {
        assert_eq!(admitted(record.clone()), Ok(record));
    }
}

#[test]
fn a_request_without_a_hash_gets_the_one_that_ingestion_would_give_it() {
    let body = json!({
        "workflow": "order", "tenant": "acme", "id": "order-17", "replyTo": "replies.acme",
        "input": {"total": 1.5, "lines": []},
    });
    let by_http = accepted(&body, &Envelope::default());
    let by_topic = admitted(written(" {\"total\": 1.50, \"lines\": [ ] }")).unwrap();
    assert_eq!(by_topic.request_hash, by_http.request_hash);
    assert_eq!(by_topic.operation, by_http.operation);
    let other = admitted(written(r#"{"total": 2}"#)).unwrap();
    assert_ne!(other.request_hash, by_http.request_hash);
    let own = CreateRequest {
        request_hash: RequestHash([7; 16]),
        ..written("{}")
    };
    assert_eq!(admitted(own.clone()), Ok(own));
}

#[test]
fn a_delivery_is_completed_as_ingestion_does_it() {
    let body = json!({"workflow": DRONE_DELIVERY, "id": "d-1", "input": delivery_body()});
    let by_http = accepted(&body, &Envelope::default());
    let mut spelled_otherwise = delivery_body();
    spelled_otherwise["deadline"] = "2030-05-09T00:00:00+02:00".into();
    let by_topic = CreateRequest {
        input: spelled_otherwise.to_string().into_bytes(),
        deadline: None,
        request_hash: NO_HASH,
        verify_hash: false,
        ..by_http.clone()
    };
    let completed = CreateRequest {
        verify_hash: false,
        ..by_http
    };
    assert_eq!(admitted(by_topic), Ok(completed));
}

#[test]
fn a_resubmitted_delivery_ignores_its_old_deadline() {
    let body = json!({"workflow": DRONE_DELIVERY, "id": "d-1", "input": delivery_body()});
    let accepted = accepted(&body, &Envelope::default());
    let again = CreateRequest {
        requested_at: Timestamp(4_000_000_000_000_000),
        ..resubmitted(CreateRequest {
            deadline: None,
            ..accepted.clone()
        })
    };
    assert_eq!(admitted(again.clone()), Ok(again.clone()));
    let earlier = resubmitted(accepted);
    assert_eq!(
        earlier.request_hash, again.request_hash,
        "a repeat is no conflict because the deadline has passed in the meantime"
    );
}

#[test]
fn an_id_counts_as_new_only_if_ingestion_made_it() {
    let mut create = CreateRequest {
        id_origin: IdOrigin::Server,
        ..written("{}")
    };
    assert_eq!(
        admitted(create.clone()).unwrap().id_origin,
        IdOrigin::Caller
    );
    create.caller_id = None;
    create.operation = OperationId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0000));
    assert_eq!(
        admitted(create.clone()).unwrap().id_origin,
        IdOrigin::Caller
    );
    create.operation = fresh("acme");
    assert_eq!(admitted(create).unwrap().id_origin, IdOrigin::Server);
}

#[test]
fn every_wrong_field_of_a_create_is_named() {
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    let mut delivery = delivery_body();
    delivery["deliveryId"] = "another".into();
    delivery["packageInfo"]["size"] = "Huge".into();
    let good = || written("{}");
    for (create, wrong) in [
        (written("[1]"), vec!["input"]),
        (written("{"), vec!["input"]),
        (written(r#"{"a": 1, "a": 2}"#), vec!["input"]),
        (written(&format!(r#"{{"a": {deep}}}"#)), vec!["input"]),
        (
            CreateRequest {
                tenant: "a\u{7}".to_owned(),
                caller_id: Some("order 17".to_owned()),
                ..good()
            },
            vec!["tenant", "caller_id"],
        ),
        (
            CreateRequest {
                tenant: "other".to_owned(),
                ..good()
            },
            vec!["operation"],
        ),
        (
            CreateRequest {
                deadline: Some(NOW),
                reply_to: Some("no topic".to_owned()),
                workflow: "w".repeat(65),
                ..good()
            },
            vec!["workflow", "reply_to", "deadline"],
        ),
        (
            CreateRequest {
                workflow: DRONE_DELIVERY.to_owned(),
                ..good()
            },
            vec![
                "input/ownerId",
                "input/pickupLocation",
                "input/dropOffLocation",
                "input/packageInfo",
            ],
        ),
        (
            CreateRequest {
                workflow: DRONE_DELIVERY.to_owned(),
                ..written(&delivery.to_string())
            },
            vec!["input/packageInfo/size"],
        ),
    ] {
        let shown = format!("{create:?}");
        let faults = admitted(create).unwrap_err();
        let fields: Vec<&str> = faults
            .iter()
            .map(|fault| fault.split_once(": ").unwrap().0)
            .collect();
        assert_eq!(fields, wrong, "{shown}");
    }
    delivery["packageInfo"]["size"] = "Small".into();
    let elsewhere = CreateRequest {
        workflow: DRONE_DELIVERY.to_owned(),
        ..written(&delivery.to_string())
    };
    let faults = admitted(elsewhere).unwrap_err();
    assert_eq!(
        faults,
        ["input/deliveryId: differs from the id of the request"]
    );
}

#[test]
fn an_input_too_large_for_a_step_request_is_refused() {
    let input = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - r#"{"a":""}"#.len()));
    let fits = written(&input(INPUT_BYTES_MAX));
    assert!(admitted(fits).is_ok());
    let faults = admitted(written(&input(INPUT_BYTES_MAX + 1))).unwrap_err();
    assert_eq!(faults, ["input: must be at most 524288 bytes long"]);
}

#[test]
fn a_refusal_is_short_and_contains_no_contact() {
    let unknown: serde_json::Map<String, Value> = (0..1_000)
        .map(|n| (format!("{n}{}", "x".repeat(1_000)), Value::Null))
        .collect();
    let create = CreateRequest {
        workflow: DRONE_DELIVERY.to_owned(),
        notify: vec![Contact::new("mailto:anna@example.org")],
        ..written(&Value::Object(unknown).to_string())
    };
    let refused = admit(OperationRequest::Create(create), &forms())
        .unwrap_err()
        .to_string();
    assert!(refused.len() < (FAULTS_MAX + 1) * FAULT_BYTES_MAX);
    assert!(!refused.contains("anna"), "{refused}");
}

#[test]
fn an_amendment_must_name_its_operation_and_change_fields() {
    let amend = |tenant: &str, fields: &str| {
        let request = AmendRequest {
            id: Uuid::nil(),
            operation: OperationId::of_caller("acme", "order-17"),
            tenant: tenant.to_owned(),
            caller_id: Some("order-17".to_owned()),
            amendment: Amendment::Reschedule {
                fields: fields.as_bytes().to_vec(),
                deadline: None,
            },
            reason: String::new(),
            asked_by: String::new(),
            requested_at: NOW,
        };
        admit(OperationRequest::Amend(request), &forms()).map(drop)
    };
    assert_eq!(amend("acme", "{}"), Ok(()));
    assert!(amend("other", "{}").is_err());
    assert!(amend("acme", "[]").is_err());
}

#[test]
fn the_requester_of_an_amendment_has_a_name_of_visible_characters() {
    let amend = |asked_by: &str| {
        let request = AmendRequest {
            id: Uuid::nil(),
            operation: OperationId::of_caller("acme", "order-17"),
            tenant: "acme".to_owned(),
            caller_id: Some("order-17".to_owned()),
            amendment: Amendment::Cancel {
                workflow: "order".to_owned(),
            },
            reason: "of two\nlines".to_owned(),
            asked_by: asked_by.to_owned(),
            requested_at: NOW,
        };
        admit(OperationRequest::Amend(request), &forms()).map(drop)
    };
    assert_eq!(amend(""), Ok(()));
    assert_eq!(amend("Kim Ødegård"), Ok(()));
    for asked_by in ["kim\nroot", "\u{1b}[2J", "a\u{85}"] {
        let fault = "amendment/asked_by: must be visible characters, with single spaces between words, \
         and no word may begin with a combining mark";
        let refused = Refused(vec![fault.to_owned()]);
        assert_eq!(amend(asked_by), Err(refused), "{asked_by:?}");
    }
}

/// Detects a changed byte in any part of an accepted request.
#[test]
fn a_request_that_was_changed_after_ingestion_accepted_it_is_refused() {
    let mut body = json!({
        "workflow": "order", "tenant": "acme", "input": {"street": "Harbour Street"},
        "deadline": "2030-05-08T22:00:00Z", "replyTo": "replies.acme",
        "notify": ["mailto:anna@example.org"],
    });
    let delivered = |body: &Value| accepted_delivery(body, &Envelope::default());
    let order = accepted(&body, &Envelope::default());
    body["id"] = "order-17".into();
    let named_order = accepted(&body, &Envelope::default());
    let delivery = delivered(&delivery_body());
    let mut body = delivery_body();
    body["deliveryId"] = "d-1".into();
    let named_delivery = delivered(&body);
    let [again, delivered_again] = [&named_order, &delivery].map(|it| resubmitted(it.clone()));
    for create in [
        &order,
        &named_order,
        &delivery,
        &named_delivery,
        &again,
        &delivered_again,
    ] {
        assert_eq!(admitted(create.clone()).as_ref(), Ok(create));
    }

    let with = |create: &CreateRequest, change: &dyn Fn(&mut CreateRequest)| {
        let mut changed = create.clone();
        change(&mut changed);
        changed
    };
    let replaced = |create: &mut CreateRequest, from: &str, to: &str| {
        let input = String::from_utf8(create.input.clone()).unwrap();
        assert!(input.contains(from), "{input}");
        create.input = input.replace(from, to).into_bytes();
    };
    for changed in [
        with(&order, &|create| replaced(create, "Harbour", "Barbour")),
        with(&order, &|create| {
            create.deadline = Some(Timestamp(NOW.0 + 1))
        }),
        with(&order, &|create| {
            create.reply_to = Some("replies.acmf".into())
        }),
        with(&order, &|create| create.workflow = "ordes".into()),
        with(&order, &|create| create.notify.clear()),
        with(&delivery, &|create| replaced(create, "here", "hers")),
        with(&named_order, &|create| {
            replaced(create, "Harbour", "Barbour")
        }),
        with(&named_order, &|create| create.request_hash = NO_HASH),
        with(&named_delivery, &|create| replaced(create, "here", "hers")),
        with(&named_delivery, &|create| create.request_hash = NO_HASH),
        with(&again, &|create| replaced(create, "Harbour", "Barbour")),
        with(&delivered_again, &|create| replaced(create, "here", "hers")),
    ] {
        let faults = admitted(changed).unwrap_err();
        assert!(faults[0].starts_with("request_hash: is "), "{faults:?}");
    }
    // The hash covers no id: one that was generated carries a mark.
    for changed in [&order, &delivery] {
        let mut changed = changed.clone();
        changed.operation.0 = Uuid::from_u128(changed.operation.0.as_u128() ^ (1 << 20));
        let faults = admitted(changed).unwrap_err();
        assert!(faults[0].starts_with("operation: is "), "{faults:?}");
    }
}

/// A client may choose any hash that separates its repeats from conflicts.
#[test]
fn the_hash_of_another_writer_is_kept() {
    let own = RequestHash([7; 16]);
    let mut create = written(r#"{"a": 1}"#);
    create.request_hash = own;
    assert_eq!(admitted(create).unwrap().request_hash, own);
}
