//! Errors as text.

use std::error::Error;

/// An error with its causes, on one line. A cause that the text already contains is left out:
/// several libraries print their cause, and return it as their source too.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("the server refused the connection")]
    struct Refused;

    #[derive(Debug, thiserror::Error)]
    #[error("no metadata: {0}")]
    struct PrintsItsCause(#[source] Refused);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Opening(#[source] PrintsItsCause);

    #[test]
    fn every_cause_is_in_the_text_once() {
        assert_eq!(
            chain(&Opening(PrintsItsCause(Refused))),
            "cannot open the store: no metadata: the server refused the connection"
        );
    }
}
