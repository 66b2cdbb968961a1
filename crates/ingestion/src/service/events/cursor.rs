//! Which events of an operation a client has received, and which ones a row adds.
//!
//! The text of an [`EventCursor`] is the id of an event: the process state as a digit, and for each
//! step its state as a letter and its attempt as a number, such as `1.C1R2N0`. The id alone
//! determines which events are still to be sent, whatever was lost: no clock is compared, and no
//! state is kept.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use bytes::Bytes;
use waybill_api::view::{ErrorView, EventView};
use waybill_clock::time_text;
use waybill_engine::{OperationId, OperationRow, ProcessState, StepState, Timestamp};

/// The most steps that an id may name: the most that a workflow may have.
const STEPS_MAX: usize = 64;

/// The events that were sent: the operation's state, and the state and attempt of each step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventCursor {
    /// `None` before the event `received` was sent.
    state: Option<ProcessState>,
    /// Steps beyond the last one are not started.
    steps: Vec<(StepState, u32)>,
}

/// The text is not the id of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadEventId;

/// The only event of a request whose id another request took. It has no id: there is nothing to
/// resume.
pub fn rejected(operation: OperationId) -> Bytes {
    let data = EventView {
        error: Some(ErrorView {
            code: "id-conflict".to_owned(),
            message: "an earlier, different request has this id".to_owned(),
            step: None,
        }),
        ..of_operation(operation, "final", "Rejected", None)
    };
    piece(None, &data)
}

impl EventCursor {
    /// The events that a row adds, each as a piece of the stream, in the order in which they
    /// happened as far as is known: a new state of the operation before the changes of its steps in
    /// that state, its end after them.
    pub fn events(&mut self, row: &OperationRow) -> Vec<Bytes> {
        let (id, state) = (row.id, &row.state);
        let mut events = Vec::new();
        if self.state.is_none() {
            let processing = ProcessState::Processing;
            self.state = Some(processing);
            let at = row.created.created_at;
            let data = of_operation(id, "received", processing.as_str(), Some(at));
            events.push(piece(Some(self), &data));
        }
        let is_sent = self.is_all_of(row);
        if self.state != Some(state.state) && !state.state.is_final() {
            self.state = Some(state.state);
            let data = of_operation(id, "state", state.state.as_str(), Some(state.updated_at));
            events.push(piece(Some(self), &data));
        }
        let mut changed: Vec<usize> = (0..state.steps.len())
            .filter(|index| self.step(*index) != now_at(row, *index))
            .collect();
        changed.sort_by_key(|index| state.steps[*index].changed_at);
        for index in changed {
            self.push_step(row, index);
            let (name, step) = (&row.created.step_names[index], &state.steps[index]);
            let error = step.error.as_ref().filter(|_| is_failure(step.state));
            let data = EventView {
                step: Some(name),
                attempt: Some(step.attempt.0),
                action: step.was_asked_for().then(|| step.action.as_str()),
                error: error.map(ErrorView::of_step),
                ..of_operation(id, "step", step.state.as_str(), Some(step.changed_at))
            };
            events.push(piece(Some(self), &data));
        }
        if state.state.is_final() && !is_sent {
            self.state = Some(state.state);
            let data = EventView {
                error: state.failure().map(ErrorView::of_operation),
                ..of_operation(id, "final", state.state.as_str(), Some(state.updated_at))
            };
            events.push(piece(Some(self), &data));
        }
        events
    }

    /// Whether every event of the row was sent, its end included.
    pub fn is_all_of(&self, row: &OperationRow) -> bool {
        let state = row.state.state;
        state.is_final()
            && self.state == Some(state)
            && (0..row.state.steps.len()).all(|index| self.step(index) == now_at(row, index))
    }

    fn step(&self, index: usize) -> (StepState, u32) {
        self.steps.get(index).copied().unwrap_or_default()
    }

    fn push_step(&mut self, row: &OperationRow, index: usize) {
        if self.steps.len() <= index {
            self.steps.resize(index + 1, (StepState::NotStarted, 0));
        }
        self.steps[index] = now_at(row, index);
    }
}

fn now_at(row: &OperationRow, index: usize) -> (StepState, u32) {
    let step = &row.state.steps[index];
    (step.state, step.attempt.0)
}

fn is_failure(state: StepState) -> bool {
    matches!(
        state,
        StepState::Failed | StepState::TimedOut | StepState::Compensating
    )
}

fn of_operation(
    operation: OperationId,
    kind: &'static str,
    state: &'static str,
    at: Option<Timestamp>,
) -> EventView<'static> {
    EventView {
        operation,
        kind,
        state,
        step: None,
        attempt: None,
        action: None,
        error: None,
        at: at.map(time_text),
    }
}

/// An event as text of the stream. Its data is one line: JSON contains no line breaks.
fn piece(id: Option<&EventCursor>, data: &EventView<'_>) -> Bytes {
    let json = serde_json::to_string(data).expect("strings and numbers always serialize");
    let kind = data.kind;
    match id {
        Some(id) => format!("id: {id}\nevent: {kind}\ndata: {json}\n\n").into(),
        None => format!("event: {kind}\ndata: {json}\n\n").into(),
    }
}

/// The letters of step states. They are part of ids that clients keep, and never change.
const LETTERS: [(StepState, char); 8] = [
    (StepState::NotStarted, 'N'),
    (StepState::Running, 'R'),
    (StepState::Completed, 'C'),
    (StepState::Failed, 'F'),
    (StepState::TimedOut, 'T'),
    (StepState::Skipped, 'S'),
    (StepState::Compensating, 'B'),
    (StepState::Compensated, 'U'),
];

/// The digits of process states. They never change either.
const DIGITS: [(ProcessState, char); 7] = [
    (ProcessState::Processing, '1'),
    (ProcessState::Processed, '2'),
    (ProcessState::Error, '3'),
    (ProcessState::Compensating, '4'),
    (ProcessState::Compensated, '5'),
    (ProcessState::Cancelled, '6'),
    (ProcessState::CompensationFailed, '7'),
];

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = DIGITS.iter();
        let digit = digits.find(|(state, _)| Some(*state) == self.state);
        f.write_char(digit.map_or('0', |(_, digit)| *digit))?;
        f.write_char('.')?;
        for (state, attempt) in &self.steps {
            let mut letters = LETTERS.iter();
            let letter = letters.find(|(known, _)| known == state);
            f.write_char(letter.map_or('N', |(_, letter)| *letter))?;
            write!(f, "{attempt}")?;
        }
        Ok(())
    }
}

impl FromStr for EventCursor {
    type Err = BadEventId;

    fn from_str(text: &str) -> Result<Self, BadEventId> {
        let (digit, mut rest) = text.split_once('.').ok_or(BadEventId)?;
        let state = match digit {
            "0" => None,
            _ => {
                let mut digits = DIGITS.iter();
                let known = digits.find(|(_, known)| known.to_string() == digit);
                Some(known.ok_or(BadEventId)?.0)
            }
        };
        let mut steps = Vec::new();
        while let Some(letter) = rest.chars().next() {
            let mut letters = LETTERS.iter();
            let known = letters.find(|(_, known)| *known == letter);
            let (state, _) = known.ok_or(BadEventId)?;
            rest = &rest[letter.len_utf8()..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let attempt = rest[..digits].parse().map_err(|_| BadEventId)?;
            rest = &rest[digits..];
            if steps.len() == STEPS_MAX {
                return Err(BadEventId);
            }
            steps.push((*state, attempt));
        }
        Ok(Self { state, steps })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;
    use waybill_engine::{Attempt, OperationError, StepError, StepProgress};

    use super::*;
    use waybill_test_support::rows::row;

    /// The (type, step, state) of each event, and the id of the last.
    fn send(
        cursor: &mut EventCursor,
        row: &OperationRow,
    ) -> (Vec<(String, String, String)>, String) {
        let mut last = String::new();
        let events = cursor.events(row).into_iter().map(|piece| {
            let text = std::str::from_utf8(&piece).unwrap().to_owned();
            let (id, rest) = text.strip_prefix("id: ").unwrap().split_once('\n').unwrap();
            last = id.to_owned();
            let data = rest.split_once("data: ").unwrap().1;
            let data: Value = serde_json::from_str(data.trim_end()).unwrap();
            let word = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
            (word("type"), word("step"), word("state"))
        });
        (events.collect(), last)
    }

    fn words(events: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
        let owned = events
            .iter()
            .map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string()));
        owned.collect()
    }

    fn step(state: StepState, attempt: u32, changed_at: i64) -> StepProgress {
        StepProgress {
            state,
            attempt: Attempt(attempt),
            changed_at: Timestamp(changed_at),
            ..StepProgress::default()
        }
    }

    #[test]
    fn each_step_event_is_sent_once_in_order_and_the_end_last() {
        let mut cursor = EventCursor::default();
        let mut row = row(ProcessState::Processing, &["a", "b"]);
        row.state.steps = vec![
            step(StepState::Running, 1, 5),
            step(StepState::NotStarted, 0, 0),
        ];
        let (events, id) = send(&mut cursor, &row);
        assert_eq!(
            events,
            words(&[("received", "", "Processing"), ("step", "a", "Running")])
        );
        assert_eq!(id, "1.R1");
        assert_eq!(send(&mut cursor, &row).0, []);

        row.state.state = ProcessState::Processed;
        row.state.steps = vec![
            step(StepState::Completed, 1, 9),
            step(StepState::Skipped, 0, 8),
        ];
        assert!(!cursor.is_all_of(&row));
        let (events, id) = send(&mut cursor, &row);
        let expected = [
            ("step", "b", "Skipped"),
            ("step", "a", "Completed"),
            ("final", "", "Processed"),
        ];
        assert_eq!(events, words(&expected));
        assert_eq!(id, "2.C1S0");
        assert!(cursor.is_all_of(&row));
    }

    #[test]
    fn a_resumed_stream_continues_at_its_position() {
        let mut row = row(ProcessState::Compensating, &["a", "b"]);
        row.state.steps = vec![
            step(StepState::Compensating, 2, 3),
            step(StepState::Failed, 1, 2),
        ];
        let mut cursor: EventCursor = "1.C1R1".parse().unwrap();
        let (events, id) = send(&mut cursor, &row);
        let expected = [
            ("state", "", "Compensating"),
            ("step", "b", "Failed"),
            ("step", "a", "Compensating"),
        ];
        assert_eq!(events, words(&expected));
        assert_eq!(id.parse(), Ok(cursor));
    }

    #[test]
    fn an_end_that_is_reached_again_is_sent_again() {
        let mut row = row(ProcessState::CompensationFailed, &["a"]);
        row.state.undo_error = Some(OperationError {
            step: Some("a".to_owned()),
            error: StepError {
                code: "refused".to_owned(),
                message: "no".to_owned(),
            },
        });
        row.state.steps = vec![step(StepState::Failed, 2, 3)];
        let mut cursor: EventCursor = "7.F2".parse().unwrap();
        assert_eq!(send(&mut cursor, &row).0, []);
        row.state.steps = vec![step(StepState::Failed, 5, 7)];
        let (events, _) = send(&mut cursor, &row);
        let expected = [("step", "a", "Failed"), ("final", "", "CompensationFailed")];
        assert_eq!(events, words(&expected));
    }

    #[test]
    fn every_step_state_round_trips() {
        let cursor = EventCursor {
            state: Some(ProcessState::Cancelled),
            steps: LETTERS.iter().map(|(state, _)| (*state, 12)).collect(),
        };
        assert_eq!(cursor.to_string(), "6.N12R12C12F12T12S12B12U12");
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for (state, digit) in DIGITS {
            let cursor: EventCursor = format!("{digit}.").parse().unwrap();
            assert_eq!(cursor.state, Some(state));
        }
        assert_eq!("0.".parse(), Ok(EventCursor::default()));
    }

    #[test]
    fn an_invalid_event_id_is_refused() {
        let long = format!("1.{}", "N0".repeat(STEPS_MAX + 1));
        for bad in [
            "",
            "1",
            "9.",
            "1.X1",
            "1.N",
            "1.N1x",
            "1.N99999999999",
            "1.é1",
            &long,
        ] {
            assert_eq!(bad.parse::<EventCursor>(), Err(BadEventId), "{bad}");
        }
    }

    #[test]
    fn a_tombstone_replaced_by_a_create_gets_steps() {
        let mut row = row(ProcessState::Cancelled, &[]);
        let mut cursor = EventCursor::default();
        assert_eq!(send(&mut cursor, &row).1, "6.");
        let mut created = (*row.created).clone();
        created.step_names = vec!["a".into()];
        row.created = Arc::new(created);
        row.state.steps = vec![StepProgress::default()];
        assert!(cursor.is_all_of(&row));
    }
}
