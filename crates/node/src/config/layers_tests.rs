//! The layers of the whole configuration, and the message for each error in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use waybill_config::{Environment, FileError, parse_over_defaults, variables};
use waybill_scheduler::PartitionChoice;
use waybill_units::ByteSize;

use super::*;
use crate::telemetry::LogFormat;

#[test]
fn refusals_of_a_file_have_line_column_and_remedy() {
    let cases = [
        (
            "partions: 4\n",
            "w.yaml:1:1: unknown key partions; did you mean partitions?",
        ),
        (
            "partitions: 4\nscheduler:\n  # the lease\n  leese: 10s\n",
            "w.yaml:4:3: unknown key scheduler.leese; did you mean scheduler.lease?",
        ),
        (
            "http:\n  handOffAfter: 5s\n",
            "w.yaml:2:3: unknown key http.handOffAfter; did you mean \
             scheduler.handOffAfter?",
        ),
        (
            "zebra: 1\n",
            "w.yaml:1:1: unknown key zebra; expected one of dataDir, partitions, \
             shutdownTimeout, insecure, kafka, schemaRegistry, http, admin, auth, broker, storage, \
             store, scheduler, supervisor, agents, variables, workflows, services, alerts, telemetry",
        ),
        (
            "http:\n  listen: 127.0.0.1:1\n  tls:\n    certfile: a.pem\n",
            "w.yaml:4:5: unknown key http.tls.certfile; did you mean http.tls.certFile?",
        ),
        (
            "http: {hosts: [a, 'b{'], tls: {certfile: a.pem}}\n",
            "w.yaml:1:32: unknown key http.tls.certfile; did you mean http.tls.certFile?",
        ),
        (
            "partitions: 4\npartitions: 5\n",
            "w.yaml:2:1: the key partitions appears twice",
        ),
        (
            "telemetry:\n  logFormat: xml\n",
            "w.yaml:2:14: telemetry.logFormat: xml is not one of text, json",
        ),
        (
            "scheduler:\n  lease: 9s\n  handOffAfter: \"5\" # so\n",
            "w.yaml:3:3: scheduler.handOffAfter: invalid value: string \"5\", expected a duration with its unit, such as \
             200ms, 5s, 2m, 1h or 7d",
        ),
        (
            "scheduler: {handOffAfter: 5}\n",
            "w.yaml:1:13: scheduler.handOffAfter: invalid value: string \"5\", expected a duration with its unit, such as \
             200ms, 5s, 2m, 1h or 7d",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(
            parse_over_defaults::<Config>("w.yaml", text)
                .unwrap_err()
                .to_string(),
            expected
        );
    }
}

#[test]
fn values_of_a_wrong_type_are_refused_with_their_line() {
    let cases = [
        (
            "\npartitions: many\n",
            2,
            "partitions: must be a whole number",
        ),
        ("partitions: -1\n", 1, "must be a whole number"),
        (
            "scheduler: { lease: 5s, inFlightMax: many }\n",
            1,
            "scheduler.inFlightMax: must be a whole number",
        ),
        ("partitions: [1]\n", 1, ""),
        (
            "http:\n  listen: localhost:8080\n",
            2,
            "http.listen: must be an IP address and a port of at most 65535, such as 127.0.0.1:8080; host names are not allowed",
        ),
        (
            "admin:\n  listen: 8081\n",
            2,
            "admin.listen: must be an IP address and a port",
        ),
        (
            "http: {listen: \"127.0.0.1:99999\"}\n",
            1,
            "http.listen: must be an IP address and a port of at most 65535",
        ),
        (
            "partitions: 5000000000\n",
            1,
            "partitions: must be a whole number from 0 to 4294967295",
        ),
        (
            "http:\n  tenantLimits: {perSecond: 5000000000}\n",
            2,
            "perSecond: 5000000000 is too large",
        ),
        (
            "http:\n  tenantLimits: {perSecond: 10000000000000000000}\n",
            2,
            "perSecond: must be a whole number from -9223372036854775808 to 9223372036854775807",
        ),
        (
            "scheduler: { inFlightMax: 20000000000000000000 }\n",
            1,
            "inFlightMax: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "http:\n  tenantLimits: {perSecond: -1}\n",
            2,
            "perSecond: must be a whole number of at least 1",
        ),
        (
            "http:\n  tenantLimits:\n    tenants: {a: {perSecond: 0}}\n",
            3,
            "http.tenantLimits.tenants.a.perSecond: must be a whole number of at least 1",
        ),
        (
            "store:\n  scylla:\n    inFlightMax: 0\n",
            3,
            "inFlightMax: must be a whole number of at least 1",
        ),
        ("http:\n  requestBytesMax: 64\n", 2, "a size with its unit"),
        (
            "http:\n\n  acceptTimeout: 10\n",
            3,
            "a duration with its unit",
        ),
        ("scheduler:\n  partitions: 3-1\n", 2, "a range such as 0-3"),
        (
            "workflows:\n  builtIn: perhaps\n",
            2,
            "workflows.builtIn: must be true or false",
        ),
        ("insecure: \"yes\"\n", 1, "insecure: must be true or false"),
        (
            "workflows:\n  builtIn: off\n",
            2,
            "workflows.builtIn: must be true or false",
        ),
        ("kafka:\n  brokers: localhost:9092\n", 2, "must be a list"),
        (
            "services: { faults: { drone: { errorRate: often } } }\n",
            1,
            "errorRate: must be a number",
        ),
        ("kafka: { properties: { größe: [1] } }\n", 1, ""),
        ("http: 8080\n", 1, ""),
        ("partitions: 4\n]\n", 2, ""),
        ("a: 1\n---\nb: 2\n", 1, ""),
    ];
    for (text, line, wanted) in cases {
        match parse_over_defaults::<Config>("w.yaml", text) {
            Err(FileError::Wrong {
                position: Some((at, _)),
                problem,
                ..
            }) => {
                assert_eq!(at, line, "{text:?}: {problem}");
                assert!(problem.contains(wanted), "{text:?}: {problem}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn a_file_without_a_key_gives_the_defaults() {
    for text in [
        "",
        "\n",
        "# nothing yet\n\n  # still nothing\n",
        "{}\n",
        "http: {}\n",
    ] {
        assert_eq!(
            parse_over_defaults::<Config>("w.yaml", text).unwrap(),
            Config::default(),
            "{text:?}"
        );
    }
}

#[test]
fn plain_numbers_are_accepted_as_text() {
    let text = "kafka:\n  topicPrefix: 007\n  properties:\n    socket.timeout.ms: 5000\n";
    let config = parse_over_defaults::<Config>("w.yaml", text).unwrap();
    assert_eq!(config.kafka.topic_prefix, "007");
    let properties: Vec<_> = config.kafka.properties.iter().collect();
    assert_eq!(properties, [("socket.timeout.ms", "5000")]);
}

#[test]
fn a_refusal_quotes_no_line_of_the_file() {
    let text = "kafka:\n  properties:\n    sasl.password: hunter2\n    sasl.password: hunter2\n";
    let error = parse_over_defaults::<Config>("w.yaml", text).unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("hunter2"),
        "{error:?}"
    );
}

#[test]
fn variables_set_values_of_every_type() {
    let environment = [
        ("WAYBILL_DATA_DIR", "/var/lib/waybill"),
        ("WAYBILL_PARTITIONS", "8"),
        ("WAYBILL_KAFKA__BROKERS", "a:9092, b:9092"),
        ("WAYBILL_KAFKA__TOPIC_PREFIX", "007"),
        ("WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD", "0123"),
        (
            "WAYBILL_KAFKA__PROPERTY_FILES__SSL_KEY_PASSWORD",
            "/run/secrets/key",
        ),
        ("WAYBILL_HTTP__LISTEN", "0.0.0.0:80"),
        ("WAYBILL_HTTP__REQUEST_BYTES_MAX", "1MiB"),
        ("WAYBILL_SCHEDULER__HAND_OFF_AFTER", "7s"),
        ("WAYBILL_SCHEDULER__PARTITIONS", "2"),
        ("WAYBILL_WORKFLOWS__BUILT_IN", "false"),
        ("WAYBILL_WORKFLOWS__FILES", "[a.yaml, b.yaml]"),
        ("WAYBILL_AGENTS__FILES", "one.yaml"),
        ("WAYBILL_SERVICES__FAULTS__THIRD_PARTY__ERROR_RATE", "0.25"),
        ("WAYBILL_TELEMETRY__LOG_FORMAT", "json"),
    ];
    let mut expected = Config {
        data_dir: "/var/lib/waybill".into(),
        ..Config::default()
    };
    expected.partitions = 8;
    expected.kafka.brokers = Some(vec!["a:9092".to_owned(), "b:9092".to_owned()]);
    expected.kafka.topic_prefix = "007".to_owned();
    let password = serde_json::json!({ "sasl.password": "0123" });
    expected.kafka.properties = serde_json::from_value(password).unwrap();
    let key_file = ("ssl.key.password".to_owned(), "/run/secrets/key".into());
    expected.kafka.property_files.extend([key_file]);
    expected.http.listen = "0.0.0.0:80".parse().unwrap();
    expected.http.request_bytes_max = ByteSize::mib(1);
    expected.scheduler.hand_off_after = Duration::from_secs(7);
    expected.scheduler.partitions = PartitionChoice::Range { first: 2, last: 2 };
    expected.workflows.built_in = false;
    expected.workflows.files = vec!["a.yaml".into(), "b.yaml".into()];
    expected.agents.files = vec!["one.yaml".into()];
    expected.services.faults.third_party.error_rate = 0.25;
    expected.telemetry.log_format = LogFormat::Json;
    assert_eq!(applied(&environment).unwrap(), expected);
}

#[test]
fn a_password_is_taken_as_it_is_written() {
    for password in ["abc #1", "'quoted'", "~", "!tag", "a, b", "007"] {
        let environment = [
            ("WAYBILL_STORE__SCYLLA__PASSWORD", password),
            ("WAYBILL_SCHEMA_REGISTRY__PASSWORD", password),
        ];
        let config = applied(&environment).unwrap();
        let passwords = [
            config.store.scylla.password,
            config.schema_registry.password,
        ];
        for taken in passwords {
            assert_eq!(taken.unwrap().reveal(), password);
        }
    }
}

#[test]
fn a_variable_that_unsets_an_optional_key_gives_back_its_default() {
    let mut config = Config::default();
    config.kafka.brokers = Some(vec!["a:9092".to_owned()]);
    let environment: Environment = [("WAYBILL_KAFKA__BROKERS", "")].into_iter().collect();
    let config = environment.apply(config).unwrap();
    assert_eq!(config.kafka.brokers, None);
}

#[test]
fn unknown_variables_are_refused_with_the_nearest_known_one() {
    let cases = [
        ("WAYBILL_HTTP__LISTN", Some("WAYBILL_HTTP__LISTEN")),
        ("WAYBILL_SCHEDULER_LEASE", Some("WAYBILL_SCHEDULER__LEASE")),
        ("WAYBILL_HTPP__LISTEN", Some("WAYBILL_HTTP__LISTEN")),
        ("WAYBILL_LOG_FILTR", Some("WAYBILL_TELEMETRY__LOG_FILTER")),
        ("WAYBILL_LEASE", Some("WAYBILL_SCHEDULER__LEASE")),
        ("WAYBILL_LOG_FILTER", Some("WAYBILL_TELEMETRY__LOG_FILTER")),
        ("WAYBILL_CONFIGS", Some("WAYBILL_CONFIG")),
        ("WAYBILL_HTP", Some("WAYBILL_HTTP__...")),
        ("WAYBILL_HTTP", Some("WAYBILL_HTTP__...")),
        (
            "WAYBILL_KAFKA__PROPERTIES",
            Some("WAYBILL_KAFKA__PROPERTIES__SASL_PASSWORD"),
        ),
    ];
    for (name, nearest) in cases {
        match applied(&[(name, "1")]) {
            Err(ConfigError::UnknownVariable {
                name: refused,
                nearest: found,
            }) => {
                assert_eq!((refused.as_str(), found.as_deref()), (name, nearest));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_refused_with_variable_and_key() {
    let cases = [
        (
            "WAYBILL_PARTITIONS",
            "many",
            "partitions",
            "must be a whole number from 0",
        ),
        (
            "WAYBILL_SCHEDULER__LEASE",
            "10",
            "scheduler.lease",
            "a duration with its unit",
        ),
        (
            "WAYBILL_HTTP__LISTEN",
            "here",
            "http.listen",
            "must be an IP address and a port",
        ),
        (
            "WAYBILL_HTTP__LISTEN",
            "8080",
            "http.listen",
            "must be an IP address and a port",
        ),
        (
            "WAYBILL_PARTITIONS",
            "5000000000",
            "partitions",
            "must be a whole number from 0 to 4294967295",
        ),
        (
            "WAYBILL_SCHEDULER__IN_FLIGHT_MAX",
            "20000000000000000000",
            "scheduler.inFlightMax",
            "must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "WAYBILL_HTTP__TENANT_LIMITS__PER_SECOND",
            "0",
            "http.tenantLimits.perSecond",
            "must be a whole number of at least 1",
        ),
        (
            "WAYBILL_WORKFLOWS__BUILT_IN",
            "perhaps",
            "workflows.builtIn",
            "must be true or false",
        ),
        (
            "WAYBILL_WORKFLOWS__BUILT_IN",
            "yes",
            "workflows.builtIn",
            "must be true or false",
        ),
    ];
    for (name, value, key, cause) in cases {
        let error = applied(&[(name, value)]).unwrap_err().to_string();
        let start = format!("the environment variable {name} is invalid for {key}: ");
        assert!(
            error.starts_with(&start) && error.contains(cause),
            "{error}"
        );
    }
}

#[test]
fn service_variables_of_kubernetes_are_ignored() {
    let links = [
        "WAYBILL_SERVICE_HOST",
        "WAYBILL_SERVICE_PORT",
        "WAYBILL_SERVICE_PORT_HTTP",
        "WAYBILL_PORT",
        "WAYBILL_PORT_8080_TCP",
        "WAYBILL_PORT_8080_TCP_PROTO",
        "WAYBILL_PORT_8080_TCP_PORT",
        "WAYBILL_PORT_8080_TCP_ADDR",
        "WAYBILL_SCHEDULER_SERVICE_HOST",
    ];
    for name in links {
        let applied = applied(&[(name, "tcp://10.0.0.1:8080")]);
        assert_eq!(applied.unwrap(), Config::default(), "{name}");
    }
    applied(&[("WAYBILL_PORT", "8080")]).expect_err("a setting of the operator");
}

#[test]
fn no_setting_looks_like_a_variable_of_kubernetes() {
    for variable in variables::<Config>().into_values() {
        // The value fits no key: if the variable were taken for one of Kubernetes, it would have no
        // effect.
        let applied = applied(&[(&variable, "tcp://a:1")]);
        assert_ne!(applied.ok(), Some(Config::default()), "{variable}");
    }
}

fn applied(environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    environment
        .iter()
        .copied()
        .collect::<Environment>()
        .apply(Config::default())
}

#[test]
fn the_mode_of_every_secret_file_is_checked_and_the_warning_names_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let path = directory.path().join(name);
        fs::write(&path, "secret\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let yaml = format!(
        "kafka: {{ properties: {{ security.protocol: SSL }}, propertyFiles: {{ ssl.key.password: {} }} }}\n\
         store: {{ scylla: {{ nodes: ['127.0.0.1:1'], user: u, passwordFile: {}, tls: true, certFile: {}, keyFile: {} }} }}\n\
         alerts: {{ receivers: {{ mail: {{ email: {{ smtp: {{ host: h, user: u, passwordFile: {}, from: a@b.c }}, to: [d@e.f] }} }} }} }}\n",
        at("kafka"),
        at("scylla"),
        at("certificate"),
        at("key"),
        at("mail")
    );
    let config: Config = parse_over_defaults("waybill.yaml", &yaml).unwrap();
    let config = config.finish().unwrap();
    let found = config
        .secret_files
        .iter()
        .map(|(key, path)| (key, path.file_name().unwrap().to_str().unwrap()));
    let expected = [
        ("kafka.properties.ssl.key.password", "kafka"),
        ("store.scylla.keyFile", "key"),
        ("store.scylla.password", "scylla"),
        ("alerts.receivers.mail.email.smtp.password", "mail"),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn variables_come_from_the_file_and_the_environment() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "variables:\n  paymentsUrl: https://a.example\n  region: eu\n";
    std::fs::write(file.path(), text).unwrap();
    let environment = [
        ("WAYBILL_VARIABLES__PAYMENTS_URL", "https://b.example"),
        ("WAYBILL_VARIABLES__LIMIT", "0123"),
    ];
    let environment = environment.into_iter().collect();
    let config = Config::load(Some(file.path()), &environment).unwrap();
    let found: Vec<_> = config.variables.iter().collect();
    let text = |(name, value): (&'static str, &'static str)| (name.to_owned(), value.to_owned());
    let expected = [
        ("limit", "0123"),
        ("paymentsUrl", "https://b.example"),
        ("region", "eu"),
    ]
    .map(text);
    assert!(
        found
            .into_iter()
            .eq(expected.iter().map(|(name, value)| (name, value)))
    );
}
