//! `waybill schema`: prints the JSON Schemas of the files that people write, which editors use to
//! complete and check them.
//!
//! What must hold: `schemas/files/` has a copy of each, and every example names its schema in its
//! first line.

use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use waybill_agent::http::AgentsFile;
use waybill_config::schema_of_file;
use waybill_engine::WorkflowDefinition;
use waybill_node::config::Config;
use waybill_workflow_test::CasesFile;

/// Which kind of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FileKind {
    /// A workflow, as in workflows.files
    Workflow,
    /// Declared HTTP agents, as in agents.files
    Agents,
    /// The configuration, as in --config
    Config,
    /// Cases of a workflow, as in workflow test --cases
    Cases,
}

impl FileKind {
    /// The text of the schema.
    #[must_use]
    pub fn schema(self) -> String {
        match self {
            Self::Workflow => schema_of_file::<WorkflowDefinition>(
                "Waybill workflow",
                "A workflow of Waybill: its steps, and how each is retried and undone. See docs/workflows.md.",
            ),
            Self::Agents => schema_of_file::<AgentsFile>(
                "Waybill agents",
                "Declared HTTP agents of Waybill: which request performs, undoes and probes each step. See docs/agents.md.",
            ),
            Self::Config => schema_of_file::<Config>(
                "Waybill configuration",
                "The configuration of Waybill. Every key is optional. See docs/configuration.md.",
            ),
            Self::Cases => schema_of_file::<CasesFile>(
                "Waybill workflow cases",
                "Cases of a workflow of Waybill: inputs, mocked answers and the expected course. See docs/workflow-tests.md.",
            ),
        }
    }

    /// Writes the schema to `out`, and returns what to print: the schema if there is no file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(self, out: Option<&Path>) -> anyhow::Result<String> {
        let schema = self.schema();
        let Some(path) = out else {
            return Ok(schema);
        };
        std::fs::write(path, schema).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(format!("schema {}\n", path.display()))
    }
}
