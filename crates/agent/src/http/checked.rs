//! The checked settings of an agent, and the agent with these settings.

use super::answer::StatusRules;
use super::auth::{AuthPlan, ServiceTlsConfig};
use super::client::{Client, ServiceTls};
use super::config::HttpConfig;
use super::last_answer::LastAnswer;
use super::load::check_settings;
use super::plan::Plan;
use super::{HttpAgent, LoadError};
use crate::breaker::{Breaker, BreakerSettings};
use crate::metrics::{ServiceMetrics, breaker_state};
use crate::template::Variables;

/// An agent with checked settings, before it reads the files that they name.
#[derive(Debug)]
pub(super) struct Checked<'a> {
    name: &'a str,
    config: &'a HttpConfig,
    pub(super) plan: Plan,
    pub(super) rules: StatusRules,
    pub(super) auth: AuthPlan,
}

impl<'a> Checked<'a> {
    pub(super) fn new(
        name: &'a str,
        config: &'a HttpConfig,
        variables: &Variables,
    ) -> Result<Self, LoadError> {
        check_settings(name, config)?;
        let auth = AuthPlan::compile(config)?;
        let plan = Plan::compile(config, variables)?;
        if !plan.is_tls() && config.tls != ServiceTlsConfig::default() {
            return Err(LoadError::invalid(
                "tls",
                "requires a baseUrl with https://",
            ));
        }
        if let Some(redirects) = &config.redirects {
            redirects.check()?;
            if config.http2 && !plan.is_tls() {
                let why = "cannot be used with http2 and http://";
                return Err(LoadError::invalid("redirects", why));
            }
        }
        if let Some(header) = auth.header() {
            plan.refuse_header(header)?;
        }
        Ok(Self {
            name,
            config,
            plan,
            rules: StatusRules::compile(config)?,
            auth,
        })
    }

    /// Reads the files, and creates the agent.
    pub(super) fn open(self) -> Result<HttpAgent, LoadError> {
        let Self { name, config, .. } = self;
        let service_url = self.plan.service();
        let tls = match self.plan.is_tls() || config.redirects.is_some() {
            true => Some(ServiceTls::open(name, &config.tls, &service_url)?),
            false => None,
        };
        if self.auth.header().is_some() && !self.plan.is_tls() && !self.plan.is_this_machine() {
            tracing::warn!(
                agent = name,
                "the agent's credential is sent without TLS: its baseUrl begins with http://"
            );
        }
        Ok(HttpAgent {
            rules: self.rules,
            auth: self.auth.open(name)?,
            client: Client::new(config, self.plan.is_tls(), tls),
            redirects: config.redirects.clone(),
            service_url,
            breaker: Breaker::new(
                name,
                BreakerSettings {
                    failure_rate: config.breaker.failure_rate,
                    calls: config.breaker.calls,
                    open_for: config.breaker.open_for,
                    half_open_calls: config.breaker.half_open_calls,
                },
                breaker_state(name),
            ),
            service: ServiceMetrics::new(name),
            last_answer: LastAnswer::new(),
            plan: self.plan,
            retries: config.retries.clone(),
            timeout: config.timeout,
            concurrency_max: config.concurrency_max,
            response_bytes_max: config.response_bytes_max,
        })
    }
}
