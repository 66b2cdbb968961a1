//! YAML files, and refusals that say where and what instead.

mod place;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};
use waybill_telemetry::visible::on_one_line;

use self::place::{key_at, key_before, keys_above};
use super::environment::key_paths;
use super::words::in_our_words;
use super::{Config, did_you_mean};

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not the YAML that is expected.
    #[error("{path}{}: {problem}", place(.position))]
    Wrong {
        /// The file, or what stands for it.
        path: String,
        /// Line and column from 1, where they are known.
        position: Option<(u64, u64)>,
        /// What is wrong there.
        problem: String,
    },
}

/// Reads a configuration file over the defaults.
pub(super) fn read(path: &Path) -> Result<Config, FileError> {
    let name = path.display().to_string();
    parse_config(&name, &read_text(path)?)
}

/// Reads a file that holds any other YAML document.
pub fn read_document<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    parse(&path.display().to_string(), &read_text(path)?)
}

/// Reads a whole file.
pub(super) fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.display().to_string(),
        source,
    })
}

/// Reads a configuration over the defaults. A file of nothing but comments changes none.
pub(super) fn parse_config(name: &str, text: &str) -> Result<Config, FileError> {
    if text
        .lines()
        .all(|line| line.trim_start().is_empty() || line.trim_start().starts_with('#'))
    {
        return Ok(Config::default());
    }
    serde_saphyr::from_str(text).map_err(|error| refusal(name, text, &error, &key_paths()))
}

/// Reads any other YAML document.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, FileError> {
    serde_saphyr::from_str(text).map_err(|error| refusal(name, text, &error, &[]))
}

/// The parser's error in our words. `key_paths` are those of the whole document, for a key that
/// is right but in the wrong section. Of the line itself only a key is quoted: it may hold a secret.
fn refusal(name: &str, text: &str, error: &Error, key_paths: &[String]) -> FileError {
    let mut error = error;
    while let Error::WithSnippet { error: inner, .. } | Error::AliasError { error: inner, .. } =
        error
    {
        error = inner;
    }
    let position = error
        .location()
        .map(|location| (location.line(), location.column()));
    // Before what is wrong with a value, its key.
    let of_key = |message: &str| {
        let key = position.and_then(|position| {
            // The place of a value that is wrong may be that of its key; other faults are of what begins there.
            let at = || key_at(text, position).filter(|_| message.starts_with("invalid value"));
            key_before(text, position).or_else(at)
        });
        let said = on_one_line(in_our_words(message));
        match key {
            Some(key) => format!("{key}: {said}"),
            None => said,
        }
    };
    let problem = match error {
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            let mut above = position.map_or_else(Vec::new, |position| keys_above(text, position));
            let mut whole = |key: &str| {
                above.push(key.to_owned());
                let path = above.join(".");
                above.pop();
                path
            };
            let near = nearest(field, expected.iter().copied()).map(&mut whole);
            let near = near.or_else(|| paths_that_end_in(field, key_paths));
            format!(
                "the key {} is not known{}",
                whole(field),
                did_you_mean(near.as_deref())
            )
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => of_key(&format!("{variant} is none of {}", expected.join(", "))),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key {key} stands twice"),
        other => of_key(&UserMessageFormatter.format_message(other)),
    };
    FileError::Wrong {
        path: name.to_owned(),
        position,
        problem,
    }
}

/// The candidate that is most like `wanted`, if one is at all.
fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LIKENESS_MIN: f64 = 0.7;
    let wanted = wanted.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::jaro_winkler(&wanted, &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

fn paths_that_end_in(key: &str, key_paths: &[String]) -> Option<String> {
    let ending = format!(".{}", key.to_ascii_lowercase());
    let paths: Vec<&str> = key_paths
        .iter()
        .filter(|path| path.to_ascii_lowercase().ends_with(&ending))
        .map(String::as_str)
        .collect();
    (!paths.is_empty()).then(|| paths.join(" or "))
}

fn place(position: &Option<(u64, u64)>) -> String {
    position
        .map(|(line, column)| format!(":{line}:{column}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_file_say_line_and_column_and_what_instead() {
        let cases = [
            (
                "partions: 4\n",
                "w.yaml:1:1: the key partions is not known; did you mean partitions?",
            ),
            (
                "partitions: 4\nscheduler:\n  # the lease\n  leese: 10s\n",
                "w.yaml:4:3: the key scheduler.leese is not known; did you mean scheduler.lease?",
            ),
            (
                "http:\n  handOffAfter: 5s\n",
                "w.yaml:2:3: the key http.handOffAfter is not known; did you mean \
                 scheduler.handOffAfter?",
            ),
            ("zebra: 1\n", "w.yaml:1:1: the key zebra is not known"),
            (
                "http:\n  listen: 127.0.0.1:1\n  tls:\n    certfile: a.pem\n",
                "w.yaml:4:5: the key http.tls.certfile is not known; did you mean http.tls.certFile?",
            ),
            (
                "http: {hosts: [a, 'b{'], tls: {certfile: a.pem}}\n",
                "w.yaml:1:32: the key http.tls.certfile is not known; did you mean http.tls.certFile?",
            ),
            (
                "partitions: 4\npartitions: 5\n",
                "w.yaml:2:1: the key partitions stands twice",
            ),
            (
                "telemetry:\n  logFormat: xml\n",
                "w.yaml:2:14: logFormat: xml is none of text, json",
            ),
            (
                "scheduler:\n  lease: 9s\n  handOffAfter: \"5\" # so\n",
                "w.yaml:3:3: handOffAfter: invalid value: string \"5\", expected a duration with its unit, such as \
                 200ms, 5s, 2m, 1h or 7d",
            ),
            (
                "scheduler: {handOffAfter: 5}\n",
                "w.yaml:1:13: handOffAfter: invalid value: string \"5\", expected a duration with its unit, such as \
                 200ms, 5s, 2m, 1h or 7d",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(
                parse_config("w.yaml", text).unwrap_err().to_string(),
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
                "inFlightMax: must be a whole number",
            ),
            ("partitions: [1]\n", 1, ""),
            (
                "http:\n  listen: localhost:8080\n",
                2,
                "listen: must be an IP address and a port, such as 127.0.0.1:8080; names are not taken",
            ),
            (
                "admin:\n  listen: 8081\n",
                2,
                "listen: must be an IP address and a port",
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
                "perSecond: must be a whole number, and not so large",
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
                "perSecond: must be a whole number of at least 1",
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
                "builtIn: must be true or false",
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
            match parse_config("w.yaml", text) {
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
                parse_config("w.yaml", text).unwrap(),
                Config::default(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn plain_numbers_are_fine_where_text_is_expected() {
        let text = "kafka:\n  topicPrefix: 007\n  properties:\n    socket.timeout.ms: 5000\n";
        let config = parse_config("w.yaml", text).unwrap();
        assert_eq!(config.kafka.topic_prefix, "007");
        let properties: Vec<_> = config.kafka.properties.iter().collect();
        assert_eq!(properties, [("socket.timeout.ms", "5000")]);
    }

    #[test]
    fn a_refusal_quotes_no_line_of_the_file() {
        let text =
            "kafka:\n  properties:\n    sasl.password: hunter2\n    sasl.password: hunter2\n";
        let error = parse_config("w.yaml", text).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }
}
