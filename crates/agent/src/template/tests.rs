use serde_json::{Value, json};
use waybill_engine::{OperationId, Timestamp};

use super::*;
use crate::testing::StepRequestBuilder;

const OPERATION: &str = "0197a6b0-1234-7000-8000-000000000001";

fn request(input: &Value) -> StepRequest {
    request_with(&input.to_string())
}

fn request_with(input: &str) -> StepRequest {
    let operation: OperationId = OPERATION.parse().unwrap();
    StepRequestBuilder::new("drone", "fly")
        .operation(operation)
        .workflow("drone-delivery")
        .tenant("acme")
        .input(input)
        .result("package", "tag", "T-1")
        .complete_by(Timestamp(1_767_323_045_000_000))
        .build()
}

fn text(template: &str, input: &Value) -> Result<String, RenderError> {
    let request = request(input);
    Text::compile(template, None)
        .unwrap()
        .render(&Scope::new(&request, "op/fly"))
}

fn path(template: &str, input: &Value) -> Result<String, RenderError> {
    let request = request(input);
    let mut out = String::new();
    Path::compile(template, None)
        .unwrap()
        .render_into(&Scope::new(&request, "op/fly"), &mut out)
        .map(|()| out)
}

fn body(template: &Value, input: &Value) -> Result<String, RenderError> {
    let request = request(input);
    Body::compile(template, None)
        .unwrap()
        .render(&Scope::new(&request, "op/fly"))
}

#[test]
fn every_placeholder_is_replaced_by_its_value() {
    let input = json!({"a": {"b": ["x", {"c": 7}]}, "yes": true, "n": 1.5});
    for (template, expected) in [
        ("plain", "plain"),
        ("", ""),
        ("{{operation}}", OPERATION),
        ("{{workflow}}", "drone-delivery"),
        ("{{step}}/{{attempt}}", "fly/1"),
        ("<{{tenant}}>", "<acme>"),
        ("{{idempotencyKey}}", "op/fly"),
        ("{{completeBy}}", "2026-01-02T03:04:05Z"),
        ("{{ results.package.tag }}", "T-1"),
        ("{{input.a.b.0}}{{input.a.b.1.c}}", "x7"),
        ("{{input.yes}} {{input.n}}", "true 1.5"),
        ("[{{input.none?}}{{results.package.none?}}]", "[]"),
        ("{ {{step}} }", "{ fly }"),
    ] {
        assert_eq!(text(template, &input).unwrap(), expected, "{template}");
    }
}

#[test]
fn a_value_that_is_missing_or_does_not_fit_is_named() {
    let input = json!({"null": null, "object": {}, "list": []});
    for (template, code, placeholder) in [
        ("{{input.none}}", "template-value-missing", "input.none"),
        ("{{input.null}}", "template-value-missing", "input.null"),
        ("{{input.list.0}}", "template-value-missing", "input.list.0"),
        (
            "{{results.package.size}}",
            "template-value-missing",
            "results.package.size",
        ),
        (
            "{{input.object}}",
            "template-value-unsuitable",
            "input.object",
        ),
        ("{{input.list}}", "template-value-unsuitable", "input.list"),
    ] {
        let error = text(template, &input).unwrap_err();
        assert_eq!(error.code(), code, "{template}");
        assert!(error.to_string().contains(placeholder), "{error}");
    }
    let mut request = request(&json!({}));
    request.input = (*b"{").into();
    let error = Text::compile("{{input.a}}", None)
        .unwrap()
        .render(&Scope::new(&request, "k"))
        .unwrap_err();
    assert_eq!(error.code(), "input-not-json");
}

#[test]
fn templates_that_name_nothing_are_refused_at_load() {
    for template in [
        "{{}}",
        "{{inputs.a}}",
        "{{input..a}}",
        "{{results.package}}",
        "{{results.a.b.c}}",
        "{{operation.id}}",
        "{{env.HOME}}",
        "{{input.a b}}",
        "{{input.a}",
        "x {{",
    ] {
        assert!(Text::compile(template, None).is_err(), "{template}");
    }
}

#[test]
fn a_path_keeps_its_segments_whatever_the_values_are() {
    for (value, expected) in [
        ("p-1", "/api/packages/p-1"),
        ("a/b", "/api/packages/a%2Fb"),
        ("../../admin", "/api/packages/..%2F..%2Fadmin"),
        ("a?b=c#d", "/api/packages/a%3Fb%3Dc%23d"),
        ("%2e%2e", "/api/packages/%252e%252e"),
        ("a\\b\r\nHost: x", "/api/packages/a%5Cb%0D%0AHost%3A%20x"),
        ("@evil.example", "/api/packages/%40evil.example"),
        ("é", "/api/packages/%C3%A9"),
        ("...", "/api/packages/..."),
    ] {
        assert_eq!(
            path("/api/packages/{{input.id}}", &json!({"id": value})).unwrap(),
            expected
        );
    }
    for value in [".", "..", ""] {
        let error = path("/api/packages/{{input.id}}", &json!({"id": value})).unwrap_err();
        assert_eq!(error.code(), "template-value-unsuitable", "{value:?}");
    }
    // Two halves must not form a dot segment either.
    for template in [
        "/a/.{{input.id}}/b",
        "/a/%2e{{input.id}}/b",
        "/a/{{input.id}}%2E",
    ] {
        assert!(path(template, &json!({"id": "."})).is_err(), "{template}");
    }
}

#[test]
fn a_query_keeps_its_parameters_whatever_the_values_are() {
    let input = json!({"q": "a&b=c d"});
    assert_eq!(
        path("/s?q={{input.q}}&n={{input.n?}}", &input).unwrap(),
        "/s?q=a%26b%3Dc%20d&n="
    );
    assert_eq!(path("/s/x{{input.n?}}?a?b", &input).unwrap(), "/s/x?a?b");
}

#[test]
fn paths_that_are_not_safe_are_refused_at_load() {
    for template in [
        "",
        "api",
        "//evil.example/x",
        "/a//b",
        "/a/../b",
        "/a/%2E%2e/b",
        "/a/./b",
        "/a b",
        "/a#b",
        "http://evil.example/",
        "{{input.path}}",
        "/\u{e9}",
        "/a/{{input.id",
    ] {
        assert!(Path::compile(template, None).is_err(), "{template}");
    }
    for template in ["/", "/a/", "/a/b-._~!$&'()*+,;=:@", "/%7Ea?x=/?"] {
        assert!(Path::compile(template, None).is_ok(), "{template}");
    }
}

#[test]
fn a_body_keeps_the_types_of_its_values() {
    let input = json!({"s": "a\"b\\\n", "n": 3, "f": 1.5, "t": true, "o": {"k": [1, null]}});
    for (template, expected) in [
        (json!("{{input.s}}"), json!(input["s"])),
        (json!("{{input.n}}"), json!(3)),
        (json!("{{ input.o }}"), json!({"k": [1, null]})),
        (json!("{{input}}"), input.clone()),
        (json!("{{attempt}}"), json!(1)),
        (json!("{{results.package.tag}}"), json!("T-1")),
        (json!("n={{input.n}}"), json!("n=3")),
        (json!("q\"{{input.s}}\""), json!("q\"a\"b\\\n\"")),
        (
            json!({"x": {"y": ["{{input.f}}", "fixed", 2]}, "z": null}),
            json!({"x": {"y": [1.5, "fixed", 2]}, "z": null}),
        ),
        (
            json!({"a": "{{input.none?}}", "b": 1, "c": "{{input.t?}}", "d": "{{input.none?}}"}),
            json!({"b": 1, "c": true}),
        ),
        (json!({"a": "{{input.none?}}"}), json!({})),
        (json!(["{{input.none?}}", 1, "{{input.none?}}"]), json!([1])),
        (json!(["{{input.none?}}"]), json!([])),
        (json!("{{input.none?}}"), json!(null)),
        (json!({"quo\"te": "x,"}), json!({"quo\"te": "x,"})),
        (
            json!({"a": "{{input.s}}", "b": "x{{input.none?}},"}),
            json!({"a": "a\"b\\\n", "b": "x,"}),
        ),
    ] {
        let rendered = body(&template, &input).unwrap();
        let parsed: Value = serde_json::from_str(&rendered).unwrap_or_else(|error| {
            panic!("{template} rendered as {rendered}: {error}");
        });
        assert_eq!(parsed, expected, "{template}");
    }
    assert_eq!(
        body(&json!({"a": {"b": "{{input.none}}"}}), &input)
            .unwrap_err()
            .code(),
        "template-value-missing"
    );
}

#[test]
fn numbers_of_any_size_stay_values_in_a_path() {
    let cases = [
        ("1e30", "/s?n=1e%2B30"),
        ("123456789012345678901", "/s?n=1.2345678901234568e%2B20"),
        ("18446744073709551615", "/s?n=18446744073709551615"),
        ("-7", "/s?n=-7"),
        ("0.5", "/s?n=0.5"),
    ];
    for (number, expected) in cases {
        let input: Value = serde_json::from_str(&format!(r#"{{"n":{number}}}"#)).unwrap();
        assert_eq!(path("/s?n={{input.n}}", &input).unwrap(), expected);
    }
}

#[test]
fn values_copied_into_a_body_keep_their_text() {
    let template = Body::compile(&json!({"v": "{{input.v}}"}), None).unwrap();
    let rendered = |text: &str| {
        let request = request_with(&format!("{{\"v\": {text}}}"));
        template.render(&Scope::new(&request, "op/fly")).unwrap()
    };
    for text in [
        r#"{"z":1,"a":[null,true,{"deep":"\u00e9\n\"\\"}],"m":{}}"#,
        "[]",
        "1e-7",
        "1.50",
        "18446744073709551617",
        "-9223372036854775809",
        "0.12345678901234567890123",
    ] {
        assert_eq!(rendered(text), format!("{{\"v\":{text}}}"));
    }
    // Strings are encoded again, because they may come from elsewhere.
    let text = r#""a \ud83d\ude80 \u0001""#;
    let body: Value = serde_json::from_str(&rendered(text)).unwrap();
    assert_eq!(body["v"], serde_json::from_str::<Value>(text).unwrap());
}

#[test]
fn a_number_of_many_digits_names_the_same_thing_in_a_path() {
    let request = request_with(r#"{"id": 18446744073709551617}"#);
    let mut out = String::new();
    Path::compile("/bookings/{{input.id}}", None)
        .unwrap()
        .render_into(&Scope::new(&request, "op/fly"), &mut out)
        .unwrap();
    assert_eq!(out, "/bookings/18446744073709551617");
}

#[test]
fn a_placeholder_in_single_braces_is_refused_and_other_braces_are_text() {
    for written in [
        "input.name",
        "operation",
        "results.package.tag",
        "request.x",
    ] {
        let template = format!("/a/{{{written}}}/b");
        let refused = TemplateError::SingleBraces {
            placeholder: written.to_owned(),
        };
        assert_eq!(
            Text::compile(&template, None).unwrap_err(),
            refused,
            "{template}"
        );
        assert_eq!(
            Path::compile(&template, None).unwrap_err(),
            refused,
            "{template}"
        );
        assert_eq!(
            Body::compile(&json!({"a": [template]}), None).unwrap_err(),
            refused
        );
    }
    assert_eq!(
        TemplateError::SingleBraces {
            placeholder: "input.name".to_owned()
        }
        .to_string(),
        "`{input.name}` has single braces: placeholders have two, as in `{{input.name}}`"
    );
    for template in ["{}", "{ \"a\": 1 }", "{a.b}", "{", "{input"] {
        assert_eq!(text(template, &json!({})).unwrap(), template);
    }
}
