//! Scenarios: the offered load, its mix, and the required results. `docs/loadtest.md` documents the
//! file format.
//!
//! What must hold: an accepted file can be run. An invalid one is refused with its name and the
//! field.

pub mod draw;
pub mod file;
pub mod kind;
pub mod limits;
pub mod schedule;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use waybill_units::DurationText;

use self::draw::Deck;
use self::kind::Kind;
use self::limits::{Limits, Strain};
use self::schedule::Schedule;

/// The offered load and the required results.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// The name: the file's name without its extension.
    #[serde(skip)]
    pub name: String,
    /// The purpose, for people.
    pub description: String,
    /// The transport of requests.
    #[serde(default)]
    pub transport: Transport,
    /// The number of connections.
    #[serde(default = "connections")]
    pub connections: usize,
    /// The number of requests in a batch, with [`Transport::Batch`].
    #[serde(default = "batch")]
    pub batch: usize,
    /// The seed with which requests are drawn.
    #[serde(default)]
    pub seed: u64,
    /// The offered load, in consecutive phases.
    pub phases: Vec<Phase>,
    /// How long to wait for operations to end after the last intended time; with 0, only acceptance
    /// is measured.
    #[serde(default = "drain", with = "DurationText")]
    pub drain: Duration,
    /// The kinds of requests, with their weights.
    #[serde(default = "mix")]
    pub mix: BTreeMap<Kind, f64>,
    /// The tenants, with their weights; empty if requests have none.
    #[serde(default)]
    pub tenants: BTreeMap<String, f64>,
    /// Undecodable records per second, sent straight to the topic of requests.
    #[serde(default)]
    pub garbage_rate: f64,
    /// The faults of services during the run, by service.
    #[serde(default)]
    pub faults: BTreeMap<String, Faults>,
    /// The state in which requests must end.
    #[serde(default)]
    pub expect: Expect,
    /// The limits that fail the run.
    #[serde(default)]
    pub limits: Limits,
    /// The limits above which a rate counts as too high. The report names the highest rate within
    /// them.
    #[serde(default)]
    pub breaking_point: Option<Strain>,
}

/// A part of a scenario.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// The name.
    pub name: String,
    /// Requests per second at the beginning.
    pub rate: f64,
    /// Requests per second at the end, if different.
    #[serde(default)]
    pub rate_end: Option<f64>,
    /// The length.
    #[serde(rename = "for", with = "DurationText")]
    pub length: Duration,
    /// Tenants with their weights, instead of the scenario's.
    #[serde(default)]
    pub tenants: Option<BTreeMap<String, f64>>,
}

/// How requests are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One HTTP/1.1 request per delivery.
    #[default]
    Single,
    /// One HTTP/2 request per delivery, many at a time on each connection.
    Http2,
    /// NDJSON batches.
    Batch,
    /// Records written directly to the topic of requests; acknowledged records count as accepted.
    Topic,
}

/// How requests must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expect {
    /// Each request as its kind requires.
    #[default]
    Kind,
    /// In any final state, or parked.
    Final,
}

/// Faults of one service, as in `PUT /faults/NAME`. Omitted ones stay as configured.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the services' documentation says it")]
pub struct Faults {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hang_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub do_then_timeout_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuse_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_refuse_rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<u64>,
}

/// The services that may have faults.
const SERVICES: [&str; 5] = ["account", "package", "third-party", "drone", "delivery"];

const fn connections() -> usize {
    64
}

const fn batch() -> usize {
    100
}

const fn drain() -> Duration {
    Duration::from_secs(60)
}

/// Four of five deliveries are by drone, one is remote.
fn mix() -> BTreeMap<Kind, f64> {
    BTreeMap::from([(Kind::Drone, 4.0), (Kind::Remote, 1.0)])
}

impl Scenario {
    /// One phase of deliveries that must all end as `Processed`.
    pub fn ad_hoc(name: &str, rate: f64, length: Duration) -> Self {
        Self {
            name: name.to_owned(),
            description: "one phase".to_owned(),
            transport: Transport::Single,
            connections: connections(),
            batch: batch(),
            seed: 0,
            phases: vec![Phase {
                name: name.to_owned(),
                rate,
                rate_end: None,
                length,
                tenants: None,
            }],
            drain: drain(),
            mix: mix(),
            tenants: BTreeMap::new(),
            garbage_rate: 0.0,
            faults: BTreeMap::new(),
            expect: Expect::Kind,
            limits: Limits {
                refused: Some(0),
                ..Limits::default()
            },
            breaking_point: None,
        }
    }

    /// The intended times of its requests.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(&self.phases)
    }

    /// The source of its requests.
    pub fn deck(&self) -> Deck {
        Deck::new(self.seed, &self.mix, &self.tenants, &self.phases)
    }

    /// Sets the first phase's rate, and scales the other phases by the same factor.
    pub fn set_rate(&mut self, rate: f64) {
        // A ramp may begin at 0. Then the rate at its end counts.
        let first = &self.phases[0];
        let before = if first.rate > 0.0 {
            first.rate
        } else {
            first.rate_end()
        };
        for phase in &mut self.phases {
            phase.rate *= rate / before;
            phase.rate_end = phase.rate_end.map(|end| end * rate / before);
        }
    }

    /// Scales all phases to this total length.
    pub fn set_seconds(&mut self, seconds: f64) {
        let before: f64 = self
            .phases
            .iter()
            .map(|phase| phase.length.as_secs_f64())
            .sum();
        for phase in &mut self.phases {
            phase.length = phase.length.mul_f64(seconds / before);
        }
    }

    /// Scales all phases to the length of this many requests.
    pub fn set_count(&mut self, count: u64) {
        let of = |phase: &Phase| phase.length.as_secs_f64() * (phase.rate + phase.rate_end()) / 2.0;
        let before: f64 = self.phases.iter().map(of).sum();
        let seconds: f64 = self
            .phases
            .iter()
            .map(|phase| phase.length.as_secs_f64())
            .sum();
        self.set_seconds(seconds * count as f64 / before);
    }

    /// Checks that the scenario can be run.
    ///
    /// # Errors
    ///
    /// The first error, with the name of the field.
    pub fn check(&self) -> Result<(), String> {
        above_zero("connections", self.connections as f64)?;
        above_zero("batch", self.batch as f64)?;
        if self.phases.is_empty() {
            return Err("phases must not be empty".to_owned());
        }
        for (number, phase) in self.phases.iter().enumerate() {
            phase.check(&format!("phases[{number}]"))?;
        }
        weights("mix", self.mix.values())?;
        if !self.tenants.is_empty() {
            weights("tenants", self.tenants.values())?;
        }
        not_below_zero("garbageRate", self.garbage_rate)?;
        for (name, faults) in &self.faults {
            if !SERVICES.contains(&name.as_str()) {
                let known = SERVICES.join(", ");
                return Err(format!(
                    "faults.{name} is not a service; the services are {known}"
                ));
            }
            faults.check(&format!("faults.{name}"))?;
        }
        let mut drawn = self.mix.iter().filter(|(_, weight)| **weight > 0.0);
        if self.transport == Transport::Topic
            && let Some((kind, _)) = drawn.find(|(kind, _)| kind.needs_answer())
        {
            let kind = kind.as_str();
            return Err(format!(
                "mix.{kind} needs a response: the transport must not be topic"
            ));
        }
        if self.drain.is_zero() && (self.garbage_rate > 0.0 || self.breaking_point.is_some()) {
            return Err(
                "drain must be above 0, because the scenario needs the results of requests"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl Phase {
    /// Requests per second at the end.
    pub fn rate_end(&self) -> f64 {
        self.rate_end.unwrap_or(self.rate)
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        let mean = (self.rate + self.rate_end()) / 2.0;
        (self.length.as_secs_f64() * mean).round() as u64
    }

    fn check(&self, at: &str) -> Result<(), String> {
        match self.rate_end {
            None => above_zero(&format!("{at}.rate"), self.rate)?,
            Some(end) => {
                not_below_zero(&format!("{at}.rate"), self.rate)?;
                not_below_zero(&format!("{at}.rateEnd"), end)?;
                above_zero(&format!("{at}.rateEnd or rate"), self.rate + end)?;
            }
        }
        above_zero(&format!("{at}.for"), self.length.as_secs_f64())?;
        match &self.tenants {
            Some(tenants) => weights(&format!("{at}.tenants"), tenants.values()),
            None => Ok(()),
        }
    }
}

impl Faults {
    fn check(&self, at: &str) -> Result<(), String> {
        for (name, rate) in [
            ("errorRate", self.error_rate),
            ("hangRate", self.hang_rate),
            ("doThenTimeoutRate", self.do_then_timeout_rate),
            ("refuseRate", self.refuse_rate),
            ("undoRefuseRate", self.undo_refuse_rate),
        ] {
            if let Some(rate) = rate.filter(|rate| !(0.0..=1.0).contains(rate)) {
                return Err(format!("{at}.{name} must be from 0 to 1, not {rate}"));
            }
        }
        Ok(())
    }
}

impl Transport {
    /// Its name in files, flags and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Http2 => "http2",
            Self::Batch => "batch",
            Self::Topic => "topic",
        }
    }
}

fn above_zero(field: &str, number: f64) -> Result<(), String> {
    if number.is_finite() && number > 0.0 {
        return Ok(());
    }
    Err(format!("{field} must be above 0, not {number}"))
}

fn not_below_zero(field: &str, number: f64) -> Result<(), String> {
    if number.is_finite() && number >= 0.0 {
        return Ok(());
    }
    Err(format!("{field} must not be below 0, but is {number}"))
}

fn weights<'a>(field: &str, weights: impl Iterator<Item = &'a f64>) -> Result<(), String> {
    let mut sum = 0.0;
    for weight in weights {
        not_below_zero(field, *weight)?;
        sum += weight;
    }
    above_zero(&format!("the sum of {field}"), sum)
}
