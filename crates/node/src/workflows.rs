//! The workflows that this process can run, from the binary and from files, and the `workflows`
//! section of the configuration, which names them.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_config::checks::require;
use waybill_config::{ConfigError, FileError, parse, read_text};
use waybill_engine::{Workflow, WorkflowDefinition, WorkflowError, Workflows};

/// The name of the built-in workflow, used instead of a file name.
const BUILT_IN: &str = "the built-in drone-delivery workflow";

/// The `workflows` section.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkflowsConfig {
    /// Whether the workflow of the drone-delivery application can be run.
    pub built_in: bool,
    /// Files of additional workflows, one per file. The newest version of a workflow starts new
    /// operations; keep older versions while operations run them.
    pub files: Vec<PathBuf>,
}

impl Default for WorkflowsConfig {
    fn default() -> Self {
        Self {
            built_in: true,
            files: Vec::new(),
        }
    }
}

impl WorkflowsConfig {
    /// Checks the section, apart from the files.
    ///
    /// # Errors
    ///
    /// If no workflow is configured.
    pub fn validate(&self) -> Result<(), ConfigError> {
        require(
            self.built_in || !self.files.is_empty(),
            "workflows.files",
            "must name a workflow if workflows.builtIn is false",
        )
    }
}

/// Why the workflows cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowsError {
    /// A file cannot be read, or is not a workflow.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that the configuration names cannot be read.
    #[error(transparent)]
    Configured(#[from] ConfigError),
    /// A workflow is invalid.
    #[error("{place}: invalid workflow")]
    Workflow {
        /// The file or its substitute, and the line of the step or name at fault, if any.
        place: String,
        /// The cause.
        #[source]
        source: WorkflowError,
    },
    /// The workflows conflict with each other.
    #[error("the workflows of {files} are inconsistent")]
    Together {
        /// All files.
        files: String,
        /// The cause.
        #[source]
        source: WorkflowError,
    },
}

/// Loads and checks every workflow of the configuration.
///
/// # Errors
///
/// If a file cannot be read or is not a workflow, or if a workflow is invalid, alone or together
/// with the others.
pub fn load_workflows(config: &WorkflowsConfig) -> Result<Workflows, WorkflowsError> {
    let mut names = Vec::new();
    let mut workflows = Vec::new();
    if config.built_in {
        names.push(BUILT_IN.to_owned());
        workflows.push(compile(BUILT_IN, waybill_drone_delivery::WORKFLOW_YAML)?);
    }
    for path in &config.files {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|error| error.of_key("workflows.files"))?;
        workflows.push(compile(&name, &text)?);
        names.push(name);
    }
    Workflows::new(workflows).map_err(|source| WorkflowsError::Together {
        files: names.join(", "),
        source,
    })
}

/// Loads and checks one workflow, independent of the configuration.
///
/// # Errors
///
/// If the file cannot be read, is not a workflow, or the workflow is invalid.
pub fn load_workflow(path: &Path) -> Result<Workflows, WorkflowsError> {
    let name = path.display().to_string();
    let workflow = compile(&name, &read_text(path)?)?;
    Workflows::new(vec![workflow]).map_err(|source| WorkflowsError::Together {
        files: name,
        source,
    })
}

fn compile(name: &str, text: &str) -> Result<Workflow, WorkflowsError> {
    let definition: WorkflowDefinition = parse(name, text)?;
    Workflow::try_from(definition).map_err(|source| {
        let line = at_fault(&source).and_then(|(key, value)| line_of(key, value, text));
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        WorkflowsError::Workflow { place, source }
    })
}

/// The key and value in the file that identify the fault: the step, or a name in it.
fn at_fault(error: &WorkflowError) -> Option<(&str, &str)> {
    let step = match error {
        WorkflowError::Name { field, name, .. } => {
            let (_, key) = field.rsplit_once('.')?;
            return Some((key, name.as_str()));
        }
        WorkflowError::DuplicateStep { step, .. }
        | WorkflowError::UnknownStep { step, .. }
        | WorkflowError::ConditionNotBefore { step, .. }
        | WorkflowError::Value { step, .. }
        | WorkflowError::CompensationOfKind { step, .. }
        | WorkflowError::UndoInput { step, .. }
        | WorkflowError::IrreversibleTooEarly { step, .. }
        | WorkflowError::BesidePivot { step, .. }
        | WorkflowError::CompensateBehindPivot { step, .. }
        | WorkflowError::CancelAlways { step, .. }
        | WorkflowError::ScheduleBeyondDeadline { step, .. } => step,
        WorkflowError::Cycle { steps, .. } => steps.first()?,
        WorkflowError::NoSteps { .. }
        | WorkflowError::TooManySteps { .. }
        | WorkflowError::Sensitive { .. }
        | WorkflowError::DuplicateWorkflow { .. } => return None,
    };
    Some(("name", step.as_str()))
}

/// The line, from 1, on which `key` has this value in a step or in its parts; the last of several.
fn line_of(key: &str, value: &str, text: &str) -> Option<usize> {
    let gives_it = |entry: &str| {
        let entry = entry.trim_start_matches([' ', '-']);
        let given = entry.strip_prefix(key).and_then(|it| it.strip_prefix(':'));
        given.is_some_and(|given| given.trim().trim_matches(['"', '\'']) == value)
    };
    let has_it = |line: &str| {
        let line = line.split(" #").next().unwrap_or_default();
        line.starts_with([' ', '-']) && line.split(['{', ',', '}']).any(gives_it)
    };
    let lines = text.lines().enumerate().filter(|(_, line)| has_it(line));
    lines.last().map(|(index, _)| index + 1)
}

#[cfg(test)]
mod page;

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::fs;
    use std::path::Path;

    use super::*;

    const OTHER: &str = "
name: errand
version: 1
steps:
  - name: go
    agent: walker
    timeout: 2s
  - name: return
    agent: walker
    after: [go]
";

    #[test]
    fn the_built_in_workflow_and_one_from_a_file_coexist() {
        let (_dir, config) = one_file(OTHER);
        let workflows = load_workflows(&config).unwrap();
        assert!(workflows.newest("drone-delivery").is_some());
        assert!(workflows.newest("errand").is_some());
    }

    #[test]
    fn without_the_built_in_workflow_only_the_files_count() {
        let (_dir, config) = one_file(OTHER);
        let workflows = load_workflows(&WorkflowsConfig {
            built_in: false,
            ..config
        })
        .unwrap();
        assert!(workflows.newest("drone-delivery").is_none());
        assert!(workflows.newest("errand").is_some());
    }

    #[test]
    fn no_workflow_at_all_is_refused() {
        WorkflowsConfig::default().validate().unwrap();
        let config = WorkflowsConfig {
            built_in: false,
            ..WorkflowsConfig::default()
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.starts_with("workflows.files"), "{error}");
    }

    #[test]
    fn a_refusal_names_the_file_and_the_reason() {
        let cases = [
            (
                OTHER.replace("agent: walker\n    after", "agnet: walker\n    after"),
                ":9:5: unknown key steps.agnet",
            ),
            (OTHER.replace("2s", "2"), ":7:5: steps.timeout: "),
            (OTHER.replace("[go]", "[fly]"), ":8: invalid workflow: "),
            (OTHER.replace("2s", "0s"), ":5: invalid workflow: "),
            (
                OTHER.replace("name: return", "name: \"go\" # again"),
                ":8: invalid workflow: ",
            ),
            (OTHER.replace("errand", "Errand"), ": invalid workflow: "),
            (
                OTHER.replacen("agent: walker", "agent: Walker!", 1),
                ":6: invalid workflow: ",
            ),
            (
                OTHER.replace("name: return", "name: Return"),
                ":8: invalid workflow: ",
            ),
            (
                OTHER.replace("[go]", "[go]\n    compensation: { agent: \"W\" }"),
                ":11: invalid workflow: ",
            ),
        ];
        for (text, expected) in cases {
            let (_dir, config) = one_file(&text);
            let error = load_workflows(&config).unwrap_err();
            let mut chain = error.to_string();
            if let Some(source) = error.source() {
                chain = format!("{chain}: {source}");
            }
            let start = format!("{}{expected}", config.files[0].display());
            assert!(chain.starts_with(&start), "{chain}");
        }
    }

    #[test]
    fn the_same_version_of_a_workflow_in_two_files_is_refused() {
        let (dir, mut config) = one_file(OTHER);
        config.files.push(write(dir.path(), "again.yaml", OTHER));
        let error = load_workflows(&config).unwrap_err().to_string();
        assert!(
            error.contains("errand.yaml") && error.contains("again.yaml"),
            "{error}"
        );
    }

    fn one_file(text: &str) -> (tempfile::TempDir, WorkflowsConfig) {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![write(dir.path(), "errand.yaml", text)];
        (
            dir,
            WorkflowsConfig {
                files,
                ..WorkflowsConfig::default()
            },
        )
    }

    fn write(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}
