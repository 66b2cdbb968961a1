//! The arguments of `waybill workflow test` about cases.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use waybill_agent::http::OfflineAgent;
use waybill_engine::Workflows;

use crate::junit::to_junit;
use crate::report::Report;
use crate::suite::{CasesError, Suite};

/// Which cases to run, and where to write their results.
#[derive(Clone, Debug, Args)]
pub struct CasesArgs {
    /// The cases (YAML): inputs, answers and expectations
    #[arg(long, value_name = "FILE")]
    cases: PathBuf,
    /// Run the case with this name alone; may be repeated
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl CasesArgs {
    /// Runs the cases for the first of `workflows`.
    ///
    /// # Errors
    ///
    /// If the file of cases is invalid, has no such case, or the results cannot be written.
    pub fn run(
        &self,
        workflows: Workflows,
        agents: BTreeMap<String, OfflineAgent>,
    ) -> Result<Report, CasesError> {
        let report = Suite::load(&self.cases, workflows, agents)?.run(&self.case)?;
        if let Some(path) = &self.junit {
            fs::write(path, to_junit(&report)).map_err(|source| CasesError::Unwritable {
                path: path.display().to_string(),
                source,
            })?;
        }
        Ok(report)
    }
}
