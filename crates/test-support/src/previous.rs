//! The program of the previous release.

use std::path::PathBuf;

const PREVIOUS: &str = "WAYBILL_TEST_PREVIOUS";

/// Its path from `.ci/previous`. If it was not built, prints a line and returns `None`.
pub fn previous_or_skip() -> Option<PathBuf> {
    let previous = std::env::var_os(PREVIOUS).map(PathBuf::from);
    if previous.is_none() {
        println!(
            "SKIPPED: upgrades: {PREVIOUS} does not name the program of the release before, which .ci/previous builds"
        );
    }
    previous
}
