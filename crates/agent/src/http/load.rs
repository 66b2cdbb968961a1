//! Loads the agents of a file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use waybill_config::FileError;

use super::config::{AgentsFile, HttpConfig};
use super::{Checked, HttpAgent, LoadError};
use crate::handler::Handler;
use crate::template::Variables;

/// An agent's name and its handler, as [`Agents::start`](crate::Agents::start) takes them.
pub type NamedHandler = (String, Arc<dyn Handler>);

impl AgentsFile {
    /// Reads a file without checking the agents.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not YAML of the documented shape.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        waybill_config::read_document(path)
    }

    /// Parses a file without checking the agents.
    ///
    /// # Errors
    ///
    /// If it is not YAML of the documented shape.
    pub fn from_yaml(text: &str) -> Result<Self, LoadError> {
        serde_saphyr::from_str(text).map_err(|source| LoadError::Yaml {
            source: Box::new(source),
        })
    }

    /// Creates the agents, by name. `variables` provides the values of placeholders that are the
    /// same for every request.
    ///
    /// # Errors
    ///
    /// If an agent's settings are invalid, or two agents have the same name.
    pub fn load(&self, variables: &Variables) -> Result<Vec<NamedHandler>, LoadError> {
        self.check_unique_names()?;
        self.agents
            .iter()
            .map(|agent| {
                let handler = HttpAgent::new(&agent.name, &agent.http, variables);
                let handler = handler.map_err(|source| source.of_agent(&agent.name))?;
                Ok((agent.name.clone(), Arc::new(handler) as Arc<dyn Handler>))
            })
            .collect()
    }

    /// Checks the agents' settings, without reading the files that they name.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    pub fn check_settings(&self, variables: &Variables) -> Result<(), LoadError> {
        self.check_unique_names()?;
        self.agents.iter().try_for_each(|agent| {
            let checked = Checked::new(&agent.name, &agent.http, variables);
            checked
                .map(drop)
                .map_err(|source| source.of_agent(&agent.name))
        })
    }

    /// Refuses two agents of the same name.
    pub(super) fn check_unique_names(&self) -> Result<(), LoadError> {
        let mut seen = BTreeSet::new();
        match self.agents.iter().find(|agent| !seen.insert(&agent.name)) {
            Some(repeated) => {
                Err(LoadError::invalid("name", "two agents have this name")
                    .of_agent(&repeated.name))
            }
            None => Ok(()),
        }
    }
}

/// Refuses settings that no agent can use.
pub(super) fn check_settings(name: &str, config: &HttpConfig) -> Result<(), LoadError> {
    let name_fits = !name.is_empty()
        && name.len() <= 100
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !name_fits {
        return Err(LoadError::invalid(
            "name",
            "must have 1 to 100 characters, only lower-case a-z, 0-9 and '-'",
        ));
    }
    for (key, value) in [
        ("concurrencyMax", config.concurrency_max),
        ("breaker.calls", config.breaker.calls),
        ("breaker.halfOpenCalls", config.breaker.half_open_calls),
    ] {
        if !(1..=100_000).contains(&value) {
            return Err(LoadError::invalid(key, "must be from 1 to 100000"));
        }
    }
    for (key, value) in [
        ("timeout", config.timeout),
        ("connectTimeout", config.connect_timeout),
        ("breaker.openFor", config.breaker.open_for),
    ] {
        if value.is_zero() || value > Duration::from_secs(24 * 3600) {
            return Err(LoadError::invalid(key, "must be from 1ms to 24h"));
        }
    }
    let tls = &config.tls;
    if tls.cert_file.is_some() != tls.key_file.is_some() {
        return Err(LoadError::invalid(
            "tls",
            "certFile and keyFile belong together: set both, or neither",
        ));
    }
    if tls.server_name.as_ref().is_some_and(|name| !is_host(name)) {
        return Err(LoadError::invalid(
            "tls.serverName",
            "must be a host name or an address, without a port",
        ));
    }
    let rate = config.breaker.failure_rate;
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(LoadError::invalid(
            "breaker.failureRate",
            "must be above 0 and at most 1",
        ));
    }
    Ok(())
}

fn is_host(name: &str) -> bool {
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let mut bytes = name.bytes();
    let is_name = !name.is_empty()
        && name.len() <= 253
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_address || is_name
}
