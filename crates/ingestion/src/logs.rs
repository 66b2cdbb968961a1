//! Detects that a topic of requests was deleted and created again after its checkpoint was taken.
//!
//! What must hold: however many clients ask, only one at a time checks the log of a partition, and
//! its result serves all that ask shortly after. No client waits for the brokers longer than for a
//! request that is read back.

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

/// How long a result is used.
const FRESH_FOR: Duration = Duration::from_millis(200);
/// How long the brokers may take for one result.
const TIMEOUT: Duration = Duration::from_secs(2);

/// When a log was last checked, and whether it differs from the log of its checkpoint.
type Known = Arc<Mutex<Option<(Instant, bool)>>>;

/// Compares the logs of partitions with those of their checkpoints.
#[derive(Debug)]
pub struct Logs {
    check: LogCheck,
    topics: Topics,
    is_unavailable: AtomicBool,
    known: std::sync::Mutex<HashMap<(Priority, PartitionId), Known>>,
}

impl Logs {
    /// Creates a check that asks these brokers.
    pub fn new(kafka: KafkaSettings, topics: Topics) -> Self {
        Self {
            check: LogCheck::new(kafka, "waybill-ingestion-log", TIMEOUT),
            topics,
            is_unavailable: AtomicBool::new(false),
            known: std::sync::Mutex::default(),
        }
    }

    /// Whether a partition's log of requests differs from the log of its checkpoint. Operations
    /// must be, or have been, spread over the partition.
    ///
    /// # Errors
    ///
    /// If the store or the brokers do not answer in time: the problem to answer with.
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
        // The time limit includes the wait for a check that is in progress.
        let check = async {
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
            let identity = identity.map_err(|error| self.unavailable(&error))?;
            if self.is_unavailable.swap(false, Ordering::Relaxed) {
                tracing::info!("the request topics can be read again");
            }
            let is_another = identity == Identity::Another;
            *known = Some((at, is_another));
            Ok(is_another)
        };
        let answer = tokio::time::timeout(2 * TIMEOUT, check).await;
        answer.map_err(|late| self.unavailable(&late)).flatten()
    }

    /// Closes the client, once a check in progress has ended. Blocks.
    pub fn close(&self) {
        self.check.close();
    }

    /// Logs the cause, once for each outage.
    fn unavailable(&self, error: &(dyn std::error::Error + 'static)) -> Problem {
        if !self.is_unavailable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error,
                "could not verify a request log; status queries that need it get 503 until it can \
                 be read"
            );
        }
        let detail = "The request topic could not be read. Try again.";
        Problem::new(Kind::BrokerUnavailable, detail)
    }
}
