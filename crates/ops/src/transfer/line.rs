//! The lines of a file of operations.
//!
//! ```text
//! {"export":{"format":2,"partitions":4,"at":"2026-11-23T13:29:25.859177Z"}}
//! {"operation":{"id":"…","stamp":…,"expiresAt":null,"created":{…},"state":{…}}}
//! {"end":{"operations":1}}
//! ```
//!
//! Times within operations are microseconds since the Unix epoch. `created` never changes and
//! `state` does; their fields are those of the engine. Inputs, which are JSON themselves, are
//! texts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waybill_engine::{
    Amended, Created, OperationId, OperationRow, OperationState, ProcessState, Stamp, Timestamp,
};
use waybill_store::KeptRow;

/// The only format that this program writes and reads.
pub(super) const FORMAT: u32 = 2;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Line {
    /// The first line.
    Export(Header),
    /// An operation.
    Operation(Box<Operation>),
    /// The last line.
    End(End),
}

/// The content of the first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) format: u32,
    /// The number of partitions of the source installation. For people.
    pub(super) partitions: u32,
    /// The time of the export. For people.
    pub(super) at: String,
}

/// The content of the last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub(super) operations: u64,
}

/// An operation's row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Operation {
    id: OperationId,
    stamp: Stamp,
    expires_at: Option<Timestamp>,
    created: Value,
    state: Value,
}

/// The values before a reschedule. In plain JSON a removed deadline looks like an unchanged one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AmendedText {
    input: Option<String>,
    replaces_deadline: bool,
    deadline: Option<Timestamp>,
}

/// Why a row cannot become a line, or a line a row.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the input of operation {0} is not text")]
    Input(OperationId),
    #[error("cannot decode operation {id}")]
    Read {
        id: OperationId,
        #[source]
        source: serde_json::Error,
    },
    #[error("operation {0} has unknown or missing fields")]
    Fields(OperationId),
    #[error("operation {0} is invalid: {1}")]
    Impossible(OperationId, &'static str),
}

impl Operation {
    /// Encodes a row.
    pub(super) fn of(kept: &KeptRow) -> Result<Self, LineError> {
        let KeptRow { row, expires_at } = kept;
        let operation = Self::written(row, *expires_at)?;
        match operation.row()? == *kept {
            true => Ok(operation),
            false => Err(LineError::Impossible(
                row.id,
                "it changes when it is encoded and decoded again",
            )),
        }
    }

    fn written(row: &OperationRow, expires_at: Option<Timestamp>) -> Result<Self, LineError> {
        let id = row.id;
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| LineError::Input(id))
        };
        let read = |source| LineError::Read { id, source };
        let (mut created, mut state) = (Created::clone(&row.created), row.state.clone());
        let input = std::mem::replace(&mut created.input, Arc::new([]));
        let mut created = serde_json::to_value(created).map_err(read)?;
        created["input"] = text(&input)?.into();
        let amended = state.amended.take().map(|amended| {
            let input = amended.input.as_deref().map(text).transpose()?;
            let text = AmendedText {
                input,
                replaces_deadline: amended.deadline.is_some(),
                deadline: amended.deadline.flatten(),
            };
            serde_json::to_value(text).map_err(read)
        });
        let mut state = serde_json::to_value(state).map_err(read)?;
        state["amended"] = amended.transpose()?.unwrap_or_default();
        Ok(Self {
            id,
            stamp: row.stamp,
            expires_at,
            created,
            state,
        })
    }

    /// Decodes a row, if the line is valid.
    pub(super) fn row(&self) -> Result<KeptRow, LineError> {
        let kept = self.parts()?;
        let (id, row) = (self.id, &kept.row);
        if Self::written(row, kept.expires_at)? != *self {
            return Err(LineError::Fields(id));
        }
        let impossible = |why| Err(LineError::Impossible(id, why));
        if row.state.state == ProcessState::Pending {
            return impossible("a pending operation has no row");
        }
        if row.created.step_names.len() != row.state.steps.len() {
            return impossible("the numbers of its steps and step names differ");
        }
        if row.stamp.0 <= 0 {
            return impossible("its stamp is not positive");
        }
        if !row.state.state.is_final() && kept.expires_at.is_some() {
            return impossible("it has an expiry but is not final");
        }
        Ok(kept)
    }

    fn parts(&self) -> Result<KeptRow, LineError> {
        let id = self.id;
        let read = |source| LineError::Read { id, source };
        let (mut created, mut state) = (self.created.clone(), self.state.clone());
        let input = match created.get_mut("input") {
            Some(Value::String(input)) => std::mem::take(input),
            _ => return Err(LineError::Input(id)),
        };
        created["input"] = Value::Array(Vec::new());
        let mut created: Created = serde_json::from_value(created).map_err(read)?;
        created.input = input.into_bytes().into();
        let amended = match state.get_mut("amended") {
            Some(amended) => std::mem::take(amended),
            None => return Err(LineError::Fields(id)),
        };
        let amended: Option<AmendedText> = serde_json::from_value(amended).map_err(read)?;
        let mut state: OperationState = serde_json::from_value(state).map_err(read)?;
        state.amended = amended.map(|amended| {
            Box::new(Amended {
                input: amended.input.map(|input| input.into_bytes().into()),
                deadline: amended.replaces_deadline.then_some(amended.deadline),
            })
        });
        Ok(KeptRow {
            row: OperationRow {
                id,
                created: Arc::new(created),
                state,
                stamp: self.stamp,
            },
            expires_at: self.expires_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::{
        Contact, Epoch, HistoryEntry, Offset, OwnerId, PartitionId, Position, Priority,
        RequestHash, StepError, StepProgress, StepState,
    };

    use super::*;

    fn kept(amended: Option<Amended>) -> KeptRow {
        let created = Created {
            workflow: "drone-delivery".into(),
            workflow_version: 1,
            step_names: vec!["account".into()],
            tenant: "acme".into(),
            caller_id: Some("order-7".to_owned()),
            input: b"{\"note\":\"\\u00e9 \\\"quoted\\\"\"}"[..].into(),
            deadline: Some(Timestamp(5)),
            reply_to: None,
            request_hash: RequestHash([9; 16]),
            request: Position {
                priority: Priority::Normal,
                partition: PartitionId(3),
                offset: Offset(44),
            },
            requested_at: Timestamp(1),
            created_at: Timestamp(2),
            traceparent: Some("00-1-2-03".into()),
            resubmission_of: Some(OperationId(Uuid::from_u128(8))),
            notify: vec![Contact::new("mailto:anna@example.org")],
        };
        let step = StepProgress {
            state: StepState::Failed,
            error: Some(StepError {
                code: "owner-suspended".to_owned(),
                message: "no".to_owned(),
            }),
            outputs: vec![("account".to_owned(), "12".to_owned())],
            retry_at: Some(Timestamp(77)),
            ..StepProgress::default()
        };
        let history = HistoryEntry {
            id: Uuid::from_u128(4),
            at: Timestamp(9),
            by: "anna".to_owned(),
            verb: "cancel".to_owned(),
            reason: "because".to_owned(),
            refused: None,
        };
        let state = OperationState {
            state: ProcessState::Processing,
            locked_by: Some(OwnerId(Uuid::from_u128(6))),
            epoch: Epoch(u64::MAX),
            amended: amended.map(Box::new),
            history: vec![history],
            steps: vec![step],
            ..OperationState::default()
        };
        KeptRow {
            row: OperationRow {
                id: OperationId(Uuid::from_u128(7)),
                created: Arc::new(created),
                state,
                stamp: Stamp(1_790_000_000_000_001),
            },
            expires_at: None,
        }
    }

    #[test]
    fn a_row_round_trips_through_its_line() {
        let amended = |input: Option<&str>, deadline| Amended {
            input: input.map(|input| input.as_bytes().into()),
            deadline,
        };
        for amended in [
            None,
            Some(amended(None, None)),
            Some(amended(Some("{}"), Some(None))),
            Some(amended(None, Some(Some(Timestamp(3))))),
        ] {
            let kept = kept(amended);
            let line = Line::Operation(Box::new(Operation::of(&kept).unwrap()));
            let text = serde_json::to_string(&line).unwrap();
            assert!(!text.contains('\n') && text.contains("mailto:anna@example.org"));
            let Line::Operation(read) = serde_json::from_str(&text).unwrap() else {
                panic!("{text}");
            };
            assert_eq!(read.row().unwrap(), kept);
        }
    }

    #[test]
    fn an_invalid_row_is_refused_with_the_operations_id() {
        let whole = Operation::of(&kept(None)).unwrap();
        let changed = |change: fn(&mut Operation)| {
            let mut operation = whole.clone();
            change(&mut operation);
            operation.row().unwrap_err().to_string()
        };
        let id = whole.id.to_string();
        for refused in [
            changed(|it| it.created["colour"] = "blue".into()),
            changed(|it| drop(it.state.as_object_mut().unwrap().remove("steps"))),
            changed(|it| drop(it.state.as_object_mut().unwrap().remove("undo_error"))),
            changed(|it| it.state["state"] = "Pending".into()),
            changed(|it| it.state["state"] = "Lost".into()),
            changed(|it| it.state["steps"] = Value::Array(Vec::new())),
            changed(|it| it.created["input"] = Value::Array(Vec::new())),
            changed(|it| it.stamp = Stamp(0)),
            changed(|it| it.expires_at = Some(Timestamp(1))),
        ] {
            assert!(refused.contains(&id), "{refused}");
        }
        let mut binary = kept(None);
        Arc::make_mut(&mut binary.row.created).input = [0xff][..].into();
        assert!(matches!(Operation::of(&binary), Err(LineError::Input(_))));
    }
}
