//! Scenario files, and the built-in scenarios.

use std::path::Path;

use anyhow::Context as _;
use serde_saphyr::{Error, MessageFormatter as _, UserMessageFormatter};

use super::Scenario;

/// The built-in scenarios, by name.
pub const BUILT_IN: [(&str, &str); 10] = [
    ("smoke", include_str!("../../scenarios/smoke.yaml")),
    ("steady", include_str!("../../scenarios/steady.yaml")),
    ("spike", include_str!("../../scenarios/spike.yaml")),
    ("ramp", include_str!("../../scenarios/ramp.yaml")),
    ("soak", include_str!("../../scenarios/soak.yaml")),
    ("attacked", include_str!("../../scenarios/attacked.yaml")),
    ("poison", include_str!("../../scenarios/poison.yaml")),
    (
        "slow-service",
        include_str!("../../scenarios/slow-service.yaml"),
    ),
    (
        "flaky-services",
        include_str!("../../scenarios/flaky-services.yaml"),
    ),
    (
        "noisy-tenant",
        include_str!("../../scenarios/noisy-tenant.yaml"),
    ),
];

/// A scenario by name: a built-in one, or a file.
///
/// # Errors
///
/// If the scenario does not exist or is invalid; the error names the file and the field.
pub fn named(name: &str) -> anyhow::Result<Scenario> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
        return parse(name, &format!("scenario {name}"), text);
    }
    let path = Path::new(name);
    let text = std::fs::read_to_string(path).with_context(|| {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        format!(
            "{name} is neither a readable file nor one of {}",
            known.join(", ")
        )
    })?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&stem, name, &text)
}

/// Parses a scenario. `from` names the file in errors.
fn parse(name: &str, from: &str, text: &str) -> anyhow::Result<Scenario> {
    let mut scenario: Scenario =
        serde_saphyr::from_str(text).map_err(|error| refusal(from, &error))?;
    name.clone_into(&mut scenario.name);
    scenario
        .check()
        .map_err(|error| anyhow::anyhow!("{from}: {error}"))?;
    Ok(scenario)
}

/// The parser's error on one line, with the position in the file.
fn refusal(from: &str, error: &Error) -> anyhow::Error {
    let mut error = error;
    while let Error::WithSnippet { error: inner, .. } | Error::AliasError { error: inner, .. } =
        error
    {
        error = inner;
    }
    let place = error.location().map_or_else(String::new, |location| {
        format!("{}:{}:", location.line(), location.column())
    });
    let problem = match error {
        Error::SerdeUnknownField {
            field, expected, ..
        } => format!("unknown key {field}; the keys are {}", expected.join(", ")),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => format!("{variant} is not one of {}", expected.join(", ")),
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    anyhow::anyhow!("{from}:{place} {}", problem.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::kind::Kind;
    use crate::scenario::{Expect, Transport};

    #[test]
    fn every_built_in_scenario_can_be_run() {
        for (name, _) in BUILT_IN {
            let scenario = named(name).unwrap();
            assert_eq!(scenario.name, name);
            assert!(scenario.schedule().count() > 0, "{name}");
        }
    }

    #[test]
    fn the_spike_has_the_documented_rates() {
        let spike = named("spike").unwrap();
        let highest = spike.phases.iter().max_by(|a, b| a.rate.total_cmp(&b.rate));
        let highest = highest.expect("it has phases");
        assert_eq!(
            (highest.rate, highest.length),
            (50_000.0, Duration::from_secs(10))
        );
        assert_eq!(spike.limits.refused, Some(0));
    }

    const WHOLE: &str = "
description: all keys
transport: http2
connections: 3
batch: 7
seed: 9
phases:
  - {name: up, rate: 1, rateEnd: 5, for: 2s}
  - {name: flat, rate: 5, for: 500ms, tenants: {a: 1}}
drain: 1m
mix: {drone: 1, malformed: 0.5}
tenants: {a: 1, b: 2}
garbageRate: 3
faults: {drone: {errorRate: 0.5, latencyMs: 20}}
expect: final
limits: {acceptanceP50: 5ms, acceptanceP99: 50ms, endToEndP50: 10ms, endToEndP99: 1s, refused: 0}
breakingPoint: {acceptanceP99: 100ms, lag: 2s}
";

    #[test]
    fn a_file_may_have_every_key() {
        let scenario = parse("whole", "whole.yaml", WHOLE).unwrap();
        assert_eq!(scenario.transport, Transport::Http2);
        assert_eq!(
            (scenario.connections, scenario.batch, scenario.seed),
            (3, 7, 9)
        );
        assert_eq!(scenario.phases[0].rate_end, Some(5.0));
        assert_eq!(scenario.phases[1].length, Duration::from_millis(500));
        assert_eq!(scenario.drain, Duration::from_secs(60));
        assert_eq!(scenario.mix[&Kind::Malformed], 0.5);
        assert_eq!(scenario.faults["drone"].latency_ms, Some(20));
        assert_eq!(scenario.expect, Expect::Final);
        assert_eq!(scenario.limits.refused, Some(0));
        assert!(scenario.breaking_point.is_some());
    }

    #[test]
    fn invalid_scenarios_are_refused_with_file_and_field() {
        for (from, to, field) in [
            ("rate: 5,", "rate: 0,", "phases[1].rate must be above 0"),
            ("for: 2s", "for: 2", "a duration with its unit"),
            ("rate: 5,", "rate: 5, burst: 1,", "burst"),
            ("transport: http2", "transport: pigeon", "pigeon"),
            (
                "{drone: 1, malformed",
                "{zeppelin: 1, malformed",
                "zeppelin",
            ),
            (
                "{drone: 1, malformed: 0.5}",
                "{drone: 0}",
                "mix must be above 0",
            ),
            (
                "{drone: {error",
                "{weather: {error",
                "faults.weather is not a service",
            ),
            (
                "errorRate: 0.5",
                "errorRate: 5",
                "faults.drone.errorRate must be from 0 to 1",
            ),
            ("errorRate", "errorrate", "errorrate"),
            (
                "transport: http2",
                "transport: topic",
                "mix.malformed needs a response",
            ),
            ("drain: 1m", "drain: 0s", "drain must be above 0"),
            ("seed: 9", "sed: 9", "sed"),
            (
                "connections: 3",
                "connections: 0",
                "connections must be above 0",
            ),
            (
                "{a: 1, b: 2}",
                "{a: -1, b: 2}",
                "tenants must not be below 0",
            ),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            let text = WHOLE.replacen(from, to, 1);
            let refused = parse("whole", "whole.yaml", &text).unwrap_err().to_string();
            assert!(refused.starts_with("whole.yaml:"), "{refused}");
            assert!(refused.contains(field), "{to}: {refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn an_unknown_scenario_is_refused_with_the_known_ones() {
        let refused = format!("{:#}", named("smok").unwrap_err());
        assert!(refused.contains("one of smoke, steady"), "{refused}");
    }

    #[test]
    fn flags_scale_all_phases_alike() {
        let mut scenario = parse("whole", "whole.yaml", WHOLE).unwrap();
        scenario.set_rate(10.0);
        assert_eq!(scenario.phases[0].rate_end, Some(50.0));
        assert_eq!(scenario.phases[1].rate, 50.0);
        scenario.set_seconds(5.0);
        assert_eq!(scenario.phases[0].length, Duration::from_secs(4));
        scenario.set_count(340);
        assert_eq!(scenario.schedule().count(), 340);
    }
}
