//! An error in one field of a JSON body, in the format of RFC 9457's `errors` extension.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An invalid field and what was expected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where the field is, or would be: a JSON pointer (RFC 6901).
    #[schema(example = "/packageInfo/size")]
    pub pointer: String,
    /// What was expected, for people.
    #[schema(example = "must be one of Small, Medium, Large")]
    pub detail: String,
}

impl FieldError {
    /// Names the field at `pointer`.
    #[must_use]
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.detail)
    }
}

/// The JSON pointer to `name` inside the object at `parent`.
#[must_use]
pub fn pointer_to(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// A value in a message: its JSON, cut if it is long.
pub(crate) fn shown(value: &serde_json::Value) -> String {
    const CHARS_MAX: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_escape_tilde_and_slash() {
        assert_eq!(pointer_to("/a", "b/c~d"), "/a/b~1c~0d");
        assert_eq!(pointer_to("", ""), "/");
    }

    #[test]
    fn shown_values_are_cut_at_a_character() {
        let long = serde_json::Value::from("ä".repeat(100));
        assert_eq!(shown(&long).chars().count(), 41);
    }
}
