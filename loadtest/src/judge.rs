//! The judge: accepted deliveries, their final states and the services' ledger, held against each
//! other from outside.
//!
//! What must balance: every accepted delivery ended or is parked; no effect was made twice; of a
//! processed one exactly the effects of a delivery stand, of one that was undone or cancelled
//! nothing. A parked one waits for a person, and anything may stand of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use waybill_engine::{OperationId, ProcessState};

use crate::client::Client;
use crate::completion::Completions;
use crate::delivery::Delivery;

/// How many operations of the ledger are asked for at once.
const PAGE_OPERATIONS: usize = 10_000;
/// How many findings of a kind are shown.
const EXAMPLES_MAX: usize = 5;
/// How long to wait before what did not balance is judged again.
const REST: Duration = Duration::from_secs(1);

/// What the judge found.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    judged: usize,
    lost: Findings,
    double: Findings,
    half_undone: Findings,
    /// Not a fault.
    parked: Findings,
}

/// Findings of one kind.
#[derive(Default, Serialize)]
struct Findings {
    count: usize,
    examples: Vec<String>,
}

/// What the ledger knows of one operation.
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

/// Judges what was accepted, by the ledger of the services at `services`. What does not balance is
/// judged again until `deadline`: something late may be being undone.
pub async fn judge(
    completions: &Completions,
    services: SocketAddr,
    deadline: Instant,
) -> anyhow::Result<Verdict> {
    loop {
        let verdict = judge_once(completions, services)
            .await
            .context("the ledger cannot be read")?;
        if verdict.is_balanced() || Instant::now() >= deadline {
            return Ok(verdict);
        }
        tokio::time::sleep(REST).await;
    }
}

async fn judge_once(completions: &Completions, services: SocketAddr) -> anyhow::Result<Verdict> {
    let mut judge = Judge::of(completions.states());
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
            // Names of operations need no escaping: they are UUIDs.
            Some(last) if count == PAGE_OPERATIONS => {
                path = format!("/ledger/operations?limit={PAGE_OPERATIONS}&after={last}");
            }
            Some(_) | None => return Ok(judge.end()),
        }
    }
}

struct Judge {
    /// What was accepted and not met in the ledger yet.
    open: HashMap<OperationId, (Delivery, Option<ProcessState>)>,
    verdict: Verdict,
}

impl Judge {
    fn of(accepted: HashMap<OperationId, (Delivery, Option<ProcessState>)>) -> Self {
        let verdict = Verdict {
            judged: accepted.len(),
            ..Verdict::default()
        };
        Self {
            open: accepted,
            verdict,
        }
    }

    /// Takes what the ledger knows of one operation. Those of others are none of the judge's business.
    fn operation(&mut self, effects: &Effects<'_>) {
        let accepted = effects.operation.parse().ok();
        if let Some((id, (delivery, state))) = accepted.and_then(|id| self.open.remove_entry(&id)) {
            self.verdict.add(id, delivery, state, effects);
        }
    }

    fn end(mut self) -> Verdict {
        let nothing = Effects::default();
        for (id, (delivery, state)) in self.open {
            self.verdict.add(id, delivery, state, &nothing);
        }
        self.verdict
    }
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn is_balanced(&self) -> bool {
        self.lost.count == 0 && self.double.count == 0 && self.half_undone.count == 0
    }

    fn add(
        &mut self,
        id: OperationId,
        delivery: Delivery,
        state: Option<ProcessState>,
        effects: &Effects<'_>,
    ) {
        let is_half_undone = match state {
            Some(ProcessState::Processed) => !effects.are_those_of(delivery),
            Some(ProcessState::Compensated | ProcessState::Cancelled) => {
                !effects.standing.is_empty()
            }
            Some(ProcessState::Error | ProcessState::CompensationFailed) => {
                self.parked.add(id, state, effects);
                false
            }
            Some(ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating)
            | None => {
                self.lost.add(id, state, effects);
                false
            }
        };
        if is_half_undone {
            self.half_undone.add(id, state, effects);
        }
        if !effects.double.is_empty() {
            self.double.add(id, state, effects);
        }
    }
}

impl Effects<'_> {
    /// Whether exactly the effects of this delivery stand, and nothing was ever undone.
    fn are_those_of(&self, delivery: Delivery) -> bool {
        let mut standing: Vec<&str> = self.standing.iter().map(|step| &**step).collect();
        standing.sort_unstable();
        standing == delivery.effects() && self.undone.is_empty() && self.barred.is_empty()
    }
}

impl Findings {
    fn add(&mut self, id: OperationId, state: Option<ProcessState>, effects: &Effects<'_>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let state = state.map_or("no final state", ProcessState::as_str);
            self.examples.push(format!("{id}: {state}; {effects}"));
        }
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("LOST", &self.lost),
            ("DOUBLE", &self.double),
            ("HALF-UNDONE", &self.half_undone),
            ("parked", &self.parked),
        ];
        for (name, findings) in kinds.iter().filter(|(_, findings)| findings.count > 0) {
            writeln!(f, "{name:<11} {}", findings.count)?;
            for example in &findings.examples {
                writeln!(f, "  {example}")?;
            }
        }
        if self.is_balanced() {
            writeln!(f, "BALANCED    {} deliveries", self.judged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> OperationId {
        OperationId::of_caller("", &number.to_string())
    }

    /// Judges one delivery by drone: its state, and what the ledger knows of it.
    fn verdict(state: Option<ProcessState>, ledger: Option<&str>) -> Verdict {
        let id = id(7);
        let mut judge = Judge::of(HashMap::from([(id, (Delivery::new(1), state))]));
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
    fn each_state_is_held_against_what_has_to_stand_of_it() {
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
            let verdict = verdict(state, ledger);
            assert_eq!(counts(&verdict), expected, "{state:?} with {ledger:?}");
            assert_eq!(verdict.is_balanced(), expected[..3] == [0, 0, 0]);
        }
    }

    #[test]
    fn what_was_not_accepted_is_not_judged() {
        let mut judge = Judge::of(HashMap::new());
        let other = id(8);
        let line = format!(r#"{{"operation":"{other}",{TWICE}}}"#);
        judge.operation(&serde_json::from_str(&line).expect("a line of the ledger"));
        let verdict = judge.end();
        assert!(verdict.is_balanced());
        assert_eq!(verdict.to_string(), "BALANCED    0 deliveries\n");
    }

    #[test]
    fn a_finding_is_counted_however_many_there_are_and_shown_a_few_times() {
        let ids = (0..8).map(id);
        let accepted = ids.map(|id| (id, (Delivery::new(1), None)));
        let verdict = Judge::of(accepted.collect()).end();
        let text = verdict.to_string();
        assert!(text.starts_with("LOST        8\n"), "{text}");
        assert_eq!(text.matches("nothing in the ledger").count(), EXAMPLES_MAX);
        assert!(!text.contains("BALANCED"), "{text}");
    }
}
