//! Tests of workflows without services, brokers or waiting: a case gives an input and the answers
//! of the agents, and states the expected course of the operation.
//!
//! What must hold: the engine decides, not this crate. A case runs the partition engine and the
//! supervisor's decisions of the real roles; only agents, the store and the time are replaced. With
//! the file of a declared agent, its requests are rendered and its answers interpreted by the
//! agent's own code. The same files give the same result, because time is virtual and the id of the
//! operation is fixed.
//!
//! Deliberately absent: failures of Waybill itself, hand-offs to the deadline index and several
//! operations at a time. The simulator covers these.

mod cases;
mod check;
mod command;
mod compare;
mod diff;
mod junit;
mod mocks;
mod path;
mod place;
mod report;
mod run;
mod suite;

pub use cases::{
    Answer, AnswerOutcome, AttemptKind, Bounds, ByStep, Case, CasesFile, EndState, Expectation,
    ExpectedRequest, Texts, Verb, VerbName,
};
pub use command::CasesArgs;
pub use junit::to_junit;
pub use place::Placed;
pub use report::{CaseReport, FoundDifference, Report};
pub use suite::{CasesError, Suite};
