//! Consumer groups: the classic protocol, in which one member computes the assignment.
//!
//! `state` (with `joining` and `member`) is the state machine of one group: `messages` and the time
//! go in, answers come out through one-shot channels. `coordinator` holds all groups and drives
//! their time-outs.

mod coordinator;
mod joining;
mod member;
mod messages;
mod state;

pub(crate) use coordinator::{Coordinator, GroupLimits};
pub(crate) use messages::{Join, JoinAnswer, Leaver, Membership, Sync, SyncAnswer};
