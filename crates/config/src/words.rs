//! What is said of a value that does not fit: what parsers say, as a person would say it.

use std::net::SocketAddr;

const ADDRESS: &str = "must be an IP address and a port of at most 65535, such as 127.0.0.1:8080; names are not taken";

/// Reads an address to listen on.
///
/// # Errors
///
/// If it is none; names of machines are not looked up.
pub fn address_from_text(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| ADDRESS)
}

/// What a parser says of a value, in our words where we have any for it.
pub(crate) fn in_our_words(message: &str) -> &str {
    // Of a file, and of the environment.
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
        "expected mapping start" => "must hold keys with values",
        "expected sequence start" => "must be a list",
        "invalid socket address syntax" => ADDRESS,
        other if other.ends_with(", expected socket address") => ADDRESS,
        other if other.contains(", expected a nonzero ") => "must be a whole number of at least 1",
        other => other,
    }
}

/// What a value of this kind has to be.
fn whole_number(kind: &str) -> Option<&'static str> {
    match kind {
        "u8" => Some("must be a whole number from 0 to 255"),
        "u16" => Some("must be a whole number from 0 to 65535"),
        "u32" => Some("must be a whole number from 0 to 4294967295"),
        "u64" | "usize" => Some("must be a whole number from 0 to 18446744073709551615"),
        "i32" | "i64" | "isize" => Some("must be a whole number, and not so large"),
        _ => None,
    }
}
