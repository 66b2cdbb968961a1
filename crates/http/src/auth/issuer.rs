//! The keys of an issuer, which are fetched in the background.
//!
//! One task fetches: at an interval, and earlier when a token names an unknown key, because issuers
//! rotate their keys. A minimum interval bounds the fetches whatever tokens arrive.
//!
//! What must hold: no request waits for the issuer; one fetch runs at a time; and a fetch that
//! fails changes nothing until the keys are too old. Without keys no token is accepted.

mod address;
mod fetch;
mod metrics;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use metrics::IssuerMeter;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use waybill_clock::boot_clock;
use waybill_engine::BootTime;
use waybill_telemetry::chain;
use waybill_telemetry::health::{Condition, Readiness};

pub(super) use address::KeysAddress;
pub use metrics::METRICS;

use self::fetch::{Fetcher, KeySet};
use super::JwtConfig;
use super::jwks::Keys;
use waybill_tls::reread::FileRefused;

/// The keys of an issuer.
#[derive(Debug)]
pub struct Issuer {
    name: String,
    address: KeysAddress,
    fetcher: Fetcher,
    refresh_interval: Duration,
    refresh_interval_min: Duration,
    keys_max_age: Duration,
    keys: ArcSwapOption<Keys>,
    /// Wakes the task when a token names an unknown key.
    unknown_key: Notify,
    /// Why the last fetch failed; `None` if it did not.
    failure: Mutex<Option<String>>,
    meter: IssuerMeter,
}

/// The last fetch that succeeded.
struct Fetched {
    set: KeySet,
    at: BootTime,
}

impl Issuer {
    /// The issuer whose keys the configuration says to fetch; `None` if it does not.
    pub(super) fn new(config: &JwtConfig) -> Result<Option<Self>, FileRefused> {
        let address = KeysAddress::of(config).map_err(|error| FileRefused {
            key: "auth.jwt".into(),
            problem: error.to_string(),
        })?;
        let Some(address) = address else {
            return Ok(None);
        };
        Ok(Some(Self {
            name: config.issuer.clone().unwrap_or_default(),
            address,
            fetcher: Fetcher::new(config)?,
            refresh_interval: config.refresh_interval,
            refresh_interval_min: config.refresh_interval_min,
            keys_max_age: config.keys_max_age,
            keys: ArcSwapOption::empty(),
            unknown_key: Notify::new(),
            failure: Mutex::default(),
            meter: IssuerMeter::new(),
        }))
    }

    /// The keys; `None` if none were fetched yet, or they are too old.
    pub(super) fn keys(&self) -> Option<Arc<Keys>> {
        self.keys.load_full()
    }

    /// A token names a key that is not among the keys: they are fetched again, unless they were
    /// fetched a moment ago.
    pub(super) fn note_unknown_key(&self) {
        self.meter.unknown_keys.increment(1);
        self.unknown_key.notify_one();
    }

    /// Reads the trusted certificates again if they have changed. Blocks.
    pub(super) fn reload(&self) {
        self.fetcher.reload();
    }

    /// Fetches the keys until `stop`. The process is not ready before the first ones are there;
    /// later failures are warnings of its readiness.
    pub fn follow(
        self: Arc<Self>,
        readiness: &Readiness,
        stop: CancellationToken,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let ready = readiness.expect(format!("keys of the issuer {}", self.name));
        let issuer = Arc::clone(&self);
        readiness.add_warnings(move || issuer.warning().into_iter().collect());
        self.run(ready, stop)
    }

    fn warning(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let why = failure.as_ref().filter(|_| self.keys.load().is_some())?;
        Some(format!(
            "the keys of the issuer {} cannot be fetched, and the previous ones are in use: {why}",
            self.name
        ))
    }

    async fn run(self: Arc<Self>, ready: Condition, stop: CancellationToken) -> anyhow::Result<()> {
        let mut last = None;
        loop {
            let began = Instant::now();
            let fetched = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                fetched = self.fetcher.fetch(&self.address) => fetched,
            };
            let replaced = match fetched {
                Ok(set) => self.replace(set, &mut last),
                Err(error) => Err(chain(&error)),
            };
            let wait = match replaced {
                Ok(()) => {
                    self.note_success();
                    ready.set(true);
                    self.refresh_interval
                }
                Err(why) => {
                    ready.note(Some(&why));
                    self.note_failure(why);
                    self.drop_old(&mut last);
                    self.refresh_interval_min
                }
            };
            let wanted = async {
                sleep_until(began + self.refresh_interval_min).await;
                self.unknown_key.notified().await;
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = sleep_until(began + wait) => {}
                () = wanted => {}
            }
        }
    }

    /// Replaces the keys if they have changed. Unchanged ones stay, with the tokens that they
    /// verified.
    fn replace(&self, set: KeySet, last: &mut Option<Fetched>) -> Result<(), String> {
        let is_changed = last.as_ref().is_none_or(|last| last.set != set);
        if is_changed {
            let keys = Keys::read(set.url.as_str(), &set.text)?;
            tracing::info!(
                issuer = self.name,
                url = %set.url,
                keys = ?keys,
                "fetched the keys of the issuer"
            );
            self.meter.keys.set(keys.len() as f64);
            self.keys.store(Some(Arc::new(keys)));
        }
        *last = Some(Fetched {
            set,
            at: boot_clock(),
        });
        Ok(())
    }

    fn note_success(&self) {
        self.meter.fetched.increment(1);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.take().is_some() {
            tracing::info!(
                issuer = self.name,
                "the keys of the issuer can be fetched again"
            );
        }
    }

    fn note_failure(&self, why: String) {
        self.meter.failed.increment(1);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // The same failure is logged once.
        if failure.as_ref() != Some(&why) {
            tracing::warn!(
                issuer = self.name,
                error = why,
                has_keys = self.keys.load().is_some(),
                "cannot fetch the keys of the issuer; keys that were fetched before stay in use"
            );
            *failure = Some(why);
        }
    }

    fn drop_old(&self, last: &mut Option<Fetched>) {
        if last
            .take_if(|last| boot_clock().since(last.at) >= self.keys_max_age)
            .is_some()
        {
            self.meter.keys.set(0.0);
            self.keys.store(None);
            tracing::error!(
                issuer = self.name,
                "the keys of the issuer are older than auth.jwt.keysMaxAge: its tokens are refused \
                 until they can be fetched"
            );
        }
    }
}
