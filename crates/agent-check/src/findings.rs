//! The observations about each rule, and the resulting verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::rule::Rule;

/// The largest number of faults to quote for one rule.
const QUOTED_MAX: usize = 3;

/// Whether a rule is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was tried, without a fault.
    Pass,
    /// A fault was observed.
    Fail,
    /// It could not be tried, or was skipped.
    NotTried,
}

impl Verdict {
    /// Its name, for programs and people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotTried => "not tried",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The verdict on one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Whether it is kept.
    pub verdict: Verdict,
    /// The observations, or why it was not tried.
    pub seen: String,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// One finding for each rule, in the order of [`Rule::ALL`].
    pub findings: Vec<Finding>,
    /// The number of operations whose step the agent was asked to perform.
    pub operations: usize,
    /// How many of them may still have an effect, because they could not be undone.
    pub left: usize,
}

impl Report {
    /// Whether no rule was broken.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.broken().is_empty()
    }

    /// The rules that were broken.
    #[must_use]
    pub fn broken(&self) -> Vec<Rule> {
        let broken = |finding: &&Finding| finding.verdict == Verdict::Fail;
        let findings = self.findings.iter().filter(broken);
        findings.map(|finding| finding.rule).collect()
    }
}

/// Collects observations.
#[derive(Debug)]
pub(super) struct Findings {
    marks: BTreeMap<Rule, Marks>,
    without: BTreeSet<Rule>,
}

#[derive(Debug, Default)]
struct Marks {
    seen: Vec<String>,
    faults: Vec<String>,
    faults_more: usize,
    excuse: Option<String>,
}

impl Findings {
    pub(super) fn new(without: BTreeSet<Rule>) -> Self {
        Self {
            marks: BTreeMap::new(),
            without,
        }
    }

    /// Records an observation of the rule being kept.
    pub(super) fn saw(&mut self, rule: Rule, what: impl Into<String>) {
        self.marks(rule).seen.push(what.into());
    }

    /// Records a violation of the rule.
    pub(super) fn fault(&mut self, rule: Rule, what: impl Into<String>) {
        let marks = self.marks(rule);
        if marks.faults.len() < QUOTED_MAX {
            marks.faults.push(what.into());
        } else {
            marks.faults_more += 1;
        }
    }

    /// Records why the rule is not tried. Keeps earlier observations.
    pub(super) fn excuse(&mut self, rule: Rule, why: impl Into<String>) {
        self.marks(rule).excuse.get_or_insert(why.into());
    }

    pub(super) fn is_broken(&self, rule: Rule) -> bool {
        let marks = self.marks.get(&rule);
        marks.is_some_and(|marks| !marks.faults.is_empty())
    }

    pub(super) fn into_findings(mut self) -> Vec<Finding> {
        Rule::ALL
            .into_iter()
            .map(|rule| {
                let marks = self.marks.remove(&rule).unwrap_or_default();
                let (verdict, seen) = if self.without.contains(&rule) {
                    (Verdict::NotTried, "skipped".to_owned())
                } else {
                    marks.verdict()
                };
                Finding {
                    rule,
                    verdict,
                    seen,
                }
            })
            .collect()
    }

    fn marks(&mut self, rule: Rule) -> &mut Marks {
        self.marks.entry(rule).or_default()
    }
}

impl Marks {
    fn verdict(self) -> (Verdict, String) {
        if !self.faults.is_empty() {
            let mut seen = self.faults.join("; ");
            if self.faults_more > 0 {
                seen.push_str(&format!("; and {} more", self.faults_more));
            }
            return (Verdict::Fail, seen);
        }
        match self.excuse {
            Some(why) => (Verdict::NotTried, why),
            None if self.seen.is_empty() => (
                Verdict::NotTried,
                "the check ended before this rule".to_owned(),
            ),
            None => (Verdict::Pass, self.seen.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(findings: Findings) -> Vec<(Verdict, String)> {
        let of_interest = [Rule::Answer, Rule::Echo, Rule::Undo, Rule::Burst];
        let findings = findings.into_findings().into_iter();
        findings
            .filter(|finding| of_interest.contains(&finding.rule))
            .map(|finding| (finding.verdict, finding.seen))
            .collect()
    }

    #[test]
    fn a_fault_outweighs_observations_and_excuses() {
        let mut findings = Findings::new(BTreeSet::from([Rule::Burst]));
        findings.saw(Rule::Answer, "yes");
        findings.saw(Rule::Echo, "yes");
        findings.excuse(Rule::Echo, "cannot");
        findings.fault(Rule::Burst, "no");
        for _ in 0..5 {
            findings.fault(Rule::Undo, "no");
        }
        findings.excuse(Rule::Undo, "cannot");
        assert!(findings.is_broken(Rule::Undo) && !findings.is_broken(Rule::Answer));
        assert_eq!(
            verdicts(findings),
            [
                (Verdict::Pass, "yes".to_owned()),
                (Verdict::NotTried, "cannot".to_owned()),
                (Verdict::Fail, "no; no; no; and 2 more".to_owned()),
                (Verdict::NotTried, "skipped".to_owned()),
            ]
        );
    }

    #[test]
    fn an_unobserved_rule_does_not_pass() {
        let report = Report {
            findings: Findings::new(BTreeSet::new()).into_findings(),
            operations: 0,
            left: 0,
        };
        assert_eq!(report.findings.len(), Rule::ALL.len());
        assert!(
            report
                .findings
                .iter()
                .all(|finding| finding.verdict == Verdict::NotTried)
        );
        assert!(report.is_passed());
    }
}
