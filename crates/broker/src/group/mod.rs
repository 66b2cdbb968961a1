//! Consumer groups: the classic protocol, in which one member computes the assignment.
//!
//! `state` is the state machine of one group: requests and the time go in, answers come out
//! through one-shot channels. `coordinator` holds all groups and drives their time-outs.

mod coordinator;
mod state;

pub(crate) use coordinator::Coordinator;
pub(crate) use state::{Join, JoinAnswer, Leaver, Membership, Sync, SyncAnswer};
