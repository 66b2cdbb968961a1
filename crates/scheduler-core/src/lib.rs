//! The scheduler's loop: everything that it decides, and none of its effects.
//!
//! [`SchedulerLoop`] owns the engines of all shards of a process. Inputs and the time go in; leases
//! to write, rows to commit, messages to send and orders to the consumers come out, as a list of
//! [`Effect`]s that a driver performs in order. [`Acquisition`] decides how the lease of a shard is
//! acquired, one call at a time. `crates/scheduler` is the driver on rdkafka and the state store.
//!
//! What must hold here: no message leaves before the row that intends it is durable, nothing is
//! sent once the lease has ended, and the same inputs at the same times give the same effects.
//!
//! Deliberately absent: clocks, threads, sockets, and tasks. The manifest cannot reach tokio,
//! rdkafka or a database, and `clippy.toml` bans the parts of `std` that would give access to them.

mod acquisition;
mod amount;
mod checkpoint_check;
mod commits;
mod control;
mod copies;
mod effect;
mod foreign_state;
mod input;
mod lease;
mod linger;
mod log_offsets;
mod own;
mod scheduler_loop;
mod settings;
mod slot;
mod standstill;
mod task;

pub use acquisition::{
    Acquisition, AcquisitionAnswer, AcquisitionCall, AcquisitionStep, Candidate,
};
pub use amount::Amount;
pub use control::ControlError;
pub use effect::{Assignment, Effect, LoopError, Note};
pub use input::{
    Arrived, CallerId, CommitNumber, Generation, Input, LostCause, Requester, SendNumber,
    Undelivered,
};
pub use lease::{AcquireError, HeldLease, LeaseTerms};
pub use log_offsets::{LogEnds, StartOffsets};
pub use own::Own;
pub use scheduler_loop::SchedulerLoop;
pub use settings::LoopSettings;
pub use slot::{Owned, Slot, SlotState};
pub use task::{Panicked, StoreFailure, StoreFailureKind, Task, TaskError};
