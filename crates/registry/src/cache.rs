//! The schemas that readers of records look up by ID, cached once they are known.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{UnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use waybill_messages::{Lookup, SchemaError, SchemaId, Schemas, WriterSchema};
use waybill_units::backoff;

use crate::client::{Registry, RegistryError, StoredSchema};

/// The most schemas to cache. An evicted one is fetched again.
const SCHEMAS_MAX: usize = 1_000;
/// The most IDs to remember that have no schema or are being fetched. Garbage can name any ID.
const OTHERS_MAX: usize = 1_000;
/// How long to trust the registry's answer that it does not have an ID: the ID may be registered
/// later.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// How long the registry must give that answer before it counts: one of its nodes might not know
/// yet what another has just registered. Records behind garbage wait this long.
const UNKNOWN_AFTER: Duration = Duration::from_millis(500);
/// How many times the registry must refuse access to an ID before that counts: it may be
/// misconfigured for a while.
const REFUSALS_MAX: u32 = 6;
/// The pause after a registry did not answer: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A cache of a registry's schemas for readers. It fetches missing schemas in the background, and
/// returns [`Lookup::NotYet`] in the meantime. Clones share the cache.
#[derive(Clone)]
pub struct SchemaCache {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    runtime: Handle,
    state: Mutex<State>,
}

struct State {
    schemas: Bounded<Known>,
    others: Bounded<Other>,
}

/// The permanent state of an ID: the registry never gives an ID another schema.
#[derive(Clone)]
enum Known {
    Schema(Arc<WriterSchema>),
    Unusable(Arc<str>),
}

/// The temporary state of an ID.
#[derive(Clone)]
enum Other {
    /// A request for it is in flight.
    Asking,
    /// The registry gave no answer that counts; retry after `until`.
    Unavailable { asked: Asked, until: Instant },
    /// The registry does not have it; this counts until `until`.
    Unknown { until: Instant },
    /// The registry refuses access to it; this counts until `until`.
    Refused { cause: Arc<str>, until: Instant },
}

/// How many times the registry was asked for an ID without success, and its answers. An answer that
/// says nothing about the ID itself, such as an outage, resets the counts of those that do.
#[derive(Clone, Copy, Default)]
struct Asked {
    times: u32,
    /// Since when the registry has always answered that it does not have the ID.
    unknown_since: Option<Instant>,
    /// How often in a row the registry has refused access.
    refusals: u32,
}

impl SchemaCache {
    /// Creates an empty cache. Its requests run on the current tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            shared: Arc::new(Shared {
                registry,
                runtime: Handle::current(),
                state: Mutex::new(State {
                    schemas: Bounded::new(SCHEMAS_MAX),
                    others: Bounded::new(OTHERS_MAX),
                }),
            }),
        }
    }
}

impl Schemas for SchemaCache {
    fn writer_schema(&self, id: SchemaId) -> Lookup {
        let mut state = self.shared.state();
        if let Some(known) = state.schemas.get(id) {
            return match known {
                Known::Schema(schema) => Lookup::Found(schema),
                Known::Unusable(cause) => Lookup::Unusable { cause },
            };
        }
        let now = Instant::now();
        let asked = match state.others.get(id) {
            Some(Other::Asking) => return Lookup::NotYet,
            Some(Other::Unavailable { until, .. }) if now < until => return Lookup::NotYet,
            Some(Other::Unknown { until }) if now < until => return Lookup::Unknown,
            Some(Other::Refused { cause, until }) if now < until => {
                return Lookup::Unusable { cause };
            }
            Some(Other::Unavailable { asked, .. }) => asked,
            Some(Other::Unknown { .. } | Other::Refused { .. }) | None => Asked::default(),
        };
        state.others.set(id, Other::Asking);
        drop(state);
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move {
            let asking = Arc::clone(&shared);
            let ended = tokio::spawn(async move {
                let answer = asking.registry.schema(id).await;
                asking.keep(id, asked, answer);
            });
            // Nothing asks for an ID again while it is being asked for.
            if let Err(error) = ended.await {
                tracing::error!(%id, %error, "asking for a schema failed; asking again");
                shared.ask_again(id, asked, Instant::now());
            }
        });
        Lookup::NotYet
    }
}

impl Shared {
    fn keep(
        &self,
        id: SchemaId,
        mut asked: Asked,
        answer: Result<Option<StoredSchema>, RegistryError>,
    ) {
        let now = Instant::now();
        match answer {
            Ok(Some(stored)) => {
                let known = parse(&stored);
                let mut state = self.state();
                state.schemas.set(id, known);
                state.others.remove(id);
            }
            Ok(None) => {
                let since = *asked.unknown_since.get_or_insert(now);
                asked.refusals = 0;
                if now - since < UNKNOWN_AFTER {
                    return self.ask_again(id, asked, now);
                }
                let until = now + UNKNOWN_FOR;
                self.state().others.set(id, Other::Unknown { until });
            }
            // A registry that shows other schemas but not this one will continue to do so. One that
            // shows none at all is misconfigured, and accepted records wait until that is repaired.
            Err(error @ RegistryError::Forbidden { .. })
                if asked.refusals >= REFUSALS_MAX && !self.state().schemas.is_empty() =>
            {
                let cause = Arc::from(error.to_string());
                let until = now + UNKNOWN_FOR;
                self.state().others.set(id, Other::Refused { cause, until });
            }
            Err(error) => {
                asked.unknown_since = None;
                asked.refusals = match error {
                    RegistryError::Forbidden { .. } => asked.refusals.saturating_add(1),
                    _ => 0,
                };
                let pause = asked.pause();
                tracing::warn!(
                    %id,
                    error = &error as &dyn std::error::Error,
                    again_in = ?pause,
                    "records wait for a schema from the schema registry"
                );
                self.ask_again(id, asked, now);
            }
        }
    }

    fn ask_again(&self, id: SchemaId, asked: Asked, now: Instant) {
        let until = now + asked.pause();
        let asked = Asked {
            times: asked.times.saturating_add(1),
            ..asked
        };
        self.state()
            .others
            .set(id, Other::Unavailable { asked, until });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    /// The pause before the next request.
    fn pause(self) -> Duration {
        backoff(PAUSE_MIN, PAUSE_MAX, self.times, 1.0)
    }
}

impl fmt::Debug for SchemaCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaCache")
            .field("registry", &self.shared.registry)
            .finish_non_exhaustive()
    }
}

fn parse(stored: &StoredSchema) -> Known {
    if stored.schema_type != StoredSchema::AVRO {
        return Known::Unusable(format!("its type is {}", stored.schema_type).into());
    }
    known(|| WriterSchema::parse(&stored.schema))
}

/// What `parse` found. If it panics on a schema, it will do so again.
fn known(parse: impl FnOnce() -> Result<WriterSchema, SchemaError> + UnwindSafe) -> Known {
    match catch_unwind(parse) {
        Ok(Ok(schema)) => Known::Schema(Arc::new(schema)),
        Ok(Err(error)) => Known::Unusable(error.to_string().into()),
        Err(_) => Known::Unusable("reading the schema panicked; the log has the cause".into()),
    }
}

/// Values by ID. The newest evicts the oldest.
///
/// Not quick_cache or moka: 40 lines under a lock that the cache takes anyway, because it changes
/// two of these together.
struct Bounded<V> {
    values: HashMap<SchemaId, V>,
    /// The IDs, in order of insertion.
    order: VecDeque<SchemaId>,
    max: usize,
}

impl<V: Clone> Bounded<V> {
    fn new(max: usize) -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
            max,
        }
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn get(&self, id: SchemaId) -> Option<V> {
        self.values.get(&id).cloned()
    }

    fn set(&mut self, id: SchemaId, value: V) {
        if self.values.insert(id, value).is_some() {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }

    fn remove(&mut self, id: SchemaId) {
        if self.values.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_for_the_newest() {
        let mut bounded = Bounded::new(2);
        for id in [1, 2, 2, 3] {
            bounded.set(SchemaId(id), id);
        }
        let kept: Vec<Option<u32>> = (1..=3).map(|id| bounded.get(SchemaId(id))).collect();
        assert_eq!(kept, [None, Some(2), Some(3)]);
        bounded.remove(SchemaId(2));
        bounded.set(SchemaId(4), 4);
        assert_eq!(bounded.get(SchemaId(3)), Some(3));
        assert_eq!((bounded.values.len(), bounded.order.len()), (2, 2));
    }

    #[test]
    fn a_schema_whose_reading_panics_is_unusable() {
        assert!(matches!(known(|| panic!("a bug")), Known::Unusable(_)));
    }

    #[test]
    fn a_schema_that_is_not_avro_is_unusable_with_a_reason() {
        let stored = |schema: &str, schema_type: &str| StoredSchema {
            schema: schema.to_owned(),
            schema_type: schema_type.to_owned(),
        };
        for (stored, expected) in [
            (stored("{}", "JSON"), "its type is JSON"),
            (stored("{", "AVRO"), "not an Avro schema"),
        ] {
            match parse(&stored) {
                Known::Unusable(cause) => assert!(cause.contains(expected), "{cause}"),
                Known::Schema(_) => panic!("{expected}"),
            }
        }
        assert!(matches!(
            parse(&stored(r#""long""#, StoredSchema::AVRO)),
            Known::Schema(_)
        ));
    }
}
