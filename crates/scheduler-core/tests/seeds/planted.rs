//! Tests the judge: bugs are planted, one at a time, and it must detect each of them.

use crate::bugs::Bug;
use crate::run::run;

/// Maximum number of seeds until a bug is detected.
const SEEDS_MAX: u64 = 100;

#[test]
fn every_planted_bug_is_caught() {
    let mut wrong = Vec::new();
    for bug in Bug::ALL {
        let what = bug.describe();
        let caught = (0..SEEDS_MAX).find_map(|seed| Some((seed, run(seed, Some(bug)).broken?)));
        let Some((seed, broken)) = caught else {
            wrong.push(format!("\"{what}\" is not caught in {SEEDS_MAX} seeds"));
            continue;
        };
        #[expect(clippy::disallowed_macros, reason = "shows what the judge is worth")]
        {
            println!("{what}: {:?} after {} seeds", broken.rule, seed + 1);
        }
        if !bug.breaks().contains(&broken.rule) {
            wrong.push(format!("\"{what}\" is caught by {broken:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
