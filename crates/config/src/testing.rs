//! What tests of sections share.

use std::fmt::Display;

/// Changes of a valid value, each beside the beginning of the error that must refuse it.
pub type Changes<'a, T> = &'a [(&'a str, fn(&mut T))];

/// Asserts that `check` accepts a value and refuses it after each change. Returns the
/// errors.
///
/// # Panics
///
/// If it does not.
pub fn assert_refused<T: Clone, E: Display>(
    valid: &T,
    check: impl Fn(&T) -> Result<(), E>,
    changes: Changes<'_, T>,
) -> Vec<String> {
    if let Err(error) = check(valid) {
        panic!("{error}");
    }
    let refused = changes.iter().map(|(expected, change)| {
        let mut changed = valid.clone();
        change(&mut changed);
        let Err(error) = check(&changed) else {
            panic!("not refused: {expected}");
        };
        let error = error.to_string();
        assert!(error.starts_with(expected), "{expected}: {error}");
        error
    });
    refused.collect()
}
