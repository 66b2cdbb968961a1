//! A workflow with its cases.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use waybill_agent::http::OfflineAgent;
use waybill_config::{FileError, misspelling_of, parse, read_text};
use waybill_engine::Workflows;

use crate::cases::{Case, CasesFile};
use crate::check::check;
use crate::compare::{compare, shown};
use crate::report::{CaseReport, Report};
use crate::run::{Setting, run};

/// A file of cases for a workflow, checked.
#[derive(Debug)]
pub struct Suite {
    path: String,
    file: CasesFile,
    setting: Setting,
}

/// Why cases cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CasesError {
    /// The file cannot be read, or is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no workflow to test.
    #[error("there is no workflow to test")]
    NoWorkflow,
    /// The results cannot be written.
    #[error("cannot write {path}")]
    Unwritable {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A case that is to be run does not exist.
    #[error("{path}: no case is named {name:?}{}", did_you_mean(.near.as_deref()))]
    UnknownCase {
        /// The file.
        path: String,
        /// The name.
        name: String,
        /// The most similar name of a case.
        near: Option<String>,
    },
}

impl Suite {
    /// Reads and checks a file of cases for the first of `workflows`. Requests to `agents` are
    /// rendered, and responses to them interpreted.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is invalid, or does not fit the workflow or the agents.
    pub fn load(
        path: &Path,
        workflows: Workflows,
        agents: BTreeMap<String, OfflineAgent>,
    ) -> Result<Self, CasesError> {
        let name = path.display().to_string();
        let file: CasesFile = parse(&name, &read_text(path)?)?;
        let workflow = workflows.iter().next().cloned();
        let setting = Setting {
            workflow: workflow.ok_or(CasesError::NoWorkflow)?,
            workflows: Arc::new(workflows),
            agents,
        };
        check(&file, &setting).map_err(|fault| FileError::Wrong {
            path: name.clone(),
            position: fault.position,
            problem: fault.problem,
        })?;
        Ok(Self {
            path: name,
            file,
            setting,
        })
    }

    /// Runs the cases with these names, or all.
    ///
    /// # Errors
    ///
    /// If there is no case with such a name.
    pub fn run(&self, names: &[String]) -> Result<Report, CasesError> {
        let known = || self.file.cases.iter().map(|case| case.name.value.as_str());
        for name in names {
            if !known().any(|case| case == name) {
                return Err(CasesError::UnknownCase {
                    path: self.path.clone(),
                    name: name.clone(),
                    near: misspelling_of(name, known()).map(str::to_owned),
                });
            }
        }
        let is_wanted = |case: &&Case| names.is_empty() || names.contains(&case.name.value);
        let cases = self.file.cases.iter().filter(is_wanted);
        let workflow = &self.setting.workflow;
        Ok(Report {
            workflow: workflow.name().to_string(),
            version: workflow.version(),
            file: self.path.clone(),
            cases: cases.map(|case| self.run_case(case)).collect(),
        })
    }

    fn run_case(&self, case: &Case) -> CaseReport {
        let course = match run(&self.setting, &self.file, case) {
            Ok(course) => course,
            Err(error) => return CaseReport::unfinished(case.name.clone(), error.to_string()),
        };
        let state = &course.row.state;
        CaseReport::finished(
            case.name.clone(),
            state.state,
            state.failure().map(shown),
            course.requests.len(),
            course.took,
            compare(&self.setting, case, &course),
        )
    }
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean {near:?}?"))
        .unwrap_or_default()
}
