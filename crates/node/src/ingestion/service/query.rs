//! What stands in an address, and what it says of a request.

use percent_encoding::percent_decode_str;

use crate::auth::{Caller, Tenants};
use crate::ingestion::problem::{FieldProblem, Problem};
use crate::ingestion::token::StatusToken;

/// What a status query says beside the id.
#[derive(Debug)]
pub struct Parameters {
    /// The tenant whose id it is; empty for the only one.
    pub tenant: String,
    /// The `at` of a `Location`.
    pub token: Option<StatusToken>,
    /// Whose operations may be found at all.
    pub tenants: Tenants,
}

impl Parameters {
    /// Reads a query; what it says of anything else is ignored. A caller of one tenant need not name it, and may
    /// not name another.
    pub fn read(query: Option<&str>, caller: &Caller) -> Result<Self, Problem> {
        let tenants = caller.tenants().clone();
        let mut parameters = Self {
            tenant: tenants.meant(String::new())?,
            token: None,
            tenants,
        };
        for (name, value) in query
            .unwrap_or_default()
            .split('&')
            .filter_map(|p| p.split_once('='))
        {
            let wrong = |detail: String| Problem::invalid(vec![FieldProblem::new("", detail)]);
            match name {
                "at" => {
                    let token = value
                        .parse()
                        .map_err(|error| wrong(format!("at {error}")))?;
                    parameters.token = Some(token);
                }
                "tenant" => {
                    let value = value.replace('+', " ");
                    let named =
                        decoded(&value).ok_or_else(|| wrong("tenant must be UTF-8".to_owned()))?;
                    parameters.tenant = parameters.tenants.meant(named)?;
                }
                _ => {}
            }
        }
        Ok(parameters)
    }
}

/// The value of a query's parameter, if it stands there.
pub fn query_value(query: Option<&str>, name: &str) -> Result<Option<String>, Problem> {
    let mut pairs = query.unwrap_or_default().split('&');
    let value = pairs.find_map(|pair| {
        let (found, value) = pair.split_once('=')?;
        (found == name).then(|| decoded(&value.replace('+', " ")))
    });
    let wrong = || {
        let detail = format!("{name} must be UTF-8");
        Problem::invalid(vec![FieldProblem::new("", detail)])
    };
    value.map(|value| value.ok_or_else(wrong)).transpose()
}

/// Text of a path or a query without its percent encoding; `None` if it is not UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::{Principal, Scopes};
    use crate::ingestion::problem::Kind;

    fn read(query: Option<&str>) -> Result<Parameters, Problem> {
        Parameters::read(query, &Caller::ANYBODY)
    }

    #[test]
    fn a_query_gives_tenant_and_token() {
        let parameters = read(Some("x&tenant=a%20b+c&at=1-2-0a0b0c0d")).unwrap();
        assert_eq!(parameters.tenant, "a b c");
        assert_eq!(parameters.token.unwrap().to_string(), "1-2-0a0b0c0d");
        assert_eq!(read(Some("at=x")).unwrap_err().kind, Kind::InvalidValues);
        assert_eq!(
            read(Some("tenant=%ff")).unwrap_err().kind,
            Kind::InvalidValues
        );
        assert!(read(None).unwrap().token.is_none());
    }

    #[test]
    fn whoever_may_see_one_tenant_need_not_name_it_and_may_not_name_another() {
        let caller = Caller::of(Arc::new(Principal {
            name: "a".into(),
            scopes: Scopes::default(),
            tenants: Tenants::One("acme".into()),
            agents: std::sync::Arc::default(),
        }));
        let tenant = |query| Parameters::read(query, &caller).map(|it| it.tenant);
        for own in [None, Some("tenant="), Some("tenant=acme")] {
            assert_eq!(tenant(own).unwrap(), "acme", "{own:?}");
        }
        for other in ["tenant=other", "tenant=acme&tenant=other"] {
            let refused = tenant(Some(other)).unwrap_err();
            assert_eq!(refused.kind, Kind::AnotherTenant, "{other}");
        }
    }
}
