//! The client against an in-memory registry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use waybill_messages::{
    Lookup, RECORD_SCHEMAS, RecordKind, SchemaId, SchemaIds, Schemas as _, Topics, WriterSchema,
};
use waybill_registry::{
    Compatibility, Login, Registry, RegistryError, RegistrySettings, SchemaCache, SubjectError,
    schema_ids, subjects,
};
use waybill_test_support::ports::free_address;
use waybill_test_support::registry::Stub;

/// How long a test waits for anything. Generous: only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A schema that is incompatible with all others, in both directions.
const OTHER: &str =
    r#"{"type": "record", "name": "Other", "fields": [{"name": "a", "type": "long"}]}"#;

fn settings(stub: &Stub) -> RegistrySettings {
    RegistrySettings {
        url: stub.url(),
        login: None,
        ca_pem: None,
        timeout: PATIENCE,
    }
}

async fn setup() -> (Stub, Registry) {
    let stub = Stub::start().await;
    let registry = Registry::new(&settings(&stub)).unwrap();
    (stub, registry)
}

/// The first answer of a cache other than `NotYet`.
async fn resolved(cache: &SchemaCache, id: u32) -> Lookup {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match cache.writer_schema(SchemaId(id)) {
            Lookup::NotYet if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            lookup => return lookup,
        }
    }
}

#[tokio::test]
async fn every_writer_schema_gets_an_id_and_the_same_one_again() {
    let (stub, registry) = setup().await;
    let subjects = subjects(&Topics::default(), &["drone", "account"]);
    let missing = schema_ids(&registry, &subjects, false).await;
    assert!(
        matches!(missing, Err(SubjectError::Missing { subject }) if subject == subjects[0].name)
    );

    let ids = schema_ids(&registry, &subjects, true).await.unwrap();
    assert_eq!(schema_ids(&registry, &subjects, true).await.unwrap(), ids);
    assert_eq!(schema_ids(&registry, &subjects, false).await.unwrap(), ids);
    for schema in RECORD_SCHEMAS {
        let id = ids.get(schema.kind).unwrap();
        let stored = registry.schema(id).await.unwrap().unwrap();
        assert_eq!(stored.schema, schema.json);
    }
    for agent in ["drone", "account"] {
        let SchemaId(id) = ids.get(RecordKind::StepRequest).unwrap();
        assert_eq!(
            stub.versions(&format!("waybill.{agent}.requests.v1-value")),
            [id]
        );
    }
    assert_ne!(ids, SchemaIds::default());
}

#[tokio::test]
async fn an_incompatible_schema_is_refused_with_the_registrys_reason() {
    let (stub, registry) = setup().await;
    let subjects = subjects(&Topics::default(), &["drone"]);
    let [subject, ..] = subjects.as_slice() else {
        panic!("there are subjects")
    };
    let verdict = registry.check(&subject.name, subject.schema.json).await;
    assert_eq!(verdict.unwrap(), Compatibility::First);
    stub.give(&subject.name, OTHER);
    match registry.check(&subject.name, subject.schema.json).await {
        Ok(Compatibility::Incompatible { reasons }) => assert_eq!(reasons.len(), 1, "{reasons:?}"),
        other => panic!("{other:?}"),
    }
    let error = schema_ids(&registry, &subjects, true).await.unwrap_err();
    let SubjectError::Registry(error) = error else {
        panic!("{error}")
    };
    assert!(!error.is_temporary());
    let text = error.to_string();
    assert!(
        text.contains(&subject.name) && text.contains("incompatible with an earlier schema"),
        "{text}"
    );
}

#[tokio::test]
async fn a_newer_schema_that_reads_the_older_one_is_compatible() {
    let (stub, registry) = setup().await;
    let request = RECORD_SCHEMAS[0];
    let mut older: serde_json::Value = serde_json::from_str(request.json).unwrap();
    let fields = older["fields"].as_array_mut().unwrap();
    let has_default = |field: &serde_json::Value| field.get("default").is_some();
    fields.remove(fields.iter().rposition(has_default).unwrap());
    stub.give("s", &older.to_string());
    let verdict = registry.check("s", request.json).await;
    assert_eq!(verdict.unwrap(), Compatibility::Compatible);
    registry.register("s", request.json).await.unwrap();
    assert_eq!(stub.versions("s").len(), 2);
}

#[tokio::test]
async fn only_a_registry_answer_makes_an_id_unknown() {
    let (stub, registry) = setup().await;
    assert_eq!(registry.schema(SchemaId(1)).await.unwrap(), None);
    let answers = [
        (StatusCode::NOT_FOUND, "nothing here", false),
        (
            StatusCode::NOT_FOUND,
            r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#,
            false,
        ),
        (StatusCode::OK, "<html>", false),
        (StatusCode::UNAUTHORIZED, "", false),
        (StatusCode::FOUND, "", false),
        (StatusCode::BAD_GATEWAY, "", true),
        (StatusCode::TOO_MANY_REQUESTS, "", true),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            r#"{"error_code": 50001, "message": "Error in the backend datastore"}"#,
            true,
        ),
    ];
    for (status, body, is_temporary) in answers {
        stub.answers(status, body);
        let error = registry.schema(SchemaId(1)).await.unwrap_err();
        assert_eq!(error.is_temporary(), is_temporary, "{status}: {error}");
    }
}

#[tokio::test]
async fn a_registry_that_does_not_exist_is_unreachable() {
    let address = free_address();
    let registry = Registry::new(&RegistrySettings {
        url: format!("http://{address}"),
        login: None,
        ca_pem: None,
        timeout: PATIENCE,
    });
    let error = registry.unwrap().schema(SchemaId(1)).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Unreachable { .. }),
        "{error}"
    );
    assert!(error.is_temporary());
}

#[tokio::test]
async fn login_and_base_path_are_sent() {
    let (stub, _) = setup().await;
    let registry = Registry::new(&RegistrySettings {
        url: format!("{}/apis/ccompat/v7/", stub.url()),
        login: Some(Login {
            user: "anna".to_owned(),
            password: "open sesame".to_owned(),
        }),
        ..settings(&stub)
    });
    // The server answers with a plain 404.
    let error = registry.unwrap().look_up("a/b", OTHER).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::NotARegistry { .. }),
        "{error}"
    );
    assert_eq!(stub.asked(), ["POST /apis/ccompat/v7/subjects/a%2Fb"]);
    assert_eq!(
        stub.authorization().as_deref(),
        Some("Basic YW5uYTpvcGVuIHNlc2FtZQ==")
    );
}

#[tokio::test]
async fn readers_get_known_schemas_and_each_id_is_requested_once() {
    let (stub, registry) = setup().await;
    let good = stub.give("s", OTHER);
    let json = stub.store("{}", "JSON");
    let cache = SchemaCache::new(registry);
    for _ in 0..100 {
        assert!(matches!(
            cache.writer_schema(SchemaId(good)),
            Lookup::NotYet
        ));
    }
    let Lookup::Found(schema) = resolved(&cache, good).await else {
        panic!("it is there")
    };
    assert_eq!(
        schema.fingerprint(),
        WriterSchema::parse(OTHER).unwrap().fingerprint()
    );
    assert!(matches!(
        resolved(&cache, json).await,
        Lookup::Unusable { .. }
    ));
    assert!(matches!(resolved(&cache, 1).await, Lookup::Unknown));
    // Known IDs cost no request, whether a schema exists or not.
    stub.goes_away();
    for id in [good, json, 1] {
        assert!(!matches!(cache.writer_schema(SchemaId(id)), Lookup::NotYet));
    }
    // An existing schema is fetched once. A missing one might just have been registered.
    let [good, json, nothing] = [good, json, 1].map(|id| format!("GET /schemas/ids/{id}"));
    let asked = stub.asked();
    assert_eq!(asked[..3], [good, json, nothing.clone()]);
    assert!(
        asked.len() > 3 && asked[3..].iter().all(|asked| *asked == nothing),
        "{asked:?}"
    );
}

#[tokio::test]
async fn readers_wait_for_a_new_schema_that_a_node_does_not_have_yet() {
    let (stub, registry) = setup().await;
    let cache = SchemaCache::new(registry);
    let next = stub.give("s", OTHER) + 1;
    assert!(matches!(
        cache.writer_schema(SchemaId(next)),
        Lookup::NotYet
    ));
    while stub.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(stub.store(r#""long""#, "AVRO"), next);
    assert!(matches!(resolved(&cache, next).await, Lookup::Found(_)));
}

#[tokio::test]
async fn readers_stop_waiting_for_a_refused_id() {
    let (stub, registry) = setup().await;
    let good = stub.give("s", OTHER);
    let cache = SchemaCache::new(registry);
    assert!(matches!(resolved(&cache, good).await, Lookup::Found(_)));
    stub.answers(
        StatusCode::FORBIDDEN,
        r#"{"error_code": 40301, "message": "not for you"}"#,
    );
    let Lookup::Unusable { cause } = resolved(&cache, 77).await else {
        panic!("it is refused")
    };
    assert!(cause.contains("not for you"), "{cause}");
}

#[tokio::test]
async fn readers_wait_while_the_registry_is_unreachable_and_continue_afterwards() {
    let (stub, registry) = setup().await;
    let id = stub.give("s", OTHER);
    stub.goes_away();
    let cache = Arc::new(SchemaCache::new(registry));
    let deadline = Instant::now() + PATIENCE;
    while stub.asked().len() < 3 {
        let lookup = cache.writer_schema(SchemaId(id));
        assert!(matches!(lookup, Lookup::NotYet), "{lookup:?}");
        assert!(Instant::now() < deadline, "it is not asked again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stub.is_back();
    assert!(matches!(resolved(&cache, id).await, Lookup::Found(_)));
}
