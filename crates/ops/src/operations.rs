//! `waybill ops`: shows and repairs operations over the HTTP API.
//!
//! The operation's scheduler alone decides about a verb, by the state that it reads. These commands
//! decide nothing, so each may be repeated: the idempotency key comes from the operation as it was
//! shown, so that a repeat, or the same command of another person at the same time, has no second
//! effect.
//!
//! Deliberately absent from the verbs: brokers and the store. They need the API, and a token if it
//! requires one. `doctor` and `explain` share the API client; they also read brokers and the store.

mod api;
mod ask;
mod asking;
mod canary;
mod doctor;
mod explain;
mod filter;
mod follow;
mod line;
mod list;
mod redrive;
mod show;
mod single;

use std::io;

use clap::{Args, Subcommand};
use waybill_api::verb::Verb;
use waybill_node::config::Config;

pub use self::doctor::{DoctorArgs, FileCheck, named_elsewhere};
pub use self::explain::ExplainArgs;

use self::api::{Api, ApiError};
use crate::access::AccessArgs;
use crate::address::ApiAddress;
use crate::runtime::runtime;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation is unknown, its state does not allow the request, or the request had another
     result
  2  the command line or the token is invalid, or the API is unreachable or unavailable";

/// The arguments of `waybill ops`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct OpsArgs {
    /// The URL of the API, if it is not at --http
    #[arg(long, global = true, value_name = "URL")]
    api: Option<ApiAddress>,
    #[command(flatten)]
    access: AccessArgs,
    /// What to do with them.
    #[command(subcommand)]
    command: OpsCommand,
}

/// What to do with operations.
#[derive(Clone, Debug, Subcommand)]
enum OpsCommand {
    /// List operations that linger, failed or are parked
    List(list::ListArgs),
    /// Show an operation: its steps, attempts and times, what happens next, and the possible verbs
    Show(show::ShowArgs),
    /// Continue at the step that failed; with --as-new, run it again as a new operation
    Resubmit(ask::ResubmitArgs),
    /// Undo the completed steps
    Compensate(ask::PlainArgs),
    /// End a parked operation in its current state
    Abandon(ask::ReasonArgs),
    /// Retry the undo of steps that could not be undone
    RetryCompensation(ask::PlainArgs),
    /// Record that an operator undid a step
    Undone(ask::UndoneArgs),
    /// Cancel on behalf of the caller, and undo the completed steps
    Cancel(ask::PlainArgs),
}

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// The API refused, or could not answer.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The verb was refused, or had another result.
    #[error("{0}")]
    Missed(String),
    /// The API became unavailable during a verb for many operations.
    #[error("{0}")]
    BrokenOff(String),
    /// The output could not be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// The HTTP client could not be made.
    #[error("cannot create the HTTP client: {0}")]
    Client(String),
}

impl OpsError {
    /// The exit code for this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        const REFUSED: u8 = 1;
        const NOT_ASKED: u8 = 2;
        match self {
            Self::Missed(_) => REFUSED,
            Self::Api(error) if error.is_about_the_operation() => REFUSED,
            Self::Api(_)
            | Self::BrokenOff(_)
            | Self::Usage(_)
            | Self::Output(_)
            | Self::Client(_) => NOT_ASKED,
        }
    }
}

impl OpsArgs {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the API is unreachable, refuses the request, or the verb has another result.
    pub fn run(&self, config: &Config) -> Result<(), OpsError> {
        let address = ApiAddress::of_configuration(self.api.as_ref(), config);
        let address = address.map_err(OpsError::Usage)?;
        let runtime = runtime().map_err(|error| OpsError::Client(error.to_string()))?;
        let api = Api::new(address, &self.access)?;
        runtime.block_on(self.command.run(&api))
    }
}

impl OpsCommand {
    async fn run(&self, api: &Api) -> Result<(), OpsError> {
        match self {
            Self::List(arguments) => until_reader_leaves(arguments.run(api).await),
            Self::Show(arguments) => until_reader_leaves(arguments.run(api).await),
            Self::Resubmit(arguments) => arguments.run(api).await,
            Self::Compensate(arguments) => arguments.run(api, Verb::Compensate).await,
            Self::Abandon(arguments) => arguments.run(api, Verb::Abandon).await,
            Self::RetryCompensation(arguments) => arguments.run(api, Verb::RetryCompensation).await,
            Self::Undone(arguments) => arguments.run(api).await,
            Self::Cancel(arguments) => arguments.run(api, Verb::Cancel).await,
        }
    }
}

/// A closed output is no failure of a command that only shows something.
fn until_reader_leaves(result: Result<(), OpsError>) -> Result<(), OpsError> {
    match result {
        Err(OpsError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
