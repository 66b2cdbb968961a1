//! A workflow and agents with short times, and services with faults.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::servers::Servers;
use crate::setup::Setup;

/// The services, as `/faults` names them.
pub const SERVICES: [&str; 5] = ["account", "package", "third-party", "drone", "delivery"];

/// A workflow, its agents and additional configuration of a setup. All times are a fraction of
/// those in the shipped files.
pub struct Setting {
    /// The agents file.
    pub agents: String,
    /// The workflow files.
    pub workflows: Vec<String>,
    /// Additional lines of the configuration file.
    pub more: String,
}

impl Setting {
    /// The shipped workflow and agents with short times, and nothing else. Servers that share the
    /// machine with tests may take a second per step, and every repeated step slows them down.
    pub fn hasty() -> Self {
        let timeout = match Servers::wanted() {
            Some(_) => "timeout: 3s",
            None => "timeout: 1s",
        };
        let mut workflow = waybill_drone_delivery::WORKFLOW_YAML.to_owned();
        for (shipped, hasty) in [
            ("timeout: 5s", timeout),
            ("initialInterval: 200ms", "initialInterval: 50ms"),
            ("maxInterval: 30s", "maxInterval: 1s"),
            ("settle: 1s", "settle: 200ms"),
        ] {
            workflow = replaced(&workflow, shipped, hasty, usize::MAX);
        }
        // The first agents answer that they do not know; the others exceed the complete-by.
        let agents = replaced(
            waybill_drone_delivery::AGENTS_YAML,
            "concurrencyMax: 256\n",
            "concurrencyMax: 256\n      timeout: 600ms\n",
            3,
        );
        Self {
            agents,
            workflows: vec![workflow],
            more: String::new(),
        }
    }

    /// Adds faults with which the services always start.
    pub fn with_faults(mut self, faults: &Value) -> Self {
        self.more.push_str("services:\n  faults:\n");
        for service in SERVICES {
            writeln!(self.more, "    {service}: {faults}").expect("a text takes whatever comes");
        }
        self
    }

    /// A setup with this configuration, of either kind.
    pub fn setup(self) -> Setup {
        let setup = Setup::of_either_kind("");
        let sections = self.sections(&setup.path(""));
        // On servers, few operations at the same time, so that each step meets its complete-by.
        let in_flight_max = if setup.is_on_servers() { 300 } else { 4_000 };
        let config = format!(
            "partitions: 4\n\
             scheduler: {{ inFlightMax: {in_flight_max}, handOffAfter: 1s, timeoutGrace: 200ms }}\n\
             {sections}"
        );
        std::fs::write(setup.path("waybill.yaml"), config).expect("the directory is writable");
        setup
    }

    /// The sections of the configuration file. Writes the files that they name to `dir`.
    pub fn sections(&self, dir: &Path) -> String {
        let write = |name: &str, text: &str| {
            std::fs::write(dir.join(name), text).expect("the directory is writable");
            dir.join(name).display().to_string()
        };
        let agents = write("agents.yaml", &self.agents);
        let files: Vec<String> = (0..)
            .zip(&self.workflows)
            .map(|(number, text): (u32, _)| write(&format!("workflow-{number}.yaml"), text))
            .collect();
        format!(
            "workflows: {{ builtIn: false, files: [{}] }}\n\
             agents: {{ builtIn: false, files: [{agents}] }}\n\
             {}",
            files.join(", "),
            self.more
        )
    }
}

/// `text` with the first `count` occurrences of `from` replaced. Panics if there is none.
pub fn replaced(text: &str, from: &str, to: &str, count: usize) -> String {
    assert!(text.contains(from), "{from:?} is not in:\n{text}");
    text.replacen(from, to, count)
}
