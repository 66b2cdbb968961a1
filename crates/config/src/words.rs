//! Error messages about values that do not fit: parser messages in plain words.

use std::net::SocketAddr;

const ADDRESS: &str = "must be an IP address and a port of at most 65535, such as 127.0.0.1:8080; host names are not allowed";

/// Parses an address to listen on.
///
/// # Errors
///
/// If it is not an IP address with a port; host names are not looked up.
pub fn address_from_text(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| ADDRESS)
}

/// Replaces a parser's message by a plainer one, if there is one.
pub(crate) fn in_our_words(message: &str) -> &str {
    // The first is for files, the second for the environment.
    let wanted = message.strip_prefix("invalid ");
    let expected = message.rsplit_once(", expected ").map(|(_, kind)| kind);
    if let Some(words) = wanted
        .and_then(whole_number)
        .or_else(|| expected.and_then(whole_number))
    {
        return words;
    }
    match message {
        "invalid floating point" => "must be a number",
        "invalid boolean" => "must be true or false",
        other if other.ends_with(", expected a boolean") => "must be true or false",
        "expected mapping start" => "must be a mapping of keys to values",
        "expected sequence start" => "must be a list",
        "invalid socket address syntax" => ADDRESS,
        other if other.ends_with(", expected socket address") => ADDRESS,
        other if other.contains(", expected a nonzero ") => "must be a whole number of at least 1",
        other => other,
    }
}

/// The requirement for a value of this type.
fn whole_number(kind: &str) -> Option<&'static str> {
    match kind {
        "u8" => Some("must be a whole number from 0 to 255"),
        "u16" => Some("must be a whole number from 0 to 65535"),
        "u32" => Some("must be a whole number from 0 to 4294967295"),
        "u64" | "usize" => Some("must be a whole number from 0 to 18446744073709551615"),
        "i32" => Some("must be a whole number from -2147483648 to 2147483647"),
        "i64" | "isize" => {
            Some("must be a whole number from -9223372036854775808 to 9223372036854775807")
        }
        _ => None,
    }
}
