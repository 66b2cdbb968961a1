//! The program of the release before this one.

use std::path::PathBuf;

const PREVIOUS: &str = "WAYBILL_TEST_PREVIOUS";

/// Where it is, as `.ci/previous` says; `None`, and a word about it, where it was not built.
pub fn previous_or_skip() -> Option<PathBuf> {
    let previous = std::env::var_os(PREVIOUS).map(PathBuf::from);
    if previous.is_none() {
        println!(
            "SKIPPED: upgrades: {PREVIOUS} does not name the program of the release before, which .ci/previous builds"
        );
    }
    previous
}
