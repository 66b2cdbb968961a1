//! The action of a step request, and the outputs of a step.

use serde::{Deserialize, Serialize};

/// The action of a step request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Action {
    /// Perform the step.
    #[default]
    Run,
    /// Undo the step, whether or not it was performed.
    Compensate,
    /// Report whether the step was performed, without performing it.
    Probe,
}

impl Action {
    /// Its name in answers, records and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "Run",
            Self::Compensate => "Compensate",
            Self::Probe => "Probe",
        }
    }
}

/// Named values that steps produced. An agent extracts from its service's answer what later steps
/// and conditions need; the rest of the answer is not stored.
pub type Outputs = Vec<(String, String)>;
