//! The parameters of a query.
//!
//! What must hold: an answer reports all wrong and unknown parameters together, each one once and
//! up to a bound. If a misspelt name were ignored, the answer would be to a different request.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::problem::{FieldProblem, Problem};

use super::wait::{WAIT, read_wait};
use crate::token::StatusToken;

/// The parameters of a request about one operation.
pub const OF_ONE: [&str; 2] = ["at", "tenant"];
/// The parameters of a request for the state of an operation.
pub const OF_GET: [&str; 3] = ["at", "tenant", WAIT];
/// The parameters of a new request.
pub const OF_CREATE: [&str; 1] = [WAIT];
/// The parameters of a cancel that has no body.
pub const OF_CANCEL: [&str; 3] = ["at", "tenant", "reason"];

/// The parameters of a list.
pub const OF_LIST: [&str; 10] = [
    "state",
    "workflow",
    "tenant",
    "step",
    "error",
    "olderThan",
    "abandoned",
    "order",
    "limit",
    "cursor",
];

/// How many wrong parameters an answer names at most.
const ERRORS_MAX: usize = 20;

/// The parameters of a request about one operation.
#[derive(Debug)]
pub struct Parameters {
    /// The tenant of the id; empty if the caller has only one.
    pub tenant: String,
    /// The `at` of a `Location`.
    pub token: Option<StatusToken>,
    /// The tenants whose operations the caller may find.
    pub tenants: Tenants,
    /// The `reason`, for requests that may have one.
    pub reason: String,
    /// How long to wait for the result, for requests that may wait.
    pub wait: Option<Duration>,
}

impl Parameters {
    /// Reads a query with the parameters in `known`. A caller of one tenant need not name it, and
    /// may not name another.
    pub fn read(query: Option<&str>, caller: &Caller, known: &[&str]) -> Result<Self, Problem> {
        let tenants = caller.tenants().clone();
        let mut parameters = Self {
            tenant: tenants.meant(String::new())?,
            token: None,
            tenants,
            reason: String::new(),
            wait: None,
        };
        let mut errors = QueryErrors::default();
        for (name, value) in pairs(query) {
            let Some(value) = errors.known_value(name, value, known) else {
                continue;
            };
            match name {
                "at" => match value.parse() {
                    Ok(token) => parameters.token = Some(token),
                    Err(error) => errors.wrong(name, format!("{error}")),
                },
                "tenant" => parameters.tenant = parameters.tenants.meant(value)?,
                "reason" => parameters.reason = value,
                WAIT => parameters.wait = read_wait(&value, &mut errors),
                _ => errors.unknown(name, known),
            }
        }
        errors.into_result()?;
        Ok(parameters)
    }
}

/// The faults of a query: each parameter once, up to the limit of an answer.
#[derive(Debug, Default)]
pub struct QueryErrors(Vec<FieldProblem>);

impl QueryErrors {
    /// Notes a wrong parameter.
    pub fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        let mut named = self.0.iter();
        let is_named = named.any(|error| error.parameter.as_deref() == Some(name));
        if !is_named && self.0.len() < ERRORS_MAX {
            self.0.push(FieldProblem::of_parameter(name, detail));
        }
    }

    /// Notes an unknown parameter.
    pub fn unknown(&mut self, name: &str, known: &[&str]) {
        let known = known.join(", ");
        self.wrong(name, format!("is unknown; the parameters are {known}"));
    }

    /// The value of a parameter. Notes that it is unknown, or that its value is not UTF-8.
    pub fn known_value(
        &mut self,
        name: &str,
        value: Option<String>,
        known: &[&str],
    ) -> Option<String> {
        if !known.contains(&name) {
            self.unknown(name, known);
            return None;
        }
        if value.is_none() {
            self.wrong(name, "must be UTF-8");
        }
        value
    }

    /// # Errors
    ///
    /// If a parameter is wrong.
    pub fn into_result(self) -> Result<(), Problem> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Problem::invalid(self.0)),
        }
    }
}

/// Refuses the parameters of a batch: its lines have the input.
pub fn refuse_parameters(query: Option<&str>, caller: &Caller) -> Result<(), Problem> {
    of_new_request(query, caller, &[]).map(|_| ())
}

/// How long a new request waits for its result. Refuses all other parameters, because its body has
/// the input.
pub fn wait_of_new_request(
    query: Option<&str>,
    caller: &Caller,
) -> Result<Option<Duration>, Problem> {
    of_new_request(query, caller, &OF_CREATE)
}

/// If a caller of one tenant names another tenant, it gets the refusal for that, as everywhere.
fn of_new_request(
    query: Option<&str>,
    caller: &Caller,
    known: &[&str],
) -> Result<Option<Duration>, Problem> {
    let mut errors = QueryErrors::default();
    let mut wait = None;
    for (name, value) in pairs(query) {
        match (name, value) {
            ("tenant", Some(tenant)) => {
                caller.tenants().meant(tenant)?;
                let detail = "is not a parameter of this request: name the tenant in the body, or \
                              use a token of the tenant";
                errors.wrong(name, detail);
            }
            (WAIT, value) if known.contains(&WAIT) => {
                wait = read_wait(&value.unwrap_or_default(), &mut errors);
            }
            _ if known.is_empty() => {
                errors.wrong(name, "is unknown; this request has no parameters");
            }
            _ => errors.unknown(name, known),
        }
    }
    errors.into_result()?;
    Ok(wait)
}

/// The parameters of a query with their decoded values; `None` for a value that is not UTF-8.
pub fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, Option<String>)> {
    let pairs = query.unwrap_or_default().split('&');
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, decoded(&value.replace('+', " ")))
    })
}

/// Removes the percent encoding of a path or a query; `None` if the text is not UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use waybill_http::auth::{Principal, Scopes};
    use waybill_http::problem::Kind;

    fn read(query: Option<&str>) -> Result<Parameters, Problem> {
        Parameters::read(query, &Caller::ANYBODY, &OF_CANCEL)
    }

    fn of_acme() -> Caller {
        Caller::of(Arc::new(Principal {
            name: "a".into(),
            scopes: Scopes::default(),
            tenants: Tenants::One("acme".into()),
            agents: std::sync::Arc::default(),
        }))
    }

    fn named(problem: Problem) -> Vec<String> {
        assert_eq!(problem.kind, Kind::InvalidValues);
        let errors = problem.errors.into_iter();
        errors.filter_map(|error| error.parameter).collect()
    }

    #[test]
    fn a_query_gives_tenant_token_and_reason() {
        let parameters = read(Some("tenant=a%20b+c&&at=1-2-0a0b0c0d&reason=x")).unwrap();
        assert_eq!(parameters.tenant, "a b c");
        assert_eq!(parameters.token.unwrap().to_string(), "1-2-0a0b0c0d");
        assert_eq!(parameters.reason, "x");
        assert!(read(None).unwrap().token.is_none());
    }

    #[test]
    fn every_wrong_and_every_unknown_parameter_is_named() {
        let refused = read(Some("at=x&tenant=%ff&tennant=acme&x&limit=")).unwrap_err();
        assert_eq!(named(refused), ["at", "tenant", "tennant", "x", "limit"]);
        let refused = Parameters::read(Some("reason=x"), &Caller::ANYBODY, &OF_ONE).unwrap_err();
        assert_eq!(
            refused.errors[0].detail,
            "is unknown; the parameters are at, tenant"
        );
        assert_eq!(named(refused), ["reason"]);
    }

    #[test]
    fn wrong_parameters_are_named_once_up_to_a_limit() {
        let refused = read(Some(&"a&".repeat(8_000))).unwrap_err();
        assert_eq!(named(refused), ["a"]);
        let many: Vec<_> = (0..50).map(|n| format!("p{n}")).collect();
        let refused = read(Some(&many.join("&"))).unwrap_err();
        assert_eq!(named(refused), many[..ERRORS_MAX]);
        let refused = refuse_parameters(Some(&many.join("&")), &Caller::ANYBODY).unwrap_err();
        assert_eq!(named(refused), many[..ERRORS_MAX]);
    }

    #[test]
    fn every_parameter_that_is_listed_is_read() {
        for name in OF_ONE.into_iter().chain(OF_CANCEL) {
            let value = if name == "at" { "1-2-0a0b0c0d" } else { "x" };
            read(Some(&format!("{name}={value}"))).unwrap();
        }
    }

    #[test]
    fn a_request_without_parameters_refuses_any() {
        for good in [None, Some(""), Some("&")] {
            refuse_parameters(good, &Caller::ANYBODY).unwrap();
        }
        let refused = |query, caller: &Caller| refuse_parameters(Some(query), caller).unwrap_err();
        let both = refused("dryRun=1&tenant=acme", &Caller::ANYBODY);
        assert_eq!(named(both), ["dryRun", "tenant"]);
        assert_eq!(named(refused("tenant=acme", &of_acme())), ["tenant"]);
        let another = refused("tenant=other", &of_acme());
        assert_eq!(another.kind, Kind::AnotherTenant);
    }

    #[test]
    fn a_new_request_may_wait_and_has_no_other_parameters() {
        let wait = |query| wait_of_new_request(Some(query), &Caller::ANYBODY);
        assert_eq!(wait("").unwrap(), None);
        assert_eq!(wait("wait=30s").unwrap(), Some(Duration::from_secs(30)));
        assert_eq!(wait("wait=1500ms").unwrap().unwrap().as_millis(), 1_500);
        for wrong in ["wait=", "wait=30", "wait=-1s", "wait=soon", "wait=%ff"] {
            assert_eq!(named(wait(wrong).unwrap_err()), ["wait"], "{wrong}");
        }
        let refused = wait("dryRun=1&wait=1s&tenant=acme").unwrap_err();
        assert_eq!(named(refused), ["dryRun", "tenant"]);
        let of_batch = refuse_parameters(Some("wait=1s"), &Caller::ANYBODY);
        assert_eq!(named(of_batch.unwrap_err()), ["wait"]);
    }

    #[test]
    fn a_caller_of_one_tenant_may_name_only_that_tenant() {
        let caller = of_acme();
        let tenant = |query| Parameters::read(query, &caller, &OF_ONE).map(|it| it.tenant);
        for own in [None, Some("tenant="), Some("tenant=acme")] {
            assert_eq!(tenant(own).unwrap(), "acme", "{own:?}");
        }
        for other in ["tenant=other", "tenant=acme&tenant=other"] {
            let refused = tenant(Some(other)).unwrap_err();
            assert_eq!(refused.kind, Kind::AnotherTenant, "{other}");
        }
    }
}
