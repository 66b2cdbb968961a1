//! Values as parts of texts, URLs and JSON.

use std::fmt::Write as _;

/// How values are escaped in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Escape {
    /// Not at all.
    Plain,
    /// Percent-encoded, all but RFC 3986's unreserved characters.
    Percent,
    /// As the contents of a JSON string.
    Json,
}

impl Escape {
    pub(super) fn push(self, text: &str, out: &mut String) {
        match self {
            Self::Plain => out.push_str(text),
            Self::Percent => {
                for byte in text.bytes() {
                    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                        out.push(char::from(byte));
                    } else {
                        write!(out, "%{byte:02X}").expect("writing to a String cannot fail");
                    }
                }
            }
            Self::Json => {
                for character in text.chars() {
                    match character {
                        '"' => out.push_str("\\\""),
                        '\\' => out.push_str("\\\\"),
                        control if control < ' ' => {
                            write!(out, "\\u{:04x}", u32::from(control))
                                .expect("writing to a String cannot fail");
                        }
                        other => out.push(other),
                    }
                }
            }
        }
    }
}

/// The text, percent-encoded for a form or a URL.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    Escape::Percent.push(text, &mut out);
    out
}

/// Appends a JSON string.
pub(super) fn push_json_string(text: &str, out: &mut String) {
    out.push('"');
    Escape::Json.push(text, out);
    out.push('"');
}
