//! Variables in requests.

use super::*;

#[tokio::test]
async fn variables_are_values_of_base_urls_paths_headers_and_bodies() {
    let service = Service::start().await;
    let yaml = format!(
        "agents:\n  - name: package\n    http:\n      baseUrl: '{{{{ vars.payments }}}}/v1'\n{}",
        indent(
            "request:\n  method: PUT\n  path: '/{{vars.region}}/p-{{vars.region}}?in={{vars.region}}'\n  \
             headers: { X-Region: 'r={{vars.region}}' }\n  \
             body: { region: '{{vars.region}}', none: '{{vars.empty}}', note: 'in {{vars.region}}' }"
        )
    );
    let agent = load(&yaml, &service.url).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(kind_and_code(&outcome(&agent).await).0, "success");
    let asked = &service.asked()[0];
    assert_eq!(asked.uri.to_string(), "/v1/eu%2F1/p-eu%2F1?in=eu%2F1");
    assert_eq!(asked.headers["x-region"], "r=eu/1");
    let body = r#"{"region":"eu/1","none":"","note":"in eu/1"}"#;
    let [sent, expected] =
        [&asked.body, body].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn a_value_of_a_request_that_looks_like_a_variable_stays_text() {
    let service = Service::start().await;
    let settings = "request: { method: PUT, path: '/{{input.id}}', headers: { X-Id: '{{input.id}}' }, body: '{{input}}' }";
    let agent = agent(&service.url, settings);
    let input = r#"{"id":"{{vars.payments}}"}"#;
    let request = request().input(input).build();
    let outcome = attempt(&agent, request).await.unwrap();
    assert_eq!(kind_and_code(&outcome).0, "success", "{outcome:?}");
    let asked = &service.asked()[0];
    assert_eq!(asked.uri.path(), "/base/%7B%7Bvars.payments%7D%7D");
    assert_eq!(asked.headers["x-id"], "{{vars.payments}}");
    assert_eq!(asked.body, input);
}

#[test]
fn unknown_and_unsuitable_variables_are_refused_at_load_with_their_line() {
    let put = |path: &str| format!("request:\n  method: PUT\n  path: '{path}'");
    for (settings, expected, line) in [
        (
            format!("baseUrl: 'http://{{{{vars.stock}}}}'\n{PUT}"),
            "`{{vars.stock}}` is an unknown variable; known variables: empty, payments, region",
            4,
        ),
        (
            format!("baseUrl: http://h\n{}", put("/{{vars.stock?}}")),
            "`{{vars.stock}}` is an unknown variable",
            7,
        ),
        (
            format!("baseUrl: http://h\n{}", put("/a/{{vars.empty}}/b")),
            "a variable that is empty",
            7,
        ),
        (
            format!(
                "baseUrl: http://h\n{}\n  headers:\n    X-A: '{{vars.region}}'",
                put("/")
            ),
            "has single braces",
            9,
        ),
        (
            format!(
                "baseUrl: http://h\n{}\n  headers:\n    Authorization: 'Bearer {{{{vars.region}}}}'",
                put("/")
            ),
            "holds a credential",
            9,
        ),
        (
            format!(
                "baseUrl: http://h\n{}\n  headers:\n    Authorization: 'Bearer abc{{{{input.x?}}}}'",
                put("/")
            ),
            "holds a credential",
            9,
        ),
        (
            format!("baseUrl: http://user:hunter2@h\n{PUT}"),
            "`baseUrl`: contains a login",
            4,
        ),
        (
            format!("baseUrl: 'http://{{{{input.host}}}}'\n{PUT}"),
            "`{{input.host}}` is an unknown variable",
            4,
        ),
    ] {
        let yaml = format!(
            "agents:\n  - name: package\n    http:\n{}",
            indent(&settings)
        );
        let file = AgentsFile::from_yaml(&yaml).unwrap_or_else(|error| panic!("{yaml}\n{error}"));
        let loaded = file.load(&variables("http://127.0.0.1:1"));
        let error = loaded.err().unwrap_or_else(|| panic!("{yaml}"));
        let message = chain(&error);
        assert!(message.contains(expected), "{yaml}\n{message}");
        assert!(!message.contains("hunter2"), "{message}");
        assert_eq!(error.line(&yaml), Some(line), "{yaml}\n{message}");
    }
}
