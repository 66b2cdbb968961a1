//! What the driver's thread receives, through one channel.

use std::sync::mpsc;

use tokio::sync::oneshot;
use waybill_engine::{ShardId, Source};
use waybill_scheduler_core::{Amount, Arrived, ControlError, Input};

/// An item of the driver's channel.
#[derive(Debug)]
pub(super) enum Incoming {
    /// An input of the loop.
    Input(Box<Input>),
    /// The records of one poll of the consumer of `source`, and how far it read.
    Records {
        source: Source,
        amount: Amount,
        records: Vec<Arrived>,
    },
    /// Agents that are called directly have replied.
    Answered,
    /// An operator or a test starts or stops a shard.
    SetRunning {
        shard: ShardId,
        running: bool,
        answer: oneshot::Sender<Result<(), ControlError>>,
    },
}

impl From<Input> for Incoming {
    fn from(input: Input) -> Self {
        Self::Input(Box::new(input))
    }
}

/// The sending side of the driver's channel. It never blocks. Its length is bounded by the
/// consumers' credit, by the single commit, by the one load and renewal per shard in flight, and by
/// the unacknowledged step requests. [`Incoming::Answered`] is queued once until the driver
/// receives it; the agents queue the replies themselves.
pub(super) type Inputs = mpsc::Sender<Incoming>;
