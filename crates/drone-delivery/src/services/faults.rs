//! Faults: failure rates and latencies of the services.

use std::hash::{BuildHasher, RandomState};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::key::mix;
use super::{Service, StartError};
use crate::field::{FieldError, pointer_to, shown};

/// The maximum latency or jitter, in milliseconds.
pub const DELAY_MS_MAX: u64 = 60_000;

/// The faults of one service. Rates are shares of requests, from 0 to 1. They are drawn in the
/// order error, hang, refuse, do-then-time-out, and the first hit decides. Except for the two
/// refusals they apply to forward actions, undos and probes alike.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Faults {
    /// Answers 503, without effect.
    #[schemars(range(min = 0, max = 1))]
    pub error_rate: f64,
    /// Never answers, without effect.
    #[schemars(range(min = 0, max = 1))]
    pub hang_rate: f64,
    /// Performs the request and then never answers.
    #[schemars(range(min = 0, max = 1))]
    pub do_then_timeout_rate: f64,
    /// Refuses forward actions permanently and without effect, and probes of these. The same keys
    /// are refused while the rate stays. Undos are never refused.
    #[schemars(range(min = 0, max = 1))]
    pub refuse_rate: f64,
    /// Refuses undos permanently; their effects remain. The same keys are refused while the rate
    /// stays. These keys are independent of those of `refuseRate`.
    #[schemars(range(min = 0, max = 1))]
    pub undo_refuse_rate: f64,
    /// The minimum duration of every response, in milliseconds.
    #[schemars(range(max = 60_000))]
    pub latency_ms: u64,
    /// The maximum additional duration, evenly distributed, in milliseconds.
    #[schemars(range(max = 60_000))]
    pub jitter_ms: u64,
}

impl Faults {
    /// These faults with the fields in `change` replaced.
    ///
    /// # Errors
    ///
    /// Every field that is unknown or out of range. Then nothing changes.
    pub fn changed(mut self, change: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        for (name, value) in change {
            let changed = match name.as_str() {
                "errorRate" => set_rate(&mut self.error_rate, value),
                "hangRate" => set_rate(&mut self.hang_rate, value),
                "doThenTimeoutRate" => set_rate(&mut self.do_then_timeout_rate, value),
                "refuseRate" => set_rate(&mut self.refuse_rate, value),
                "undoRefuseRate" => set_rate(&mut self.undo_refuse_rate, value),
                "latencyMs" => set_delay(&mut self.latency_ms, value),
                "jitterMs" => set_delay(&mut self.jitter_ms, value),
                _ => Err(
                    "is unknown; the fields are errorRate, hangRate, doThenTimeoutRate, \
                     refuseRate, undoRefuseRate, latencyMs, jitterMs"
                        .to_owned(),
                ),
            };
            if let Err(detail) = changed {
                errors.push(FieldError::new(pointer_to("", name), detail));
            }
        }
        if errors.is_empty() {
            Ok(self)
        } else {
            Err(errors)
        }
    }

    /// The fields that are out of range.
    fn wrong_fields(&self) -> Vec<FieldError> {
        let rates = [
            ("errorRate", self.error_rate),
            ("hangRate", self.hang_rate),
            ("doThenTimeoutRate", self.do_then_timeout_rate),
            ("refuseRate", self.refuse_rate),
            ("undoRefuseRate", self.undo_refuse_rate),
        ];
        let delays = [("latencyMs", self.latency_ms), ("jitterMs", self.jitter_ms)];
        let rates = rates
            .into_iter()
            .filter(|(_, rate)| !(0.0..=1.0).contains(rate))
            .map(|(name, rate)| FieldError::new(pointer_to("", name), not_a_rate(&rate)));
        let delays = delays
            .into_iter()
            .filter(|(_, delay)| *delay > DELAY_MS_MAX)
            .map(|(name, delay)| FieldError::new(pointer_to("", name), not_a_delay(&delay)));
        rates.chain(delays).collect()
    }
}

fn set_rate(rate: &mut f64, value: &Value) -> Result<(), String> {
    match value.as_f64() {
        Some(number) if (0.0..=1.0).contains(&number) => {
            *rate = number;
            Ok(())
        }
        _ => Err(not_a_rate(&shown(value))),
    }
}

fn set_delay(delay: &mut u64, value: &Value) -> Result<(), String> {
    match value.as_u64() {
        Some(number @ 0..=DELAY_MS_MAX) => {
            *delay = number;
            Ok(())
        }
        _ => Err(not_a_delay(&shown(value))),
    }
}

fn not_a_rate(found: &dyn std::fmt::Display) -> String {
    format!("must be a number from 0 to 1, not {found}")
}

fn not_a_delay(found: &dyn std::fmt::Display) -> String {
    format!("must be a whole number of milliseconds from 0 to {DELAY_MS_MAX}, not {found}")
}

/// The faults of all services.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct FaultsByService {
    /// Of the service that checks accounts.
    pub account: Faults,
    /// Of the service that accepts packages.
    pub package: Faults,
    /// Of the service that books third-party transport.
    pub third_party: Faults,
    /// Of the service that assigns drones.
    pub drone: Faults,
    /// Of the service that schedules deliveries.
    pub delivery: Faults,
}

impl FaultsByService {
    /// The faults of one service.
    #[must_use]
    pub const fn of(&self, service: Service) -> &Faults {
        match service {
            Service::Account => &self.account,
            Service::Package => &self.package,
            Service::ThirdParty => &self.third_party,
            Service::Drone => &self.drone,
            Service::Delivery => &self.delivery,
        }
    }

    /// The faults of one service, for a change.
    pub const fn of_mut(&mut self, service: Service) -> &mut Faults {
        match service {
            Service::Account => &mut self.account,
            Service::Package => &mut self.package,
            Service::ThirdParty => &mut self.third_party,
            Service::Drone => &mut self.drone,
            Service::Delivery => &mut self.delivery,
        }
    }
}

/// Which of the two refusal rates applies to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The rate of forward actions. Also for checks, and for probes of forward actions.
    Forward,
    /// The rate of undos.
    Undo,
}

/// The faults that apply to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fate {
    /// The delay before the request.
    pub(super) delay: Duration,
    /// What happens after the delay.
    pub(super) ending: Ending,
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// Performed and answered.
    Answer,
    /// Answered with 503, not performed.
    Error,
    /// Neither performed nor answered.
    Hang,
    /// Performed, not answered.
    DoThenHang,
    /// Refused, unless it was performed before.
    Refuse,
}

impl Fate {
    const FAULTLESS: Self = Self {
        delay: Duration::ZERO,
        ending: Ending::Answer,
    };
}

impl FaultsByService {
    /// Checks the faults of all services.
    ///
    /// # Errors
    ///
    /// [`StartError::Faults`] with the wrong fields of the first service that has any.
    pub fn check(&self) -> Result<(), StartError> {
        for service in Service::ALL {
            let errors = self.of(service).wrong_fields();
            if !errors.is_empty() {
                let service = service.as_str();
                return Err(StartError::Faults { service, errors });
            }
        }
        Ok(())
    }
}

/// The current faults, and the random numbers.
pub(super) struct FaultBoard {
    configured: FaultsByService,
    current: RwLock<FaultsByService>,
    dice: Dice,
}

impl FaultBoard {
    pub(super) fn new(configured: FaultsByService) -> Result<Self, StartError> {
        configured.check()?;
        Ok(Self {
            configured,
            current: RwLock::new(configured),
            dice: Dice::new(),
        })
    }

    pub(super) fn all(&self) -> FaultsByService {
        *self.current.read().expect("no holder of the lock panics")
    }

    /// Changes a service's faults and returns the new ones.
    pub(super) fn change(
        &self,
        service: Service,
        change: &Map<String, Value>,
    ) -> Result<Faults, Vec<FieldError>> {
        let mut current = self.current.write().expect("no holder of the lock panics");
        let changed = current.of(service).changed(change)?;
        *current.of_mut(service) = changed;
        Ok(changed)
    }

    /// Restores the configured faults and returns them.
    pub(super) fn reset(&self, service: Service) -> Faults {
        let configured = *self.configured.of(service);
        let mut current = self.current.write().expect("no holder of the lock panics");
        *current.of_mut(service) = configured;
        configured
    }

    /// Draws the faults of a request. `number` represents the key: it alone decides about random
    /// refusals, so that a repeat is refused again.
    pub(super) fn fate(
        &self,
        service: Service,
        refusal: Refusal,
        number: impl FnOnce() -> u64,
    ) -> Fate {
        let faults = {
            let current = self.current.read().expect("no holder of the lock panics");
            *current.of(service)
        };
        if faults == Faults::default() {
            return Fate::FAULTLESS;
        }
        let number = number();
        let refused = |rate, number: u64| rate > 0.0 && unit(number) < rate;
        let refused = match refusal {
            Refusal::Forward => refused(faults.refuse_rate, number),
            // Uses another number. Otherwise undos would be refused for exactly those keys whose
            // forward actions are refused.
            Refusal::Undo => refused(faults.undo_refuse_rate, mix(number)),
        };
        let ending = if self.dice.hits(faults.error_rate) {
            Ending::Error
        } else if self.dice.hits(faults.hang_rate) {
            Ending::Hang
        } else if refused {
            Ending::Refuse
        } else if self.dice.hits(faults.do_then_timeout_rate) {
            Ending::DoThenHang
        } else {
            Ending::Answer
        };
        let jitter = Duration::from_millis(faults.jitter_ms).mul_f64(self.dice.unit());
        Fate {
            delay: Duration::from_millis(faults.latency_ms) + jitter,
            ending,
        }
    }
}

/// A shared source of random numbers: splitmix64 over a counter.
struct Dice(AtomicU64);

impl Dice {
    fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    fn unit(&self) -> f64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        unit(mix(self.0.fetch_add(STEP, Ordering::Relaxed)))
    }

    fn hits(&self, rate: f64) -> bool {
        rate > 0.0 && self.unit() < rate
    }
}

/// The number's upper 53 bits as a fraction in [0, 1).
#[allow(
    clippy::cast_precision_loss,
    reason = "53 bits fit an f64 without loss"
)]
fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}
