//! Why a lease could not be acquired.

use waybill_scheduler_core::Panicked;
use waybill_store::StoreError;
use waybill_telemetry::chain;

/// Why a lease could not be acquired.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcquireError {
    /// The store failed.
    #[error("cannot take the lease")]
    Store(#[from] StoreError),
    /// The shard must not run now.
    #[error(transparent)]
    Refused(#[from] waybill_scheduler_core::AcquireError),
    /// The broker did not report where the log begins and ends.
    #[error("cannot read the ends of the log: {0}")]
    Broker(String),
    /// The task that acquired it panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl From<AcquireError> for waybill_scheduler_core::AcquireError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Refused(error) => error,
            error => Self::Failed(chain(&error)),
        }
    }
}
