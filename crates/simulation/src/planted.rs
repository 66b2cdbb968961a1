//! Tests the judge: bugs are planted, one at a time, and it must detect each of them.

use crate::bugs::Bug;
use crate::history::Rule;
use crate::run::run;

/// Maximum number of seeds until a bug is detected.
const SEEDS_MAX: u64 = 20_000;
/// The document with the table of bugs.
const DOCS: &str = include_str!("../../../docs/simulator.md");

/// How a bug was detected.
struct Caught {
    rule: Rule,
    seeds: u64,
}

/// Plants each bug; the judge must detect it as the table in `docs/simulator.md` says.
///
/// # Panics
///
/// If it does not.
pub fn check_planted_bugs() {
    let mut wrong = Vec::new();
    for bug in Bug::ALL {
        let Some(caught) = catch(bug) else {
            wrong.push(format!("{bug:?} is not caught in {SEEDS_MAX} seeds"));
            continue;
        };
        let row = row_of(bug, &caught);
        #[expect(
            clippy::disallowed_macros,
            reason = "the table is copied into the docs"
        )]
        {
            println!("{row}");
        }
        let documented = DOCS.lines().find(|line| line.contains(bug.describe()));
        if documented.is_none_or(|line| !is_true(line, &caught)) {
            wrong.push(format!("the docs should say: {row}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn catch(bug: Bug) -> Option<Caught> {
    (0..SEEDS_MAX).find_map(|seed| {
        let broken = run(seed, Some(bug), false).violation?;
        Some(Caught {
            rule: broken.rule,
            seeds: seed + 1,
        })
    })
}

fn row_of(bug: Bug, caught: &Caught) -> String {
    let (what, rule) = (bug.describe(), caught.rule.describe());
    format!("| {what} | {rule} | {} |", caught.seeds)
}

/// Whether a row of the table names the rule, and at least as many seeds as are needed. (A row
/// separates its rules by semicolons.)
fn is_true(line: &str, caught: &Caught) -> bool {
    let mut cells = line.split('|').map(str::trim).skip(2);
    let rule = cells.next().unwrap_or_default();
    let seeds = cells.next().unwrap_or_default().parse::<u64>();
    rule.contains(caught.rule.describe()) && seeds.is_ok_and(|seeds| caught.seeds <= seeds)
}
