//! Follows an operation after a verb.
//!
//! Its history says whether the scheduler has applied the verb; its state says the result once
//! nothing is left to do.

use std::time::Duration;

use tokio::time::Instant;
use waybill_api::view::{HistoryView, OperationView, VerbAcceptedView};

use super::api::{Api, ApiError};
use super::asking::Asking;
use super::line::{Outcome, Report};

/// The first and the longest pause between two reads of an operation.
const READ_EVERY_MIN: Duration = Duration::from_millis(100);
const READ_EVERY_MAX: Duration = Duration::from_secs(1);

/// An operation to which a verb was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Followed {
    /// The operation to which the verb was sent.
    pub(super) id: String,
    /// The operation that is followed: the same one, or the new one.
    id_awaited: String,
    asking: Asking,
    tenant: Option<String>,
    /// Its history before the verb.
    history: Vec<HistoryView>,
    /// Whether the verb may take effect without a new entry in the history.
    is_taken: bool,
    /// When to stop following it.
    pub(super) until: Instant,
}

impl Followed {
    pub(super) fn new(
        seen: Option<&OperationView>,
        asked: &VerbAcceptedView,
        asking: &Asking,
        tenant: Option<&str>,
        until: Instant,
    ) -> Self {
        let id_awaited = asked.resubmitted_as.unwrap_or(asked.id);
        Self {
            id: asked.id.to_string(),
            id_awaited: id_awaited.to_string(),
            asking: asking.clone(),
            tenant: tenant.map(str::to_owned),
            history: seen.map_or_else(Vec::new, |seen| seen.history.clone()),
            is_taken: asked.resubmitted_as.is_some()
                || seen.is_some_and(|seen| asking.is_under_way(seen)),
            until,
        }
    }

    /// The operation's current state; `None` if it does not exist yet.
    pub(super) async fn read(&self, api: &Api) -> Result<Option<OperationView>, ApiError> {
        match api.find(&self.id_awaited, self.tenant.as_deref()).await {
            Ok(found) => Ok(Some(found.operation)),
            Err(error) if error.is_unknown() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the operation until its result is known or the time is up.
    pub(super) async fn wait(&self, api: &Api) -> Result<Report, ApiError> {
        let mut pause = READ_EVERY_MIN;
        loop {
            let now = self.read(api).await?;
            if let Some(report) = now.as_ref().and_then(|now| self.report_of(now)) {
                return Ok(report);
            }
            if Instant::now() >= self.until {
                return Ok(self.given_up(now.as_ref()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(READ_EVERY_MAX);
        }
    }

    /// The result of the verb; `None` if not known yet.
    pub(super) fn report_of(&self, now: &OperationView) -> Option<Report> {
        let mut newest_first = now.history.iter().rev();
        let entry = newest_first
            .find(|entry| self.asking.matches(entry) && !self.history.contains(entry))
            .filter(|_| self.id_awaited == self.id);
        match entry {
            Some(HistoryView {
                refused: Some(code),
                ..
            }) => {
                let report = self.report(Outcome::Refused, Some(now));
                let note = match &report.note {
                    Some(next) => format!("{code}. {next}"),
                    None => code.clone(),
                };
                return Some(report.with_note(&note));
            }
            Some(_) => {}
            None if self.is_taken => {}
            None => return None,
        }
        if !now.is_at_rest() {
            return None;
        }
        let outcome = match self.asking.is_achieved(now) {
            true => Outcome::Done,
            false => Outcome::Failed,
        };
        Some(self.report(outcome, Some(now)))
    }

    /// The report after the time is up.
    pub(super) fn given_up(&self, now: Option<&OperationView>) -> Report {
        self.report(Outcome::Open, now)
    }

    /// The report for a verb whose result is not awaited.
    pub(super) fn asked(&self) -> Report {
        self.report(Outcome::Asked, None)
    }

    fn report(&self, outcome: Outcome, now: Option<&OperationView>) -> Report {
        let report = Report::new(&self.id, self.asking.verb, outcome);
        let report = match now {
            Some(now) => report.with_state(now),
            None => report,
        };
        // If the verb had no effect, the report says what the operation waits for.
        let next = now.and_then(|now| now.what_next.as_deref());
        let is_other = match outcome {
            Outcome::Failed | Outcome::Refused | Outcome::Open => true,
            Outcome::Asked | Outcome::Done | Outcome::Skipped => false,
        };
        let report = match next.filter(|_| is_other) {
            Some(next) => report.with_note(next),
            None => report,
        };
        match self.id_awaited == self.id {
            true => report,
            false => report.with_new(&self.id_awaited),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_api::verb::Verb;

    use super::*;

    const OLD: Uuid = Uuid::from_u128(1);
    const NEW: Uuid = Uuid::from_u128(2);

    fn entry(at: &str, verb: &str, refused: Option<&str>) -> HistoryView {
        HistoryView {
            at: at.to_owned(),
            verb: verb.to_owned(),
            refused: refused.map(str::to_owned),
            ..HistoryView::default()
        }
    }

    fn operation(state: &str, history: &[HistoryView]) -> OperationView {
        OperationView {
            id: OLD,
            state: state.to_owned().into(),
            history: history.to_vec(),
            ..OperationView::default()
        }
    }

    fn followed(verb: Verb, seen: &OperationView, new: Option<Uuid>) -> Followed {
        let asking = Asking {
            verb,
            step: None,
            reason: None,
            by: None,
        };
        let asked = VerbAcceptedView {
            id: OLD,
            resubmitted_as: new,
            ..VerbAcceptedView::default()
        };
        Followed::new(Some(seen), &asked, &asking, None, Instant::now())
    }

    fn outcome(followed: &Followed, now: &OperationView) -> Option<Outcome> {
        followed.report_of(now).map(|report| report.outcome)
    }

    #[test]
    fn a_result_is_known_once_the_verb_is_in_the_history_and_nothing_runs() {
        let before = entry("1", "resubmit", None);
        let after = entry("2", "resubmit", None);
        let followed = followed(
            Verb::Resubmit,
            &operation("Error", std::slice::from_ref(&before)),
            None,
        );
        let now = |state: &str, history: &[&HistoryView]| {
            let history: Vec<_> = history.iter().copied().cloned().collect();
            outcome(&followed, &operation(state, &history))
        };
        // As before the verb: parked, and with an older resubmission.
        assert_eq!(now("Error", &[&before]), None);
        assert_eq!(now("Processing", &[&before, &after]), None);
        assert_eq!(now("Processed", &[&before, &after]), Some(Outcome::Done));
        assert_eq!(now("Error", &[&before, &after]), Some(Outcome::Failed));
        assert_eq!(
            now("Compensated", &[&before, &after]),
            Some(Outcome::Failed)
        );
    }

    #[test]
    fn a_refusal_by_the_scheduler_is_reported_with_its_code_in_any_state() {
        let seen = operation("Error", &[]);
        let followed = followed(Verb::Cancel, &seen, None);
        let refused = entry("2", "cancel", Some("past-pivot"));
        let report = followed
            .report_of(&operation("Processing", &[refused]))
            .unwrap();
        assert_eq!(report.outcome, Outcome::Refused);
        assert_eq!(report.note.as_deref(), Some("past-pivot"));
    }

    #[test]
    fn an_operation_that_waits_for_something_else_is_reported() {
        let seen = operation("Processing", &[]);
        let followed = followed(Verb::Cancel, &seen, None);
        let waits = "Waiting for an operator: resubmit.";
        let now = |state: &str, refused: Option<&str>| OperationView {
            what_next: Some(waits.to_owned()),
            ..operation(state, &[entry("2", "cancel", refused)])
        };
        let note = |report: Report| report.note;
        assert_eq!(
            followed
                .report_of(&now("Error", Some("past-pivot")))
                .and_then(note),
            Some(format!("past-pivot. {waits}"))
        );
        assert_eq!(
            followed
                .report_of(&now("CompensationFailed", None))
                .and_then(note),
            Some(waits.to_owned())
        );
        assert_eq!(
            note(followed.given_up(Some(&now("Compensating", None)))),
            Some(waits.to_owned())
        );
        assert_eq!(
            followed.report_of(&now("Cancelled", None)).and_then(note),
            None
        );
    }

    #[test]
    fn a_verb_in_progress_needs_no_history_entry() {
        let seen = operation("Compensating", &[]);
        let followed = followed(Verb::Compensate, &seen, None);
        assert_eq!(outcome(&followed, &seen), None);
        let now = operation("Compensated", &[]);
        assert_eq!(outcome(&followed, &now), Some(Outcome::Done));
    }

    #[test]
    fn a_resubmission_as_new_is_done_when_the_new_operation_is() {
        let seen = operation("Compensated", &[]);
        let followed = followed(Verb::ResubmitAsNew, &seen, Some(NEW));
        assert_eq!(outcome(&followed, &operation("Pending", &[])), None);
        let report = followed.report_of(&operation("Processed", &[])).unwrap();
        assert_eq!(report.outcome, Outcome::Done);
        assert_eq!(report.id, OLD.to_string());
        assert_eq!(report.resubmitted_as, Some(NEW.to_string()));
        let again = followed.report_of(&operation("Compensated", &[])).unwrap();
        assert_eq!(again.outcome, Outcome::Failed);
    }
}
