//! Which requests make a record, and which make none: in the general form, and in a form of their
//! own.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use serde_json::{Value, json};
use waybill_api::form::{Form, Forms};
use waybill_api::id;
use waybill_api::request::{
    Envelope, Rules, Submission, date_and_time, in_form, operation, request_hash,
};
use waybill_api::tenant_limits::TenantLimits;
use waybill_contacts::ContactRules;
use waybill_drone_delivery::DroneDelivery;
use waybill_engine::{
    Contact, CreateRequest, IdOrigin, OperationId, Timestamp, Workflow, WorkflowDefinition,
    Workflows,
};
use waybill_http::auth::{Caller, Tenants};
use waybill_http::problem::{Kind, Problem};

const DRONE_DELIVERY: &str = DroneDelivery::WORKFLOW;

const NOW: Timestamp = Timestamp(1_000_000);

fn workflow(name: &str) -> Workflow {
    let definition: WorkflowDefinition = serde_json::from_value(
        json!({"name": name, "version": 1, "steps": [{"name": "one", "agent": "agent"}]}),
    )
    .unwrap();
    Workflow::try_from(definition).unwrap()
}

fn forms() -> Forms {
    Forms::new([&DroneDelivery as _])
}

/// Reads the body of a delivery.
fn delivery(
    body: &[u8],
    envelope: &Envelope,
    rules: &Rules,
    now: Timestamp,
) -> Result<Submission, Problem> {
    let form: Form = forms().of(DRONE_DELIVERY).unwrap();
    in_form(form, body, envelope, rules, now)
}

fn rules() -> Rules {
    Rules {
        tenant_limits: TenantLimits::default(),
        has_high_priority_topic: true,
        workflows: Arc::new(
            Workflows::new(vec![workflow(DRONE_DELIVERY), workflow("order")]).unwrap(),
        ),
        forms: forms(),
        json_depth_max: 16,
        reply_to_prefixes: vec!["replies.".into()],
        contacts: ContactRules {
            email_domains: Some(Vec::new()),
            sms: true,
        },
    }
}

fn with_key(key: &str) -> Envelope {
    let mut headers = HeaderMap::new();
    let key = HeaderValue::try_from(format!("\"{key}\"")).unwrap();
    headers.insert("idempotency-key", key);
    Envelope::of(&headers)
}

fn delivery_body() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "here",
        "dropOffLocation": "there",
        "pickupTime": "2030-05-08T20:00:00Z",
        "deadline": "2030-05-08T22:00:00Z",
        "expedited": true,
        "confirmationRequired": "None",
        "packageInfo": {"packageId": "p", "size": "Small", "weight": 10, "tag": "t"},
    })
}

fn with(mut body: Value, name: &str, value: impl Into<Value>) -> Value {
    body[name] = value.into();
    body
}

fn take_delivery(body: &Value, envelope: &Envelope) -> Submission {
    delivery(body.to_string().as_bytes(), envelope, &rules(), NOW).unwrap()
}

fn take_operation(body: &Value, envelope: &Envelope) -> Submission {
    operation(body.to_string().as_bytes(), envelope, &rules(), NOW).unwrap()
}

fn wrong_fields(body: &Value) -> Vec<(String, String)> {
    let problem = operation(
        body.to_string().as_bytes(),
        &Envelope::default(),
        &rules(),
        NOW,
    )
    .unwrap_err();
    assert_eq!(problem.kind, Kind::InvalidValues);
    problem
        .errors
        .into_iter()
        .map(|error| (error.pointer.unwrap_or_default(), error.detail))
        .collect()
}

#[test]
fn a_delivery_without_an_id_gets_a_generated_one() {
    let submission = take_delivery(&delivery_body(), &Envelope::default());
    let record = &submission.record;
    assert_eq!(record.id_origin, IdOrigin::Server);
    assert!(id::is_ours(record.operation, ""));
    assert_eq!(record.caller_id, None);
    assert_eq!(
        (record.workflow.as_str(), record.tenant.as_str()),
        (DRONE_DELIVERY, "")
    );
    assert_eq!(record.requested_at, NOW);
    let deadline: jiff::Timestamp = "2030-05-08T22:00:00Z".parse().unwrap();
    assert_eq!(record.deadline, Some(Timestamp(deadline.as_microsecond())));
    let input: Value = serde_json::from_slice(&record.input).unwrap();
    assert_eq!(input["deliveryId"], record.operation.to_string());
    assert_eq!(input["packageInfo"]["size"], "Small");
}

#[test]
fn a_repeat_with_the_id_that_was_given_makes_the_same_record() {
    let first = take_delivery(&delivery_body(), &Envelope::default());
    let key = first.repeat_with();
    for repeat in [
        take_delivery(&delivery_body(), &with_key(&key)),
        take_delivery(
            &with(delivery_body(), "deliveryId", key.as_str()),
            &Envelope::default(),
        ),
        take_operation(
            &json!({"workflow": DRONE_DELIVERY, "id": key, "input": delivery_body()}),
            &Envelope::default(),
        ),
    ] {
        let expected = CreateRequest {
            id_origin: IdOrigin::Caller,
            ..first.record.clone()
        };
        assert_eq!(repeat.record, expected);
    }
}

#[test]
fn all_forms_of_a_callers_id_give_the_same_operation_and_hash() {
    let body = delivery_body();
    let named = with(body.clone(), "deliveryId", "d-1");
    let none = Envelope::default();
    let general = |id: Option<&str>, input: &Value| json!({"workflow": DRONE_DELIVERY, "id": id, "input": input});
    let first = take_delivery(&named, &none);
    assert_eq!(first.record.operation, OperationId::of_caller("", "d-1"));
    assert_eq!(first.record.id_origin, IdOrigin::Caller);
    for same in [
        take_delivery(&named, &with_key("d-1")),
        take_delivery(&body, &with_key("d-1")),
        take_operation(&general(Some("d-1"), &body), &none),
        take_operation(&general(Some("d-1"), &named), &with_key("d-1")),
        take_operation(&general(None, &named), &none),
    ] {
        assert_eq!(same, first);
    }
}

#[test]
fn ids_that_disagree_are_named() {
    let named = with(delivery_body(), "deliveryId", "d-1");
    let error = delivery(
        named.to_string().as_bytes(),
        &with_key("d-2"),
        &rules(),
        NOW,
    )
    .unwrap_err();
    assert_eq!(error.errors[0].pointer.as_deref(), Some("/deliveryId"));
    let body = json!({"workflow": DRONE_DELIVERY, "id": "d-3", "input": named});
    assert_eq!(wrong_fields(&body)[0].0, "/input/deliveryId");
}

#[test]
fn a_wrong_id_and_a_past_deadline_are_named_with_the_other_wrong_fields() {
    let body = with(delivery_body(), "deliveryId", "has space");
    let body = with(body, "deadline", "1970-01-01T00:00:00Z");
    let body = with(with(body, "pickupTime", Value::Null), "ownerId", 1);
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", HeaderValue::from_static("a b"));
    let envelope = Envelope::of(&headers);
    let named = |problem: Problem| -> Vec<_> {
        let errors = problem.errors.iter();
        errors.map(|error| error.place().to_owned()).collect()
    };
    let refused = delivery(body.to_string().as_bytes(), &envelope, &rules(), NOW).unwrap_err();
    let expected = ["Idempotency-Key", "/deliveryId", "/ownerId", "/deadline"];
    assert_eq!(named(refused), expected);
    let body = json!({"workflow": DRONE_DELIVERY, "id": "x y", "input": body, "more": 1});
    let refused = operation(body.to_string().as_bytes(), &envelope, &rules(), NOW).unwrap_err();
    assert_eq!(
        named(refused),
        [
            "Idempotency-Key",
            "/id",
            "/input/deliveryId",
            "/input/ownerId",
            "/more",
            "/input/deadline"
        ]
    );
    // An id that is not even a string is reported once.
    let body = with(delivery_body(), "deliveryId", 7);
    let none = Envelope::default();
    let refused = delivery(body.to_string().as_bytes(), &none, &rules(), NOW).unwrap_err();
    assert_eq!(named(refused), ["/deliveryId"]);
}

#[test]
fn json_formatting_does_not_change_the_hash() {
    let hash = |body: &str| {
        operation(body.as_bytes(), &with_key("k"), &rules(), NOW)
            .unwrap()
            .record
            .request_hash
    };
    let first = hash(r#"{"workflow":"order","input":{"a":1,"b":{"c":"é","d":[1,2]}}}"#);
    let same = hash(
        "{ \"input\": {\"b\": {\"d\": [1, 2],\r\n\"c\": \"\\u00e9\"}, \"a\": 1},\
         \"deadline\": null, \"workflow\": \"order\"}",
    );
    assert_eq!(same, first);
    for other in [
        r#"{"workflow":"order","input":{"a":2,"b":{"c":"é","d":[1,2]}}}"#,
        r#"{"workflow":"order","input":{"a":1,"b":{"c":"é","d":[2,1]}}}"#,
        r#"{"workflow":"order","input":{"a":1,"b":{"c":"é","d":[1,2]}},"tenant":"t"}"#,
        r#"{"workflow":"order","input":{"a":1,"b":{"c":"é","d":[1,2]}},"deadline":"2030-01-01T00:00:00Z"}"#,
        r#"{"workflow":"order","input":{"a":1,"b":{"c":"é","d":[1,2]}},"replyTo":"replies.x"}"#,
    ] {
        assert_ne!(hash(other), first, "{other}");
    }
}

#[test]
fn the_hash_of_a_request_never_changes() {
    let hash = request_hash(
        "order",
        "acme",
        Some(Timestamp(1)),
        Some("replies.x"),
        b"{}",
        &[],
    );
    assert_eq!(hash.to_string(), GOLDEN_HASH);
}

/// SHA-256 over `5"order" 4"acme" 8"1" 9"replies.x" 2"{}"`, each length as 8 bytes, cut to 16.
const GOLDEN_HASH: &str = "7812f10dedf196e02f98198ad15beea8";

#[test]
fn tenants_do_not_share_ids() {
    let body =
        |tenant: &str| json!({"workflow": "order", "id": "o-1", "input": {}, "tenant": tenant});
    let a = take_operation(&body("a"), &Envelope::default()).record;
    let b = take_operation(&body("b"), &Envelope::default()).record;
    assert_ne!(a.operation, b.operation);
    assert_eq!(
        (a.tenant.as_str(), a.caller_id.as_deref()),
        ("a", Some("o-1"))
    );
}

#[test]
fn one_refusal_names_every_wrong_field() {
    let body = json!({
        "workflow": "nope", "id": "a b", "input": [], "deadline": "soon", "tenant": 7,
        "replyTo": "elsewhere", "extra/field": 1,
    });
    let wrong = wrong_fields(&body);
    let pointers: Vec<_> = wrong.iter().map(|(pointer, _)| pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/workflow",
            "/tenant",
            "/id",
            "/deadline",
            "/replyTo",
            "/input",
            "/extra~1field"
        ]
    );
    assert_eq!(
        wrong[0].1,
        "must be one of drone-delivery, order, not \"nope\""
    );
    assert_eq!(wrong[4].1, "must begin with one of replies.");

    let pointers = |body: &Value| -> Vec<_> {
        wrong_fields(body)
            .into_iter()
            .map(|(pointer, _)| pointer)
            .collect()
    };
    assert_eq!(pointers(&json!({})), ["/workflow", "/input"]);
    assert_eq!(pointers(&json!([])), [""]);
    let mut input = delivery_body();
    input["packageInfo"]["size"] = "Huge".into();
    input["ownerId"] = 7.into();
    let body = json!({"workflow": DRONE_DELIVERY, "input": input, "replyTo": ".."});
    assert_eq!(
        pointers(&body),
        ["/replyTo", "/input/ownerId", "/input/packageInfo/size"]
    );
}

#[test]
fn a_reply_topic_is_allowed_by_its_prefix_only() {
    let body = json!({"workflow": "order", "input": {}, "replyTo": "replies.mine"});
    let taken = take_operation(&body, &Envelope::default());
    assert_eq!(taken.record.reply_to.as_deref(), Some("replies.mine"));

    let none_allowed = Rules {
        reply_to_prefixes: Vec::new(),
        ..rules()
    };
    let text = body.to_string();
    let error = operation(text.as_bytes(), &Envelope::default(), &none_allowed, NOW).unwrap_err();
    assert_eq!(error.errors[0].pointer.as_deref(), Some("/replyTo"));
}

#[test]
fn a_delivery_without_its_workflow_is_not_found() {
    let rules = Rules {
        workflows: Arc::new(Workflows::new(vec![workflow("order")]).unwrap()),
        ..rules()
    };
    let body = delivery_body().to_string();
    let error = delivery(body.as_bytes(), &Envelope::default(), &rules, NOW).unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
}

#[test]
fn dates_without_an_offset_are_utc_and_dates_alone_are_refused() {
    let expected = Some(Timestamp(1_893_456_000_000_000));
    for good in [
        "2030-01-01T00:00:00Z",
        "2030-01-01T00:00",
        "2030-01-01T02:00:00+02:00",
    ] {
        assert_eq!(date_and_time(good), expected, "{good}");
    }
    for bad in [
        "",
        "2030-01-01",
        "tomorrow",
        "2030-13-01T00:00:00Z",
        "1893456000",
    ] {
        assert_eq!(date_and_time(bad), None, "{bad}");
    }
}

#[test]
fn a_past_deadline_refuses_all_requests_but_repeats() {
    let pointers = |body: &Value| -> Vec<_> {
        let submission = take_operation(body, &with_key("k"));
        match submission.check_deadlines() {
            Ok(()) => Vec::new(),
            Err(problem) => {
                let errors = problem.errors.into_iter();
                errors.filter_map(|error| error.pointer).collect()
            }
        }
    };
    let body = json!({"workflow": "order", "input": {}});
    let (at_now, later) = ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01.000001Z");
    assert_eq!(
        pointers(&with(body.clone(), "deadline", at_now)),
        ["/deadline"]
    );
    assert!(pointers(&with(body, "deadline", later)).is_empty());

    let overdue = with(delivery_body(), "pickupTime", Value::Null);
    let overdue = with(overdue, "deadline", at_now);
    let body = json!({"workflow": DRONE_DELIVERY, "input": overdue});
    assert_eq!(pointers(&body), ["/input/deadline"]);
    let body = with(body, "deadline", later);
    assert_eq!(
        pointers(&body),
        ["/input/deadline"],
        "every given deadline must be in the future"
    );
    let taken = take_operation(&body, &Envelope::default());
    assert_eq!(taken.record.deadline, Some(Timestamp(NOW.0 + 1)));
    let alone = take_delivery(&overdue, &Envelope::default());
    assert_eq!(
        alone.check_deadlines().unwrap_err().errors[0]
            .pointer
            .as_deref(),
        Some("/deadline")
    );
}

fn with_contacts(contacts: Value) -> Value {
    with(delivery_body(), "notify", contacts)
}

#[test]
fn contacts_are_separate_from_the_input_and_equal_in_both_forms() {
    let contacts = json!(["MAILTO:anna@Example.org", "tel:+49-170-1234567"]);
    let expected = ["mailto:anna@example.org", "tel:+491701234567"].map(Contact::new);
    let first = take_delivery(&with_contacts(contacts.clone()), &with_key("d-1"));
    assert_eq!(first.record.notify, expected);
    let input = String::from_utf8(first.record.input.clone()).unwrap();
    assert!(
        !input.contains("notify") && !input.contains("anna"),
        "{input}"
    );
    let general = json!({
        "workflow": DRONE_DELIVERY, "id": "d-1", "input": delivery_body(), "notify": contacts,
    });
    assert_eq!(take_operation(&general, &Envelope::default()), first);
    assert!(!format!("{first:?}").contains("anna"));
}

#[test]
fn existing_contacts_are_part_of_the_hash() {
    let hash = |body: &Value| take_delivery(body, &with_key("d-1")).record.request_hash;
    let none = hash(&delivery_body());
    assert_eq!(hash(&with_contacts(Value::Null)), none);
    assert_eq!(hash(&with_contacts(json!([]))), none);
    let anna = hash(&with_contacts(json!(["mailto:anna@example.org"])));
    let ben = hash(&with_contacts(json!(["mailto:ben@example.org"])));
    assert!(anna != none && ben != none && anna != ben);
    assert_eq!(
        hash(&with_contacts(json!(["mailto:anna@EXAMPLE.org"]))),
        anna
    );
}

#[test]
fn every_unusable_contact_is_named_by_its_index_and_never_echoed() {
    let general = |contacts: Value| json!({"workflow": "order", "input": {}, "notify": contacts});
    let places = |contacts: Value| -> Vec<_> {
        let wrong = wrong_fields(&general(contacts));
        for (_, detail) in &wrong {
            assert!(!detail.contains("anna.b"), "{detail}");
        }
        wrong.into_iter().map(|(pointer, _)| pointer).collect()
    };
    assert_eq!(places(json!("mailto:anna.b@example.org")), ["/notify"]);
    assert_eq!(
        places(json!(["tel:+1", "tel:+2", "tel:+3", "tel:+4", "tel:+5"])),
        ["/notify"]
    );
    assert_eq!(
        places(json!([
            "tel:+1",
            "mailto:anna.b@example.org?cc=x",
            7,
            "tel:+1"
        ])),
        ["/notify/1", "/notify/2", "/notify/3"]
    );

    let nobody = Rules {
        contacts: ContactRules::default(),
        ..rules()
    };
    let body = general(json!(["mailto:anna.b@example.org", "tel:+1"])).to_string();
    let error = operation(body.as_bytes(), &Envelope::default(), &nobody, NOW).unwrap_err();
    let named_contacts: Vec<_> = error
        .errors
        .iter()
        .map(|e| (e.pointer.as_deref().unwrap(), &*e.detail))
        .collect();
    assert_eq!(
        named_contacts,
        [
            (
                "/notify/0",
                "cannot be notified: e-mail is disabled (alerts.owners.email is not set)"
            ),
            (
                "/notify/1",
                "cannot be notified: SMS is disabled (alerts.owners.sms is not set)"
            ),
        ]
    );
}

#[test]
fn a_request_belongs_to_the_tenant_of_its_sender() {
    let caller = |tenant: &str| {
        Caller::of(Arc::new(waybill_http::auth::Principal {
            name: "a".into(),
            scopes: waybill_http::auth::Scopes::default(),
            tenants: Tenants::named(tenant).unwrap(),
            agents: std::sync::Arc::default(),
        }))
    };
    let of = |tenant: &str, body: &str| {
        let envelope = Envelope::default().from(&caller(tenant));
        operation(body.as_bytes(), &envelope, &rules(), NOW)
            .map(|submission| submission.record.tenant)
            .map_err(|problem| problem.kind)
    };
    let (none, empty, own, other) = (
        r#"{"workflow": "order", "input": {}}"#,
        r#"{"workflow": "order", "tenant": "", "input": {}}"#,
        r#"{"workflow": "order", "tenant": "acme", "input": {}}"#,
        r#"{"workflow": "order", "tenant": "zeta", "input": {}}"#,
    );
    for body in [none, empty, own] {
        assert_eq!(of("acme", body).unwrap(), "acme", "{body}");
    }
    let refused = of("acme", other).unwrap_err();
    assert_eq!(refused, Kind::AnotherTenant);
    let wrong_otherwise = other.replace("{}", "1");
    assert_eq!(
        of("acme", &wrong_otherwise).unwrap_err(),
        Kind::AnotherTenant
    );
    for (body, expected) in [(none, ""), (other, "zeta")] {
        assert_eq!(of("*", body).unwrap(), expected);
    }
}
