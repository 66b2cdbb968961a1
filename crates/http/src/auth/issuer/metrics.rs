//! Metrics of the keys of an issuer.

use metrics::{Counter, Gauge};
use waybill_telemetry::{Declared, Metric};

const FETCHES: Metric<Counter, 1> = Metric::new(
    "waybill_auth_key_fetches_total",
    "Fetches of the keys that verify JSON web tokens, by outcome",
    ["outcome"],
);
const KEYS: Metric<Gauge, 0> = Metric::new(
    "waybill_auth_keys",
    "Fetched keys that verify JSON web tokens; with 0 all of them are refused",
    [],
);
const UNKNOWN_KEYS: Metric<Counter, 0> = Metric::new(
    "waybill_auth_unknown_keys_total",
    "JSON web tokens that named a key which is not among the fetched ones",
    [],
);

/// The metrics of authentication.
pub const METRICS: &[&dyn Declared] = &[&FETCHES, &KEYS, &UNKNOWN_KEYS];

/// Shows the keys of an issuer as metrics.
#[derive(Debug)]
pub(super) struct IssuerMeter {
    pub(super) fetched: Counter,
    pub(super) failed: Counter,
    pub(super) keys: Gauge,
    pub(super) unknown_keys: Counter,
}

impl IssuerMeter {
    pub(super) fn new() -> Self {
        let [fetched, failed] = ["fetched", "failed"].map(|outcome| FETCHES.of([outcome]));
        Self {
            fetched,
            failed,
            keys: KEYS.of([]),
            unknown_keys: UNKNOWN_KEYS.of([]),
        }
    }
}
