//! Valid delivery requests, and the error for each wrong field.

use serde_json::{Value, json};
use waybill_drone_delivery::field::FieldError;
use waybill_drone_delivery::request::{
    ConfirmationRequired, DeliveryRequest, PackageSize, validate, validate_reschedule,
};

fn full() -> Value {
    json!({
        "deliveryId": "mydelivery",
        "ownerId": "myowner",
        "pickupLocation": "my pickup",
        "dropOffLocation": "drop off",
        "pickupTime": "2019-05-08T20:00:00.000-07:00",
        "deadline": "2019-05-09T20:00:00Z",
        "expedited": true,
        "confirmationRequired": "FingerPrint",
        "packageInfo": {
            "packageId": "mypackage", "size": "Small", "weight": 10, "tag": "mytag"
        }
    })
}

/// The full request with the value at `pointer` replaced or removed.
fn with(pointer: &str, value: Option<Value>) -> Value {
    let mut request = full();
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    let parent = request
        .pointer_mut(parent)
        .and_then(Value::as_object_mut)
        .expect("an object");
    match value {
        Some(value) => parent.insert(name.to_owned(), value),
        None => parent.remove(name),
    };
    request
}

fn errors(request: &Value) -> Vec<(String, String)> {
    match validate(request) {
        Ok(accepted) => panic!("{request} was accepted as {accepted:?}"),
        Err(errors) => errors
            .into_iter()
            .map(|FieldError { pointer, detail }| (pointer, detail))
            .collect(),
    }
}

#[test]
fn a_full_request_is_read_field_by_field() {
    let request = validate(&full()).expect("a good request");
    assert_eq!(request.delivery_id.as_deref(), Some("mydelivery"));
    assert_eq!(request.owner_id, "myowner");
    assert_eq!(request.pickup_location, "my pickup");
    assert_eq!(request.drop_off_location, "drop off");
    assert_eq!(
        request.pickup_time.map(|time| time.to_string()).as_deref(),
        Some("2019-05-09T03:00:00Z")
    );
    assert!(request.expedited);
    assert_eq!(
        request.confirmation_required,
        ConfirmationRequired::FingerPrint
    );
    assert_eq!(request.package_info.size, PackageSize::Small);
    assert_eq!(request.package_info.weight, Some(10.0));
    assert_eq!(request.package_info.tag.as_deref(), Some("mytag"));
}

#[test]
fn a_minimal_request_gets_the_defaults() {
    let request = validate(&json!({
        "ownerId": "o", "pickupLocation": "p", "dropoffLocation": "d", "pickupTime": null,
        "deadline": "", "packageInfo": { "packageId": "i", "size": "Large" }
    }))
    .expect("a good request");
    assert_eq!(request.drop_off_location, "d");
    assert_eq!((request.pickup_time, request.deadline), (None, None));
    assert!(!request.expedited);
    assert_eq!(request.confirmation_required, ConfirmationRequired::None);
    assert_eq!(
        (request.package_info.weight, request.package_info.tag),
        (None, None)
    );
}

#[test]
fn boundary_values_are_accepted() {
    for (pointer, value) in [
        ("/ownerId", json!("ä".repeat(256))),
        ("/pickupTime", json!("2019-05-08T20:00:00")),
        ("/pickupTime", json!("2019-05-08t20:00:00+02:00")),
        ("/deadline", json!("2019-05-09T03:00:00Z")),
        ("/packageInfo/weight", json!(0.001)),
        ("/packageInfo/tag", json!("")),
        ("/expedited", json!(null)),
        ("/confirmationRequired", json!(null)),
    ] {
        let request = with(pointer, Some(value));
        assert!(validate(&request).is_ok(), "{request}");
    }
}

#[test]
fn an_invalid_field_is_named_with_the_expected_value() {
    let date = "must be an ISO 8601 date and time such as 2030-05-08T20:00:00Z, not ";
    let cases = [
        ("/ownerId", None, "is required".to_owned()),
        ("/pickupLocation", None, "is required".to_owned()),
        ("/dropOffLocation", None, "is required".to_owned()),
        ("/packageInfo", None, "is required".to_owned()),
        ("/packageInfo/packageId", None, "is required".to_owned()),
        ("/packageInfo/size", None, "is required".to_owned()),
        (
            "/ownerId",
            Some(json!(null)),
            "is required and must not be null".to_owned(),
        ),
        (
            "/ownerId",
            Some(json!(7)),
            "must be a string, not 7".to_owned(),
        ),
        ("/ownerId", Some(json!(" ")), "must not be empty".to_owned()),
        (
            "/ownerId",
            Some(json!("..")),
            "must not be `.` or `..`".to_owned(),
        ),
        (
            "/ownerId",
            Some(json!("a\nb")),
            "must not contain control characters".to_owned(),
        ),
        (
            "/ownerId",
            Some(json!("ä".repeat(257))),
            "must have at most 256 characters".to_owned(),
        ),
        (
            "/deliveryId",
            Some(json!("")),
            "must not be empty".to_owned(),
        ),
        (
            "/pickupLocation",
            Some(json!([1])),
            "must be a string, not [1]".to_owned(),
        ),
        (
            "/dropOffLocation",
            Some(json!("")),
            "must not be empty".to_owned(),
        ),
        (
            "/pickupTime",
            Some(json!("tomorrow")),
            format!("{date}\"tomorrow\""),
        ),
        (
            "/pickupTime",
            Some(json!("2019-02-30T00:00:00Z")),
            format!("{date}\"2019-02-30T00:00:00Z\""),
        ),
        (
            "/pickupTime",
            Some(json!("2019-05-08")),
            format!("{date}\"2019-05-08\""),
        ),
        ("/pickupTime", Some(json!("")), format!("{date}\"\"")),
        (
            "/pickupTime",
            Some(json!(1_557_345_600)),
            format!("{date}1557345600"),
        ),
        (
            "/deadline",
            Some(json!("2019-05-08T20:00:00Z")),
            "must not be before pickupTime".to_owned(),
        ),
        (
            "/expedited",
            Some(json!("yes")),
            "must be true or false, not \"yes\"".to_owned(),
        ),
        (
            "/confirmationRequired",
            Some(json!("fingerprint")),
            "must be one of FingerPrint, Picture, Voice, None, not \"fingerprint\"".to_owned(),
        ),
        (
            "/packageInfo",
            Some(json!([])),
            "must be an object, not []".to_owned(),
        ),
        (
            "/packageInfo/packageId",
            Some(json!(".")),
            "must not be `.` or `..`".to_owned(),
        ),
        (
            "/packageInfo/size",
            Some(json!("Huge")),
            "must be one of Small, Medium, Large, not \"Huge\"".to_owned(),
        ),
        (
            "/packageInfo/weight",
            Some(json!(0)),
            "must be a number above 0, not 0".to_owned(),
        ),
        (
            "/packageInfo/weight",
            Some(json!(-1.5)),
            "must be a number above 0, not -1.5".to_owned(),
        ),
        (
            "/packageInfo/weight",
            Some(json!("10")),
            "must be a number above 0, not \"10\"".to_owned(),
        ),
        (
            "/packageInfo/tag",
            Some(json!({})),
            "must be a string, not {}".to_owned(),
        ),
        (
            "/packageInfo/colour",
            Some(json!("red")),
            "is unknown; the fields are packageId, size, weight, tag".to_owned(),
        ),
        (
            "/dropoffLocation",
            Some(json!("elsewhere")),
            "is another name of dropOffLocation: give one of them".to_owned(),
        ),
    ];
    for (pointer, value, expected) in cases {
        let request = with(pointer, value);
        assert_eq!(
            errors(&request),
            [(pointer.to_owned(), expected)],
            "{request}"
        );
    }
}

#[test]
fn one_refusal_names_every_wrong_field() {
    let request = json!({
        "ownerId": 1, "pickupLocation": "", "a/b~c": 1, "deadline": "soon", "expedited": 0,
        "packageInfo": { "size": "Tiny", "weight": [], "x": null }
    });
    let pointers: Vec<_> = errors(&request)
        .into_iter()
        .map(|(pointer, _)| pointer)
        .collect();
    assert_eq!(
        pointers,
        [
            "/ownerId",
            "/pickupLocation",
            "/dropOffLocation",
            "/deadline",
            "/expedited",
            "/packageInfo/packageId",
            "/packageInfo/size",
            "/packageInfo/weight",
            "/packageInfo/x",
            "/a~1b~0c",
        ]
    );
}

#[test]
fn a_request_that_is_not_an_object_is_refused() {
    for request in [json!(null), json!([]), json!("x"), json!(1)] {
        let errors = errors(&request);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].0, "");
    }
}

#[test]
fn equivalent_requests_have_one_canonical_form() {
    let mut other = with("/pickupTime", Some(json!("2019-05-09T03:00:00Z")));
    let object = other.as_object_mut().expect("an object");
    let location = object.remove("dropOffLocation").expect("a location");
    object.insert("dropoffLocation".to_owned(), location);
    let canonical = validate(&full()).expect("a good request").canonical_json();
    assert_eq!(
        validate(&other).expect("a good request").canonical_json(),
        canonical
    );
    assert_eq!(
        String::from_utf8(canonical.clone()).expect("UTF-8"),
        concat!(
            r#"{"deliveryId":"mydelivery","ownerId":"myowner","pickupLocation":"my pickup","#,
            r#""dropOffLocation":"drop off","pickupTime":"2019-05-09T03:00:00Z","#,
            r#""deadline":"2019-05-09T20:00:00Z","expedited":true,"#,
            r#""confirmationRequired":"FingerPrint","packageInfo":{"packageId":"mypackage","#,
            r#""size":"Small","weight":10.0,"tag":"mytag"}}"#
        )
    );
    let read: DeliveryRequest = serde_json::from_slice(&canonical).expect("reads back");
    assert_eq!(read.canonical_json(), canonical);
}

#[test]
fn numbers_of_many_digits_have_one_canonical_form() {
    for weight in [
        format!("1{}.5", "0".repeat(49)),
        "0.12345678901234567890123".to_owned(),
        "1.7976931348623157e308".to_owned(),
        "5e-324".to_owned(),
    ] {
        let request = full()
            .to_string()
            .replace("\"weight\":10", &format!("\"weight\":{weight}"));
        let request = serde_json::from_str(&request).expect("JSON");
        let read = validate(&request).expect("a good request");
        assert_eq!(
            read.package_info.weight,
            Some(weight.parse().expect("a number"))
        );
        let canonical = read.canonical_json();
        let again = serde_json::from_slice(&canonical).expect("JSON");
        let again = validate(&again).expect("a good request");
        assert_eq!(again.canonical_json(), canonical, "{weight}");
    }
}

#[test]
fn absent_fields_are_null_in_the_canonical_form() {
    let request = json!({
        "ownerId": "o", "pickupLocation": "p", "dropOffLocation": "d",
        "packageInfo": { "packageId": "i", "size": "Medium" }
    });
    let canonical = validate(&request).expect("a good request").canonical_json();
    let canonical: Value = serde_json::from_slice(&canonical).expect("JSON");
    assert_eq!(canonical["deliveryId"], Value::Null);
    assert_eq!(canonical["packageInfo"]["tag"], Value::Null);
    assert_eq!(canonical["confirmationRequired"], "None");
}

#[test]
fn a_change_of_times_has_the_form_that_they_have_in_a_request() {
    let change = json!({
        "deadline": "2019-05-09T13:00:00-07:00", "pickupTime": "2019-05-09T03:00:00"
    });
    let change = validate_reschedule(&change).expect("a good change");
    let canonical = validate(&full()).expect("a good request").canonical_json();
    let canonical: Value = serde_json::from_slice(&canonical).expect("JSON");
    assert_eq!(
        Value::from(change.fields()),
        json!({ "pickupTime": canonical["pickupTime"], "deadline": canonical["deadline"] })
    );
    let deadline = change.deadline.expect("a deadline");
    assert_eq!(deadline.to_string(), "2019-05-09T20:00:00Z");
}

#[test]
fn a_change_has_only_the_fields_that_it_names() {
    for (change, has_deadline) in [
        (json!({ "pickupTime": "2030-05-08T21:00:00.5Z" }), false),
        (json!({ "deadline": "2030-05-08T21:00:00Z" }), true),
    ] {
        let read = validate_reschedule(&change).expect("a good change");
        assert_eq!(Value::from(read.fields()), change);
        assert_eq!(read.deadline.is_some(), has_deadline);
        assert_eq!(serde_json::to_value(read).expect("JSON"), change);
    }
}

#[test]
fn a_wrong_change_is_named_field_by_field() {
    let date = "must be an ISO 8601 date and time such as 2030-05-08T20:00:00Z, not ";
    let others = "cannot be changed; the changeable fields are pickupTime, deadline";
    let cases = [
        (json!([]), "", "must be an object, not []".to_owned()),
        (
            json!({}),
            "",
            "must name pickupTime, deadline or both".to_owned(),
        ),
        (json!({ "ownerId": "o" }), "/ownerId", others.to_owned()),
        (
            json!({ "deadline": "2030-05-08T21:00:00Z", "a/b": null }),
            "/a~1b",
            others.to_owned(),
        ),
        (
            json!({ "pickupTime": null }),
            "/pickupTime",
            format!("{date}null"),
        ),
        (
            json!({ "deadline": null }),
            "/deadline",
            format!("{date}null"),
        ),
        (
            json!({ "deadline": "" }),
            "/deadline",
            format!("{date}\"\""),
        ),
        (
            json!({ "deadline": "2030-05-08" }),
            "/deadline",
            format!("{date}\"2030-05-08\""),
        ),
        (
            json!({ "pickupTime": "2030-05-08T21:00:00Z", "deadline": "2030-05-08T20:59:59Z" }),
            "/deadline",
            "must not be before pickupTime".to_owned(),
        ),
    ];
    for (change, pointer, detail) in cases {
        let errors = validate_reschedule(&change).expect_err("a wrong change");
        assert_eq!(errors, [FieldError::new(pointer, detail)], "{change}");
    }
    let change = json!({ "pickupTime": 1, "deadline": "soon", "tag": "t", "ownerId": "o" });
    let errors = validate_reschedule(&change).expect_err("a wrong change");
    let pointers: Vec<_> = errors.iter().map(|error| &*error.pointer).collect();
    assert_eq!(pointers, ["/pickupTime", "/deadline", "/ownerId", "/tag"]);
}
