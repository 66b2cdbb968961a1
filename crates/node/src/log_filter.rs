//! The filter of the log, and the targets that it may name.

use std::str::FromStr;

use tracing_subscriber::filter::{ParseError, Targets};

/// The targets of log lines: the crates that write log lines, and librdkafka.
const WRITERS: [&str; 26] = [
    "waybill",
    "waybill_agent",
    "waybill_alerts",
    "waybill_broker",
    "waybill_clock",
    "waybill_config",
    "waybill_connections",
    "waybill_disk",
    "waybill_drone_delivery",
    "waybill_http",
    "waybill_ingestion",
    "waybill_kafka",
    "waybill_node",
    "waybill_ops",
    "waybill_registry",
    "waybill_scheduler",
    "waybill_scheduler_core",
    "waybill_store",
    "waybill_supervisor",
    "waybill_telemetry",
    "waybill_tls",
    "waybill_topology",
    "librdkafka",
    "scylla",
    "hyper_util",
    "h2",
];

/// The modules of the program's own crate. Roles and operator commands log with other crates'
/// names.
const PROGRAM_MODULES: [&str; 4] = ["catalogue", "cli", "program", "roles"];

/// Why a log filter is invalid.
#[derive(Debug, thiserror::Error)]
pub enum LogFilterError {
    /// A word is not a level.
    #[error(
        "{0:?} is neither a level (error, warn, info, debug, trace, off) nor a pair such as \
         waybill=debug"
    )]
    Word(String),
    /// The target of a pair never writes log lines.
    #[error(
        "no log line has the target {0:?}; the targets are {them}, and their modules, such as waybill_scheduler_core::scheduler_loop",
        them = WRITERS.join(", ")
    )]
    Target(String),
    /// A pair is malformed.
    #[error(transparent)]
    Pair(#[from] ParseError),
}

/// A log filter: levels, or `target=level` pairs, separated by commas.
#[derive(Clone, Debug)]
pub struct LogFilter {
    pub(crate) text: String,
    pub(crate) targets: Targets,
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    /// `Targets` alone accepts any word as a target. A misspelt level would then log everything,
    /// and a misspelt target would never write a line.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = text
            .split(',')
            .find(|part| !part.contains('=') && !is_level(part));
        if let Some(word) = word {
            return Err(LogFilterError::Word(word.to_owned()));
        }
        let targets: Targets = text.parse()?;
        let mut named = targets.iter().map(|(target, _)| target);
        if let Some(nobody) = named.find(|target| !writes(target)) {
            return Err(LogFilterError::Target(nobody.to_owned()));
        }
        Ok(Self {
            text: text.to_owned(),
            targets,
        })
    }
}

/// Whether a target writes lines, or is a module of one that does.
fn writes(target: &str) -> bool {
    let mut names = target.split("::");
    let name = names.next().unwrap_or_default();
    let module = names.next().filter(|_| name == "waybill");
    WRITERS.contains(&name) && module.is_none_or(|module| PROGRAM_MODULES.contains(&module))
}

fn is_level(word: &str) -> bool {
    ["error", "warn", "info", "debug", "trace", "off"]
        .iter()
        .any(|level| word.eq_ignore_ascii_case(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_pairs_of_target_and_level() {
        for good in [
            "info",
            "warn,waybill=debug",
            "waybill_scheduler=trace",
            "waybill::program=info",
            "waybill::roles::life=debug",
            "off",
            "INFO,waybill=debug",
            "info,librdkafka=debug,waybill_kafka::admin=trace",
        ] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in [
            "waybill=loud",
            "info,,=,",
            "bananas",
            "info,bananas",
            "info, debug",
            "",
            "inf",
        ] {
            assert!(bad.parse::<LogFilter>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_log_target_without_lines_is_refused_with_the_valid_targets() {
        for (filter, nobody) in [
            ("waybil_kafka=debug", "waybil_kafka"),
            ("info,waybil::scheduler=debug", "waybil::scheduler"),
            ("waybill=debug,kafka=trace", "kafka"),
            ("info,waybill::scheduler=debug", "waybill::scheduler"),
        ] {
            let refused = filter.parse::<LogFilter>().unwrap_err().to_string();
            for part in [&format!("{nobody:?}"), "librdkafka", "waybill_scheduler"] {
                assert!(refused.contains(part), "{part}: {refused}");
            }
        }
    }

    #[test]
    fn the_modules_of_the_program_are_known() {
        let program = include_str!("../../waybill/src/lib.rs");
        let named = program.lines().filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        assert_eq!(named.collect::<Vec<_>>(), PROGRAM_MODULES);
    }

    #[test]
    fn every_source_of_log_lines_can_be_named() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
        let mut writers = 0;
        for member in std::fs::read_dir(crates).unwrap() {
            let member = member.unwrap();
            if read(&member.path().join("Cargo.toml")).contains("\ntracing = ") {
                writers += 1;
                let directory = member.file_name().into_string().unwrap();
                let name = format!("waybill_{}", directory.replace('-', "_"));
                let is_known = directory == "waybill" || WRITERS.contains(&name.as_str());
                assert!(is_known, "{name} writes lines");
            }
        }
        let ours = WRITERS.iter().filter(|name| name.starts_with("waybill"));
        assert_eq!(writers, ours.count());
        let locked = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock").as_ref());
        for name in WRITERS.iter().filter(|name| **name != "librdkafka") {
            let package = format!("name = \"{}\"\n", name.replace('_', "-"));
            let mut named = locked
                .split("[[package]]")
                .filter(|it| it.contains(&package));
            let can_write = named.any(|package| package.contains(" \"tracing\",\n"));
            assert!(can_write, "{name} writes no lines any more");
        }
    }
}
