//! Paths and queries of the API.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The path of operations.
pub(super) const OPERATIONS: &str = "/v1/operations";

/// Characters that need no escape in a path or a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The path of an operation.
pub(super) fn path_of(id: &str) -> String {
    format!("{OPERATIONS}/{}", utf8_percent_encode(id, PLAIN))
}

/// The parameter that names a tenant.
pub(super) fn tenant_pair(tenant: Option<&str>) -> Vec<(&'static str, String)> {
    let tenant = tenant.filter(|tenant| !tenant.is_empty());
    tenant
        .map(|tenant| ("tenant", tenant.to_owned()))
        .into_iter()
        .collect()
}

/// A query with these parameters, including the question mark.
pub(super) fn query_of(pairs: &[(&str, String)]) -> String {
    let mut query = String::new();
    for (name, value) in pairs {
        query.push(if query.is_empty() { '?' } else { '&' });
        let value = utf8_percent_encode(value, PLAIN);
        write!(query, "{name}={value}").expect("a string takes whatever is written");
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_values_are_escaped_in_urls() {
        assert_eq!(path_of("a/b?c:ü"), "/v1/operations/a%2Fb%3Fc%3A%C3%BC");
        let pairs = [("tenant", "a&b=c d".to_owned()), ("limit", "5".to_owned())];
        assert_eq!(query_of(&pairs), "?tenant=a%26b%3Dc%20d&limit=5");
        assert_eq!(query_of(&[]), "");
        assert_eq!(tenant_pair(Some("")), []);
    }
}
