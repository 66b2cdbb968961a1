//! The whole system on an external registry, if the environment names one.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_messages::{RECORD_SCHEMAS, RecordKind, SchemaId, Topics, WriterSchema};
use waybill_registry::{Compatibility, Registry, RegistryError, RegistrySettings};
use waybill_test_support::setup::Setup;

use crate::records::{id_of, values};
use crate::{deliver, schema_of, waybill};

/// The registry's URL.
const REGISTRY: &str = "WAYBILL_TEST_REGISTRY";

/// A schema that cannot read data of any other schema.
const OTHER: &str =
    r#"{"type": "record", "name": "Other", "fields": [{"name": "a", "type": "long"}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_party_registry_is_supported() {
    let Ok(url) = std::env::var(REGISTRY) else {
        println!("SKIPPED: a third-party schema registry: {REGISTRY} is not set");
        return;
    };
    // Unique subjects, because a registry keeps all schemas.
    let prefix = format!("t{}", uuid::Uuid::now_v7().simple());
    let settings = RegistrySettings {
        url: url.clone(),
        login: None,
        ca_pem: None,
        timeout: Duration::from_secs(30),
    };
    let registry = Registry::new(&settings).unwrap();
    let replies = format!("{prefix}.step-replies.v1-value");
    let of_replies = schema_of(RecordKind::StepReply);
    registry
        .register(&replies, of_replies.released[0])
        .await
        .unwrap();

    let mut setup = Setup::new(&format!(
        "partitions: 2\nkafka: {{ topicPrefix: '{prefix}' }}\nschemaRegistry: {{ url: '{url}' }}\n"
    ));
    let up = setup.up();
    setup.ready().await;
    let ids = deliver(&setup, "real", 20).await;
    setup.all_reach(&ids, "Processed").await;
    let mut of_topics = BTreeMap::new();
    for (topic, value) in values(&setup) {
        let id = id_of(&value).unwrap_or_else(|| panic!("{topic} holds {value:?}"));
        of_topics.insert((topic, id), ());
    }
    let ours = RECORD_SCHEMAS.map(|schema| WriterSchema::parse(schema.json).unwrap().fingerprint());
    assert!(of_topics.len() >= 8, "{of_topics:?}");
    for (topic, id) in of_topics.into_keys() {
        let stored = registry.schema(SchemaId(id)).await.unwrap().unwrap();
        let fingerprint = WriterSchema::parse(&stored.schema).unwrap().fingerprint();
        assert!(ours.contains(&fingerprint), "{topic}: {}", stored.schema);
    }
    let checked = waybill(&setup.path("waybill.yaml"), &["schemas", "check"]);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{text}");
    assert!(!text.contains("not registered"), "{text}");
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());

    let found = registry.check(&replies, OTHER).await.unwrap();
    assert!(matches!(found, Compatibility::Incompatible { reasons } if !reasons.is_empty()));
    let error = registry.register(&replies, OTHER).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Incompatible { .. }),
        "{error}"
    );
    assert_eq!(registry.look_up(&replies, OTHER).await.unwrap(), None);
    assert_eq!(
        registry.schema(SchemaId(u32::MAX >> 1)).await.unwrap(),
        None
    );
    let nobody = format!("{}-value", Topics::new(&prefix).prefix());
    let first = registry.check(&nobody, OTHER).await.unwrap();
    assert_eq!(first, Compatibility::First);
}
