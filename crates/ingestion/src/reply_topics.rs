//! Checks that the reply topics that callers name exist.
//!
//! No part of Waybill creates a caller's topic, and the scheduler drops status copies for a missing
//! one. So a misspelt name is refused immediately. The results are cached: an existing topic for a
//! minute, a missing topic or a failed check for a moment, so that a batch does not wait for each
//! of its lines.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use waybill_http::problem::{FieldProblem, Kind, Problem};
use waybill_kafka::{Admin, ClientError, KafkaSettings};

/// How long an existing topic is cached.
const FOUND_FOR: Duration = Duration::from_secs(60);
/// How long a missing topic is cached: it may be created soon.
const MISSING_FOR: Duration = Duration::from_secs(1);
/// How many topics are cached.
const REMEMBERED_MAX: usize = 1_000;
/// How many checks run at the same time.
const ASKED_AT_ONCE: usize = 4;

/// The reply topics of callers, as the broker reports them.
#[derive(Debug)]
pub struct ReplyTopics {
    admin: Admin,
    within: Duration,
    places: Semaphore,
    known: Mutex<HashMap<String, (Instant, Known)>>,
}

/// The cached result for a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    There,
    Missing,
    /// The broker did not answer.
    Unchecked,
}

impl Known {
    fn lasts(self) -> Duration {
        match self {
            Self::There => FOUND_FOR,
            Self::Missing | Self::Unchecked => MISSING_FOR,
        }
    }

    fn judged(self, topic: &str) -> Result<(), Problem> {
        match self {
            Self::There => Ok(()),
            Self::Missing => Err(Problem::invalid(vec![FieldProblem::new(
                "/replyTo",
                format!("must be an existing topic; the broker has no topic {topic:?}"),
            )])),
            Self::Unchecked => Err(Problem::new(
                Kind::BrokerUnavailable,
                "Could not check with the broker whether the topic of replyTo exists.",
            )),
        }
    }
}

impl ReplyTopics {
    /// Creates a check that waits for the broker for at most `within`.
    ///
    /// # Errors
    ///
    /// If the Kafka client cannot be created.
    pub fn new(kafka: &KafkaSettings, within: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            admin: Admin::new(kafka, "waybill-ingestion-topics")?,
            within,
            places: Semaphore::new(ASKED_AT_ONCE),
            known: Mutex::default(),
        })
    }

    /// Refuses a topic that the broker does not have.
    ///
    /// # Errors
    ///
    /// The problem to answer with: the topic is missing, or the broker did not answer.
    pub async fn check(&self, topic: &str) -> Result<(), Problem> {
        if let Some(known) = self.remembered(topic) {
            return known.judged(topic);
        }
        let asking = async {
            // The semaphore is never closed, so this always gets its permit.
            let _place = self.places.acquire().await.ok();
            // A request that asked before may have filled the cache in the meantime.
            match self.remembered(topic) {
                Some(known) => Ok(known),
                None => self
                    .admin
                    .topic_partitions(topic)
                    .await
                    .map(|found| match found {
                        Some(_) => Known::There,
                        None => Known::Missing,
                    }),
            }
        };
        let known = match tokio::time::timeout(self.within, asking).await {
            Ok(Ok(known)) => known,
            Ok(Err(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "could not check whether a caller's topic exists"
                );
                Known::Unchecked
            }
            Err(_) => Known::Unchecked,
        };
        self.remember(topic, known);
        known.judged(topic)
    }

    fn remembered(&self, topic: &str) -> Option<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, known) = known.get(topic)?;
        (Instant::now() < *until).then_some(*known)
    }

    fn remember(&self, topic: &str, what: Known) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, (until, _)| now < *until);
        }
        // If the cache is full of valid entries, a new topic is not cached.
        if known.len() < REMEMBERED_MAX || known.contains_key(topic) {
            known.insert(topic.to_owned(), (now + what.lasts(), what));
        }
    }
}
