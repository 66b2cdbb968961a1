//! Whether requests that count as read lie in a topic that was created anew since.
//!
//! What must hold: however many clients ask, each partition's log is looked at by one of them at a time, and its answer
//! serves all who ask shortly after. Nobody waits for the brokers longer than for a request that is read back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use waybill_engine::{PartitionId, Priority};
use waybill_http::problem::{Kind, Problem};
use waybill_kafka::{Identity, KafkaSettings, LogCheck};
use waybill_messages::Topics;

use super::store_reads::StoreReads;

/// How long an answer serves.
const FRESH_FOR: Duration = Duration::from_millis(200);
/// How long the brokers may take for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// When a log was looked at last, and whether it was another one than that of its checkpoint.
type Known = Arc<Mutex<Option<(Instant, bool)>>>;

/// Tells the logs of checkpoints from others.
#[derive(Debug)]
pub struct Logs {
    check: LogCheck,
    topics: Topics,
    is_away: AtomicBool,
    known: std::sync::Mutex<HashMap<(Priority, PartitionId), Known>>,
}

impl Logs {
    /// One that asks these brokers.
    pub fn new(kafka: KafkaSettings, topics: Topics) -> Self {
        Self {
            check: LogCheck::new(kafka, "waybill-ingestion-log", PATIENCE),
            topics,
            is_away: AtomicBool::new(false),
            known: std::sync::Mutex::default(),
        }
    }

    /// Whether a partition's log of requests is another one than that of its checkpoint. The partition must be one that
    /// operations are or were spread over.
    ///
    /// # Errors
    ///
    /// If the store or the brokers do not answer in time: a problem to answer with.
    pub async fn is_another(
        &self,
        reads: &StoreReads,
        priority: Priority,
        partition: PartitionId,
    ) -> Result<bool, Problem> {
        let known = {
            let mut of = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(of.entry((priority, partition)).or_default())
        };
        // The time limit includes the wait for a look that is under way.
        let look = async {
            let mut known = known.lock().await;
            if let Some((at, is_another)) = *known
                && at.elapsed() < FRESH_FOR
            {
                return Ok(is_another);
            }
            let at = Instant::now();
            let mark = reads.mark(priority, partition).await?;
            let topic = self.topics.of_priority(priority);
            let identity = self.check.identity(topic, partition, mark).await;
            let identity = identity.map_err(|error| self.away(&error))?;
            if self.is_away.swap(false, Ordering::Relaxed) {
                tracing::info!("the topics of requests can be read again");
            }
            let is_another = identity == Identity::Another;
            *known = Some((at, is_another));
            Ok(is_another)
        };
        let answer = tokio::time::timeout(2 * PATIENCE, look).await;
        answer.map_err(|late| self.away(&late)).flatten()
    }

    /// Lets the client go, once a look under way has ended. Blocks.
    pub fn close(&self) {
        self.check.close();
    }

    /// Logs the cause, once for each outage.
    fn away(&self, error: &(dyn std::error::Error + 'static)) -> Problem {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error,
                "could not verify a log of requests; status queries that need it get 503 until it can be read"
            );
        }
        let detail = "The topic of requests could not be read. Try again.";
        Problem::new(Kind::BrokerUnavailable, detail)
    }
}
