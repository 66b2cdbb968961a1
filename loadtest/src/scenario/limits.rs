//! Limits that fail a run independent of the judge, and the highest rate that holds: pure functions
//! of the measurements.

use std::time::Duration;

use serde::Deserialize;
use waybill_units::{DurationText, optional_duration};

use crate::model::{BreakingPoint, Percentiles, Run, Sample};

/// The limits of a run.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// The median time to acceptance.
    #[serde(deserialize_with = "optional_duration")]
    pub acceptance_p50: Option<Duration>,
    /// The 99th percentile of the time to acceptance.
    #[serde(deserialize_with = "optional_duration")]
    pub acceptance_p99: Option<Duration>,
    /// The median end-to-end time.
    #[serde(deserialize_with = "optional_duration")]
    pub end_to_end_p50: Option<Duration>,
    /// The 99th percentile of the end-to-end time.
    #[serde(deserialize_with = "optional_duration")]
    pub end_to_end_p99: Option<Duration>,
    /// Good requests that were refused or not answered.
    pub refused: Option<u64>,
    /// Total resident memory of the subject's processes, in MiB.
    pub memory_mib: Option<f64>,
}

/// The limits that define a rate as too high.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Strain {
    /// The 99th percentile of the time to acceptance.
    #[serde(with = "DurationText")]
    pub acceptance_p99: Duration,
    /// The open work, as the time in which as much is offered.
    #[serde(with = "DurationText")]
    pub lag: Duration,
}

/// The number of consecutive bad samples that define the break. Fewer are a hiccup.
const BREAKS_AFTER: usize = 3;
/// The minimum share of offered requests that must be accepted.
const ACCEPTED_SHARE_MIN: f64 = 0.99;

impl Limits {
    /// The exceeded limits, as sentences. `refused` counts only good requests.
    pub fn broken(&self, run: &Run, refused: u64) -> Vec<String> {
        let acceptance = run.acceptance_ms.as_ref();
        let end_to_end = run.end_to_end_ms.as_ref();
        let p50 = |of: Option<&Percentiles>| of.map(|of| of.p50);
        let p99 = |of: Option<&Percentiles>| of.map(|of| of.p99);
        let times = [
            ("acceptance p50", self.acceptance_p50, p50(acceptance)),
            ("acceptance p99", self.acceptance_p99, p99(acceptance)),
            ("end to end p50", self.end_to_end_p50, p50(end_to_end)),
            ("end to end p99", self.end_to_end_p99, p99(end_to_end)),
        ];
        let mut broken: Vec<String> = times
            .into_iter()
            .filter_map(|(name, limit, found)| {
                let (limit, found) = (limit?, found?);
                let is_broken = found > limit.as_secs_f64() * 1e3;
                let limit = limit.as_millis();
                is_broken.then(|| format!("{name} is {found:.1} ms, above the limit of {limit} ms"))
            })
            .collect();
        if let Some(limit) = self.memory_mib {
            match run.subject_memory_mib_max() {
                Some(found) if found <= limit => {}
                Some(found) => broken.push(format!(
                    "the subject used {found:.0} MiB of memory, above the limit of {limit:.0} MiB"
                )),
                None => broken.push(format!(
                    "the limit of {limit:.0} MiB of memory was not checked: name the process of \
                     the subject (--process)"
                )),
            }
        }
        if let Some(limit) = self.refused
            && refused > limit
        {
            broken.push(format!(
                "{refused} good requests were refused or not answered, above the limit of {limit}"
            ));
        }
        broken
    }
}

impl Strain {
    /// The highest rate that held before the break.
    ///
    /// A sample holds if 99 % of its offered requests were accepted, their p99 is within the limit,
    /// and the open work is within the lag's limit. Samples that end after the offer, which lasts
    /// `seconds`, are ignored.
    pub fn breaking_point(&self, samples: &[Sample], seconds: f64) -> BreakingPoint {
        let mut found = BreakingPoint {
            rate: 0.0,
            broke_at: None,
            because: None,
        };
        let mut beyond: Vec<(f64, &'static str)> = Vec::new();
        let of_offer = |sample: &&Sample| sample.at_seconds <= seconds + 0.1 && sample.offered > 0;
        for sample in samples.iter().filter(of_offer) {
            let rate = sample.offered as f64 / sample.seconds;
            let Some(because) = self.exceeded(sample, rate) else {
                found.rate = f64::max(found.rate, rate);
                beyond.clear();
                continue;
            };
            beyond.push((rate, because));
            if beyond.len() == BREAKS_AFTER {
                let (rate, because) = beyond[0];
                found.broke_at = Some(rate);
                found.because = Some(because.to_owned());
                break;
            }
        }
        found
    }

    fn exceeded(&self, sample: &Sample, rate: f64) -> Option<&'static str> {
        let late =
            |acceptance: Percentiles| acceptance.p99 > self.acceptance_p99.as_secs_f64() * 1e3;
        if (sample.accepted as f64) < sample.offered as f64 * ACCEPTED_SHARE_MIN {
            Some("fewer than 99 % of the offered requests were accepted in time")
        } else if sample.acceptance_ms.is_some_and(late) {
            Some("acceptance took too long")
        } else if sample.open as f64 > rate * self.lag.as_secs_f64() {
            Some("completion did not keep up with acceptance")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second with these numbers of offered, accepted and finally open requests.
    fn sample(at: u64, offered: u64, accepted: u64, open: u64, p99: f64) -> Sample {
        let ms = Percentiles {
            p50: 1.0,
            p90: 1.0,
            p99,
            p999: p99,
            max: p99,
        };
        Sample {
            at_seconds: at as f64,
            seconds: 1.0,
            offered,
            accepted,
            refused: 0,
            ended: 0,
            open,
            acceptance_ms: Some(ms),
            end_to_end_ms: None,
            cpu_cores: Vec::new(),
            resident_mib: Vec::new(),
        }
    }

    fn strain() -> Strain {
        Strain {
            acceptance_p99: Duration::from_millis(100),
            lag: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_breaking_point_is_the_highest_rate_that_held_before_three_seconds_did_not() {
        for (offered, accepted, open, p99, because) in [
            (400, 390, 0, 1.0, "99 %"),
            (400, 400, 500, 1.0, "did not keep up"),
            (400, 400, 0, 101.0, "too long"),
        ] {
            let good = [100, 200, 300].map(|rate| sample(rate / 100, rate, rate, 10, 5.0));
            let bad = (4..8).map(|at| sample(at, offered, accepted, open, p99));
            let samples: Vec<Sample> = good.into_iter().chain(bad).collect();
            let found = strain().breaking_point(&samples, 8.0);
            assert_eq!((found.rate, found.broke_at), (300.0, Some(400.0)));
            assert!(
                found.because.is_some_and(|why| why.contains(because)),
                "{because}"
            );
        }
    }

    #[test]
    fn a_two_second_hiccup_is_not_the_breaking_point() {
        let samples = [
            sample(1, 100, 100, 0, 1.0),
            sample(2, 200, 100, 0, 1.0),
            sample(3, 300, 100, 0, 1.0),
            sample(4, 400, 500, 0, 1.0),
        ];
        let found = strain().breaking_point(&samples, 4.0);
        assert_eq!((found.rate, found.broke_at), (400.0, None));
    }

    #[test]
    fn samples_after_the_offer_are_ignored() {
        let drain = (2..9).map(|at| sample(at, 0, 0, 1_000, 1.0));
        let samples: Vec<Sample> = std::iter::once(sample(1, 100, 100, 0, 1.0))
            .chain(drain)
            .collect();
        assert_eq!(strain().breaking_point(&samples, 1.0).broke_at, None);
    }

    #[test]
    fn an_exceeded_limit_is_reported_with_both_figures() {
        let limits = Limits {
            acceptance_p99: Some(Duration::from_millis(50)),
            end_to_end_p50: Some(Duration::from_millis(8)),
            refused: Some(0),
            ..Limits::default()
        };
        let mut run = crate::report::testing::run();
        run.acceptance_ms = Some(sample(0, 0, 0, 0, 51.5).acceptance_ms.expect("it has some"));
        assert_eq!(
            limits.broken(&run, 3),
            [
                "acceptance p99 is 51.5 ms, above the limit of 50 ms",
                "3 good requests were refused or not answered, above the limit of 0",
            ]
        );
        run.acceptance_ms = Some(sample(0, 0, 0, 0, 50.0).acceptance_ms.expect("it has some"));
        assert_eq!(limits.broken(&run, 0), [] as [String; 0]);
    }
}
