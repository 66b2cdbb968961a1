//! Reads the token of a request, only from `Authorization: Bearer TOKEN` (RFC 6750, section 2.1).

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue, InvalidHeaderValue};
use waybill_config::Secret;

use super::Denied;

/// The longest token that is accepted.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The `Authorization` header for a token, marked as sensitive so that `Debug` does not show it.
pub fn bearer(token: &Secret) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The token in these headers.
pub(super) fn token(headers: &HeaderMap) -> Result<&str, Denied> {
    const SCHEME: &str = "bearer";
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let value = match (given.next(), given.next()) {
        (None, _) => return Err(Denied::NoToken),
        (Some(value), None) => value.as_bytes(),
        (Some(_), Some(_)) => return Err(Denied::BadToken("Authorization must be given once.")),
    };
    let (scheme, rest) = match value.iter().position(|byte| *byte == b' ') {
        Some(end) => value.split_at(end),
        None => (value, &[][..]),
    };
    if !scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) {
        return Err(Denied::NoToken);
    }
    let token = rest.trim_ascii();
    let is_token = (1..=TOKEN_BYTES_MAX).contains(&token.len())
        && token
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte));
    match std::str::from_utf8(token) {
        Ok(token) if is_token => Ok(token),
        _ => Err(Denied::BadToken("The token is malformed.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_appears_once_after_its_scheme() {
        let bad = |detail| Err(Denied::BadToken(detail));
        let (twice, unwritten) = (
            "Authorization must be given once.",
            "The token is malformed.",
        );
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        let cases: [(&[&str], Result<&str, Denied>); 12] = [
            (&[], Err(Denied::NoToken)),
            (&["Basic dXNlcjpwYXNz"], Err(Denied::NoToken)),
            (&["Bearerabc"], Err(Denied::NoToken)),
            (&[""], Err(Denied::NoToken)),
            (&["Bearer"], bad(unwritten)),
            (&["Bearer "], bad(unwritten)),
            (&["Bearer a b"], bad(unwritten)),
            (&["Bearer a,b"], bad(unwritten)),
            (&[&long], bad(unwritten)),
            (&["Bearer a", "Bearer b"], bad(twice)),
            (&["Bearer abc.DEF-1_2~3+4/5=="], Ok("abc.DEF-1_2~3+4/5==")),
            (&["bEARER   abc "], Ok("abc")),
        ];
        for (given, expected) in cases {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(token(&headers), expected, "{given:?}");
        }
    }
}
