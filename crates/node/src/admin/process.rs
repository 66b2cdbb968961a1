//! `/process`: the parts of a process's configuration that commands must share.

use std::collections::BTreeSet;
use std::path::Path;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use waybill_engine::Workflows;
use waybill_http::problem::{Kind, Problem};
use waybill_telemetry::VERSION;

use super::Admin;
use crate::role::Role;

/// What a process with workflows runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    /// The version of the program.
    pub version: String,
    /// The role.
    pub role: String,
    /// The prefix of the names of its topics.
    pub topic_prefix: String,
    /// The absolute path of its data directory.
    pub data_dir: String,
    /// Its workflows.
    pub workflows: BTreeSet<WorkflowId>,
    /// The agents that its workflows name.
    pub agents: BTreeSet<String>,
}

/// A workflow and its version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WorkflowId {
    /// The name.
    pub name: String,
    /// The version.
    pub version: u32,
}

impl ProcessView {
    /// What a process of this role runs with these settings.
    #[must_use]
    pub fn new(role: Role, topic_prefix: &str, data_dir: &Path, workflows: &Workflows) -> Self {
        let absolute = std::path::absolute(data_dir);
        let data_dir = absolute.unwrap_or_else(|_| data_dir.to_owned());
        let ids = workflows.iter().map(|workflow| WorkflowId {
            name: workflow.name().to_string(),
            version: workflow.version(),
        });
        let agents = workflows.agents();
        Self {
            version: VERSION.to_owned(),
            role: role.name().to_owned(),
            topic_prefix: topic_prefix.to_owned(),
            data_dir: data_dir.display().to_string(),
            workflows: ids.collect(),
            agents: agents.iter().map(ToString::to_string).collect(),
        }
    }
}

pub(super) async fn show(State(admin): State<Admin>) -> Result<Json<ProcessView>, Problem> {
    match admin.process.get() {
        Some(process) => Ok(Json(process.clone())),
        None => {
            let absent = Problem::new(Kind::NotFound, "This process has no workflows.");
            Err(admin.not_connected(absent))
        }
    }
}
