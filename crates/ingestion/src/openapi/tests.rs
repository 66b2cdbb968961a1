use std::collections::BTreeSet;

use serde_json::{Value, json};
use waybill_api::id::CALLER_ID_CHARS_MAX;
use waybill_drone_delivery::DroneDelivery;

use super::*;
use crate::docs::examples::operation_view_example;
use crate::service::{OF_CANCEL, OF_GET, OF_LIST, OF_ONE};

fn forms() -> Forms {
    Forms::new([&DroneDelivery as _])
}

fn parsed() -> Value {
    serde_json::from_str(&document(true, &forms())).unwrap()
}

#[test]
fn only_a_configured_form_is_described() {
    for is_guarded in [true, false] {
        let document = document(is_guarded, &Forms::default()).to_lowercase();
        for word in ["drone", "deliver", "package", "pickup"] {
            let found = document.find(word).map(|at| &document[at - 40..at + 40]);
            assert_eq!(found, None, "with tokens: {is_guarded}");
        }
        let document: Value = serde_json::from_str(&document).unwrap();
        assert!(document["paths"]["/v1/operations"].is_object());
    }
    let paths = &parsed()["paths"];
    assert!(paths["/api/deliveryrequests"].is_object());
}

#[test]
fn every_route_is_listed_with_its_method() {
    let document = parsed();
    let listed: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .keys()
                .map(|method| (path.clone(), method.clone()))
        })
        .collect();
    let expected = [
        ("/api/deliveryrequests", "post"),
        ("/api/deliveryrequests/{id}", "delete"),
        ("/api/deliveryrequests/{id}", "get"),
        ("/api/deliveryrequests/{id}", "patch"),
        ("/docs", "get"),
        ("/openapi.json", "get"),
        ("/problems/{kind}", "get"),
        ("/v1/operations", "get"),
        ("/v1/operations", "post"),
        ("/v1/operations/{id}", "get"),
        ("/v1/operations/{id}/events", "get"),
        ("/v1/operations/{id}:abandon", "post"),
        ("/v1/operations/{id}:cancel", "post"),
        ("/v1/operations/{id}:compensate", "post"),
        ("/v1/operations/{id}:resubmit", "post"),
        ("/v1/operations/{id}:retry-compensation", "post"),
        ("/v1/operations/{id}:undone", "post"),
        ("/v1/operations:batch", "post"),
    ];
    let expected: BTreeSet<_> = expected
        .map(|(path, method)| (path.to_owned(), method.to_owned()))
        .into();
    assert_eq!(listed, expected);
}

#[test]
fn every_operation_lists_the_query_parameters_that_it_takes() {
    let document = parsed();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let listed: BTreeSet<_> = parameters
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let expected: &[&str] = match (method.as_str(), path.as_str()) {
                ("get", OPERATIONS) => &OF_LIST,
                ("delete", _) => &OF_CANCEL,
                ("get", path) if path.ends_with("{id}") => &OF_GET,
                (_, path) if path.contains("{id}") => &OF_ONE,
                ("post", path) if path != BATCH => &["wait"],
                _ => &[],
            };
            let expected: BTreeSet<_> = expected.iter().copied().collect();
            assert_eq!(listed, expected, "{method} {path}");
        }
    }
}

#[test]
fn a_server_without_authentication_describes_no_tokens() {
    let document = document(false, &forms());
    for word in [
        "securitySchemes",
        "\"security\"",
        "\"401\"",
        "insufficient-scope",
    ] {
        assert!(!document.contains(word), "{word}");
    }
}

#[test]
fn every_operation_but_the_documents_names_its_scope_and_how_it_refuses() {
    let document = parsed();
    assert_eq!(
        document["components"]["securitySchemes"]["bearer"]["scheme"],
        "bearer"
    );
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let security = &operation["security"];
            if operation["tags"][0] == "About" {
                assert!(security.is_null(), "{method} {path}");
                continue;
            }
            let expected = match (method.as_str(), path.as_str()) {
                ("get", _) => "read",
                (_, path) if path.ends_with(":cancel") || path.ends_with(":batch") => "submit",
                (_, path) if path.contains(':') => "repair",
                _ => "submit",
            };
            assert_eq!(
                security,
                &json!([{"bearer": [expected]}]),
                "{method} {path}"
            );
            for status in ["401", "403"] {
                assert!(!operation["responses"][status].is_null(), "{method} {path}");
            }
        }
    }
}

#[test]
fn every_reference_resolves() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    found.push(reference.clone());
                }
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    for forms in [forms(), Forms::default()] {
        let document: Value = serde_json::from_str(&document(true, &forms)).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}

#[test]
fn every_body_and_answer_has_an_example() {
    let document = parsed();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["tags"][0] == "About" {
                continue;
            }
            let answers = operation["responses"].as_object().unwrap().values();
            for holder in answers.chain(operation.get("requestBody")) {
                // A 304 has no body.
                let content = holder["content"].as_object();
                for content in content.into_iter().flat_map(|it| it.values()) {
                    assert!(!content["example"].is_null(), "{method} {path}: {holder}");
                }
            }
        }
    }
}

#[test]
fn the_request_examples_are_valid() {
    for forms in [forms(), Forms::default()] {
        let document: Value = serde_json::from_str(&document(true, &forms)).unwrap();
        let body = &document["paths"]["/v1/operations"]["post"]["requestBody"];
        let example = &body["content"]["application/json"]["example"];
        let fields = &document["components"]["schemas"]["OperationRequest"]["properties"];
        for name in example.as_object().unwrap().keys() {
            assert!(fields[name].is_object(), "{name}");
        }
        if let Some(form) = forms.of(example["workflow"].as_str().unwrap()) {
            form.rules.read(&example["input"]).unwrap();
        }
    }
}

#[test]
fn no_operation_lists_a_parameter_twice() {
    for (path, item) in parsed()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let names: Vec<_> = parameters.map(|it| it["name"].as_str().unwrap()).collect();
            let different: BTreeSet<_> = names.iter().collect();
            assert_eq!(different.len(), names.len(), "{method} {path}: {names:?}");
        }
    }
}

#[test]
fn views_have_the_fields_of_their_examples() {
    let document = parsed();
    let properties = &document["components"]["schemas"]["Operation"]["properties"];
    for name in operation_view_example().as_object().unwrap().keys() {
        assert!(!properties[name].is_null(), "{name}");
    }
    for form in ["NewDelivery", "OperationRequest"] {
        let properties = &document["components"]["schemas"][form]["properties"];
        assert_eq!(properties["notify"]["maxItems"], 4, "{form}");
    }
    let general = &document["components"]["schemas"]["OperationRequest"]["properties"];
    assert_eq!(general["id"]["maxLength"], CALLER_ID_CHARS_MAX);
    let key = &document["paths"][OPERATIONS]["post"]["parameters"][0];
    assert_eq!(key["schema"]["maxLength"], CALLER_ID_CHARS_MAX);
    let problem = &document["components"]["schemas"]["Problem"]["properties"];
    for name in ["type", "title", "status", "detail", "errors"] {
        assert!(!problem[name].is_null(), "{name}");
    }
}
