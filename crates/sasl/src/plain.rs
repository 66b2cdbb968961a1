//! The message of SASL/PLAIN.

/// The user name and the password of a message of SASL/PLAIN, or `None` if it is malformed.
///
/// The message is an identity to act as, which must be empty or the user, the user and the
/// password, with a zero byte between them (RFC 4616, section 2).
#[must_use]
pub fn plain(message: &[u8]) -> Option<(&str, &str)> {
    let mut parts = std::str::from_utf8(message).ok()?.split('\0');
    let (acts_as, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !user.is_empty();
    (is_whole && (acts_as.is_empty() || acts_as == user)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Credentials<'a> = Option<(&'a str, &'a str)>;

    #[test]
    fn a_login_is_a_user_and_a_password_and_nothing_else() {
        let cases: [(&[u8], Credentials<'_>); 9] = [
            (b"\0ada\0secret", Some(("ada", "secret"))),
            (b"ada\0ada\0secret", Some(("ada", "secret"))),
            (b"\0ada\0", Some(("ada", ""))),
            (b"bob\0ada\0secret", None),
            (b"\0\0secret", None),
            (b"\0ada\0se\0cret", None),
            (b"ada\0secret", None),
            (b"", None),
            (b"\0\xff\0secret", None),
        ];
        for (message, expected) in cases {
            assert_eq!(plain(message), expected, "{message:?}");
        }
    }
}
