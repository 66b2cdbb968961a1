//! Why agents are refused.

use crate::template::TemplateError;

/// Why agents cannot be loaded from their file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not YAML, or holds unknown keys or unsuitable values.
    #[error("cannot read the agents file")]
    Yaml {
        /// The parser's message, with the position.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// One of the agents cannot work.
    #[error("agent {agent:?} cannot be loaded")]
    Agent {
        /// Its name.
        agent: String,
        /// Why.
        #[source]
        source: Box<LoadError>,
    },
    /// An agent does not support a request that a workflow requires.
    #[error(
        "agent {agent:?} does not fit step {step:?} of workflow {workflow:?}, version {version}: \
         `{key}` {why}"
    )]
    UnmetRequirement {
        /// The agent's name.
        agent: String,
        /// The workflow.
        workflow: String,
        /// Its version.
        version: u32,
        /// The step.
        step: String,
        /// The key in the agent's file, or of the step in the workflow's.
        key: String,
        /// Why it is unsupported.
        why: String,
    },
    /// A value is invalid.
    #[error("`{key}`: {why}")]
    Invalid {
        /// The key's path.
        key: String,
        /// Why its value is invalid.
        why: String,
    },
    /// A template is invalid.
    #[error("`{key}` is not a valid template")]
    Template {
        /// The key's path.
        key: String,
        /// Why it is invalid.
        #[source]
        source: TemplateError,
    },
}

impl LoadError {
    pub(super) fn invalid(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.into(),
            why: why.into(),
        }
    }

    pub(super) fn of_agent(self, agent: &str) -> Self {
        Self::Agent {
            agent: agent.to_owned(),
            source: Box::new(self),
        }
    }
}
