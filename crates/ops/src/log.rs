//! `waybill log`: shows or changes the log filter of a running process.

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use waybill_node::config::Config;

use crate::access::AdminArgs;
use crate::admin_port;
use crate::runtime::runtime;

/// The arguments of `waybill log`.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// The new filter: a level (error, warn, info, debug, trace, off), or pairs as in
    /// info,waybill=debug; without it, the command shows the current filter
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Deserialize)]
struct Applies {
    filter: String,
}

impl LogArgs {
    /// Changes the filter if one is given. Returns the filter that applies.
    ///
    /// # Errors
    ///
    /// If the process does not answer, or refuses the filter.
    pub fn run(&self, config: &Config) -> anyhow::Result<String> {
        let url = self.admin.url(config, "/log")?;
        let client = admin_port::client(&self.admin.access, admin_port::PATIENCE)?;
        let request = match &self.filter {
            Some(filter) => client.put(&url).json(&json!({ "filter": filter })),
            None => client.get(&url),
        };
        let runtime = runtime()?;
        let applies: Applies = runtime.block_on(admin_port::answered(&url, request))?;
        Ok(applies.filter)
    }
}
