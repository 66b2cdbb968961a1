//! What the servers of a store report about themselves, in the terms of no particular database.

use std::fmt;

use serde::Serialize;

use crate::cql::CqlDetails;

/// The servers of a store, and whether they can hold it. Serializes as one JSON object, and
/// displays as several lines of text.
#[derive(Clone, Debug, Serialize)]
pub struct StoreReport {
    /// The servers, and what they hold of the store, in one line.
    #[serde(skip)]
    pub summary: String,
    #[serde(flatten)]
    pub(crate) details: CqlDetails,
    /// The clocks of the nodes that answered.
    pub clocks: Vec<ServerClock>,
    /// The problems, the most serious first.
    pub problems: Vec<StoreProblem>,
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.details)?;
        for ServerClock { node, ahead_ms } in &self.clocks {
            write!(f, "\nclock: {node} is {ahead_ms} ms ahead of this machine")?;
        }
        for problem in &self.problems {
            let weight = match problem.is_fatal {
                true => "cannot be used",
                false => "warning",
            };
            write!(f, "\n{weight}: {problem}")?;
        }
        Ok(())
    }
}

/// The clock of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerClock {
    /// The address of the node.
    pub node: String,
    /// How far it is ahead of this machine's, in milliseconds; negative if it is behind.
    pub ahead_ms: i64,
}

/// A problem of the servers, or of the store on them, that a person must know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize)]
#[error("{text}")]
pub struct StoreProblem {
    /// Whether it prevents the use of the store, rather than making it unreliable.
    #[serde(rename = "fatal")]
    pub is_fatal: bool,
    /// What is wrong, and what to do about it.
    #[serde(rename = "problem")]
    pub text: String,
    /// What it concerns.
    #[serde(skip)]
    pub area: ProblemArea,
}

/// What a [`StoreProblem`] concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemArea {
    /// The servers, or the store on them.
    Store,
    /// The clocks of the servers.
    Clocks,
}
