//! The judge: compares accepted deliveries, their final states and the services' ledger, from
//! outside.
//!
//! What must balance: every accepted delivery ended or is parked, and no effect was made twice. A
//! processed one has exactly the effects of its kind; an undone or cancelled one has none. A parked
//! one may have any effects. A kind that may never be processed must have no effects.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::StatusCode;
use serde::Deserialize;
use waybill_engine::{OperationId, ProcessState};

use crate::load::client::Client;
use crate::results::RunResults;
use crate::scenario::kind::Kind;
use crate::verdict::{Findings, Verdict};

/// The page size of requests to the ledger.
const PAGE_OPERATIONS: usize = 10_000;
/// The maximum number of examples for each kind of finding.
const EXAMPLES_MAX: usize = 5;
/// The pause before an unbalanced delivery is judged again.
const PAUSE: Duration = Duration::from_secs(1);

/// The ledger's entry for one operation.
#[derive(Default, Deserialize)]
struct Effects<'a> {
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    standing: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    undone: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    barred: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    double: Vec<Cow<'a, str>>,
}

/// Judges accepted deliveries by the ledger of the services at `services`. Unbalanced ones are
/// judged again until `deadline`, because compensation may still be running.
///
/// # Errors
///
/// If the ledger cannot be read.
pub async fn judge(
    results: &RunResults,
    services: SocketAddr,
    deadline: Instant,
) -> anyhow::Result<Verdict> {
    loop {
        let verdict = judge_once(results, services)
            .await
            .context("cannot read the ledger")?;
        if verdict.is_balanced() || Instant::now() >= deadline {
            return Ok(verdict);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn judge_once(results: &RunResults, services: SocketAddr) -> anyhow::Result<Verdict> {
    let mut judge = Judge::of(results.states());
    let mut client = Client::new(services);
    let mut path = format!("/ledger/operations?limit={PAGE_OPERATIONS}");
    loop {
        let (status, body) = client.get(&path).await?;
        anyhow::ensure!(
            status == StatusCode::OK,
            "{services} answered {status}: {}",
            String::from_utf8_lossy(&body)
        );
        let mut last = None;
        let mut count = 0;
        for line in body.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            let effects: Effects<'_> = serde_json::from_slice(line)
                .with_context(|| String::from_utf8_lossy(line).into_owned())?;
            judge.operation(&effects);
            last = Some(effects.operation);
            count += 1;
        }
        match last {
            // Operation IDs need no escaping: they are UUIDs.
            Some(last) if count == PAGE_OPERATIONS => {
                path = format!("/ledger/operations?limit={PAGE_OPERATIONS}&after={last}");
            }
            Some(_) | None => return Ok(judge.end()),
        }
    }
}

struct Judge {
    /// Accepted deliveries that the ledger has not returned yet.
    open: HashMap<OperationId, (Kind, Option<ProcessState>)>,
    verdict: Verdict,
}

impl Judge {
    fn of(accepted: HashMap<OperationId, (Kind, Option<ProcessState>)>) -> Self {
        let verdict = Verdict {
            judged: accepted.len(),
            ..Verdict::default()
        };
        Self {
            open: accepted,
            verdict,
        }
    }

    /// Judges the ledger's entry for one operation. Operations of other runs are ignored.
    fn operation(&mut self, effects: &Effects<'_>) {
        let accepted = effects.operation.parse().ok();
        if let Some((id, (kind, state))) = accepted.and_then(|id| self.open.remove_entry(&id)) {
            self.verdict.add(id, kind, state, effects);
        }
    }

    fn end(mut self) -> Verdict {
        let nothing = Effects::default();
        for (id, (kind, state)) in self.open {
            self.verdict.add(id, kind, state, &nothing);
        }
        self.verdict
    }
}

impl Effects<'_> {
    /// Whether the existing effects are exactly those of this delivery, and nothing was undone.
    fn are_those_of(&self, kind: Kind) -> bool {
        let mut standing: Vec<&str> = self.standing.iter().map(|step| &**step).collect();
        standing.sort_unstable();
        kind.effects().is_some_and(|effects| standing == effects)
            && self.undone.is_empty()
            && self.barred.is_empty()
    }
}

impl fmt::Display for Effects<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("standing", &self.standing),
            ("undone", &self.undone),
            ("barred", &self.barred),
            ("double", &self.double),
        ];
        let mut lists = lists.iter().filter(|(_, steps)| !steps.is_empty());
        let Some((name, steps)) = lists.next() else {
            return f.write_str("nothing in the ledger");
        };
        write!(f, "{name} {}", steps.join(", "))?;
        lists.try_for_each(|(name, steps)| write!(f, "; {name} {}", steps.join(", ")))
    }
}

impl Verdict {
    fn add(
        &mut self,
        id: OperationId,
        kind: Kind,
        state: Option<ProcessState>,
        effects: &Effects<'_>,
    ) {
        let is_half_undone = match state {
            Some(ProcessState::Processed) => !effects.are_those_of(kind),
            Some(ProcessState::Compensated | ProcessState::Cancelled) => {
                !effects.standing.is_empty()
            }
            Some(ProcessState::Error | ProcessState::CompensationFailed) => {
                self.parked.add(id, kind, state, effects);
                false
            }
            Some(ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating)
            | None => {
                self.lost.add(id, kind, state, effects);
                false
            }
        };
        if is_half_undone {
            self.half_undone.add(id, kind, state, effects);
        }
        if !effects.double.is_empty() {
            self.double.add(id, kind, state, effects);
        }
    }
}

impl Findings {
    fn add(
        &mut self,
        id: OperationId,
        kind: Kind,
        state: Option<ProcessState>,
        effects: &Effects<'_>,
    ) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let state = state.map_or("no final state", ProcessState::as_str);
            self.examples
                .push(format!("{id} ({}): {state}; {effects}", kind.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> OperationId {
        OperationId::of_caller("", &number.to_string())
    }

    /// Judges one delivery by its kind, its state and the ledger's entry.
    fn verdict(kind: Kind, state: Option<ProcessState>, ledger: Option<&str>) -> Verdict {
        let id = id(7);
        let mut judge = Judge::of(HashMap::from([(id, (kind, state))]));
        if let Some(ledger) = ledger {
            let line = format!(r#"{{"operation":"{id}",{ledger}}}"#);
            judge.operation(&serde_json::from_str(&line).expect("a line of the ledger"));
        }
        judge.end()
    }

    fn counts(verdict: &Verdict) -> [usize; 4] {
        let Verdict {
            lost,
            double,
            half_undone,
            parked,
            judged,
        } = verdict;
        assert_eq!(*judged, 1);
        [lost, double, half_undone, parked].map(|findings| findings.count)
    }

    const WHOLE: &str =
        r#""standing":["package","drone","delivery"],"undone":[],"barred":[],"double":[]"#;
    const PART: &str = r#""standing":["package"],"undone":["drone"],"barred":[],"double":[]"#;
    const UNDONE: &str =
        r#""standing":[],"undone":["package","drone"],"barred":["delivery"],"double":[]"#;
    const BARRED: &str =
        r#""standing":["package","drone","delivery"],"undone":[],"barred":["x"],"double":[]"#;
    const TWICE: &str =
        r#""standing":["package","drone","delivery"],"undone":[],"barred":[],"double":["drone"]"#;
    const BY_OTHERS: &str =
        r#""standing":["package","third-party","delivery"],"undone":[],"barred":[],"double":[]"#;

    #[test]
    fn each_state_is_compared_with_its_required_effects() {
        use ProcessState as S;
        let balanced = [0, 0, 0, 0];
        let lost = [1, 0, 0, 0];
        let half_undone = [0, 0, 1, 0];
        let parked = [0, 0, 0, 1];
        for (state, ledger, expected) in [
            (Some(S::Processed), Some(WHOLE), balanced),
            (Some(S::Processed), Some(TWICE), [0, 1, 0, 0]),
            (Some(S::Processed), Some(PART), half_undone),
            (Some(S::Processed), Some(BARRED), half_undone),
            (Some(S::Processed), Some(BY_OTHERS), half_undone),
            (Some(S::Processed), None, half_undone),
            (Some(S::Compensated), Some(UNDONE), balanced),
            (Some(S::Compensated), Some(PART), half_undone),
            (Some(S::Compensated), None, balanced),
            (Some(S::Cancelled), Some(UNDONE), balanced),
            (Some(S::Cancelled), Some(WHOLE), half_undone),
            (Some(S::Error), Some(PART), parked),
            (Some(S::CompensationFailed), Some(PART), parked),
            (Some(S::CompensationFailed), Some(TWICE), [0, 1, 0, 1]),
            (Some(S::Compensating), Some(PART), lost),
            (None, Some(WHOLE), lost),
            (None, None, lost),
        ] {
            let verdict = verdict(Kind::Drone, state, ledger);
            assert_eq!(counts(&verdict), expected, "{state:?} with {ledger:?}");
            assert_eq!(verdict.is_balanced(), expected[..3] == [0, 0, 0]);
        }
    }

    #[test]
    fn each_kind_is_held_to_the_effects_that_it_may_have() {
        use ProcessState as S;
        for (kind, state, ledger, is_balanced) in [
            (Kind::Remote, S::Processed, Some(BY_OTHERS), true),
            (Kind::Remote, S::Processed, Some(WHOLE), false),
            (Kind::Repeated, S::Processed, Some(WHOLE), true),
            (Kind::Cancelled, S::Processed, Some(WHOLE), true),
            (Kind::Cancelled, S::Cancelled, Some(UNDONE), true),
            (Kind::Cancelled, S::Cancelled, Some(PART), false),
            (Kind::Suspended, S::Compensated, None, true),
            (Kind::Suspended, S::Compensated, Some(PART), false),
            (Kind::Suspended, S::Processed, Some(WHOLE), false),
            (Kind::Suspended, S::Processed, None, false),
        ] {
            let verdict = verdict(kind, Some(state), ledger);
            assert_eq!(
                verdict.is_balanced(),
                is_balanced,
                "{kind:?} {state:?} {ledger:?}"
            );
            assert_eq!(verdict.half_undone.count, usize::from(!is_balanced));
        }
    }

    #[test]
    fn each_finding_has_a_name() {
        let message = |state, ledger| verdict(Kind::Drone, state, ledger).to_string();
        assert!(message(None, None).starts_with("LOST        1\n"));
        assert!(message(Some(ProcessState::Processed), Some(TWICE)).starts_with("DOUBLE      1\n"));
        assert!(message(Some(ProcessState::Cancelled), Some(PART)).starts_with("HALF-UNDONE 1\n"));
        assert!(message(Some(ProcessState::Processed), Some(WHOLE)).starts_with("BALANCED    1 "));
    }

    #[test]
    fn unaccepted_requests_are_not_judged() {
        let mut judge = Judge::of(HashMap::new());
        let other = id(8);
        let line = format!(r#"{{"operation":"{other}",{TWICE}}}"#);
        judge.operation(&serde_json::from_str(&line).expect("a line of the ledger"));
        let verdict = judge.end();
        assert!(verdict.is_balanced());
        assert_eq!(verdict.to_string(), "BALANCED    0 deliveries\n");
    }

    #[test]
    fn every_finding_is_counted_and_a_few_are_shown() {
        let ids = (0..8).map(id);
        let accepted = ids.map(|id| (id, (Kind::Drone, None)));
        let verdict = Judge::of(accepted.collect()).end();
        let text = verdict.to_string();
        assert!(text.starts_with("LOST        8\n"), "{text}");
        assert_eq!(text.matches("nothing in the ledger").count(), EXAMPLES_MAX);
        assert!(!text.contains("BALANCED"), "{text}");
    }
}
