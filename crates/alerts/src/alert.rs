//! The content of an alert, and its text for people.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use waybill_engine::OperatorAlert;

use waybill_telemetry::visible::on_one_line;

/// The longest sentence of an alert, in bytes; longer ones are clipped.
const SENTENCE_BYTES_MAX: usize = 4 * 1024;

/// The longest name in an alert, in bytes.
const NAME_BYTES_MAX: usize = 512;

/// Something that needs a person.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// Its own id, the same in every delivery.
    pub event_id: Uuid,
    /// What happened, as a stable word.
    pub kind: String,
    /// The operation.
    pub operation: String,
    /// The caller's own id of the operation, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_id: Option<String>,
    /// Its workflow; empty if unknown.
    pub workflow: String,
    /// The tenant of the operation.
    pub tenant: String,
    /// The step that the alert is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The error, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AlertError>,
    /// What to do.
    pub advice: String,
    /// When it happened.
    pub at: Timestamp,
}

/// The error in an alert.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlertError {
    /// A stable code.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl Alert {
    /// Clips all texts: they can come from anywhere, and wait in memory.
    pub(super) fn clipped(mut self) -> Self {
        for name in [
            &mut self.kind,
            &mut self.operation,
            &mut self.workflow,
            &mut self.tenant,
        ] {
            clip(name, NAME_BYTES_MAX);
        }
        for name in [&mut self.caller_id, &mut self.step].into_iter().flatten() {
            clip(name, NAME_BYTES_MAX);
        }
        if let Some(error) = &mut self.error {
            clip(&mut error.code, NAME_BYTES_MAX);
            clip(&mut error.message, SENTENCE_BYTES_MAX);
        }
        clip(&mut self.advice, SENTENCE_BYTES_MAX);
        self
    }
}

impl From<OperatorAlert> for Alert {
    fn from(alert: OperatorAlert) -> Self {
        let at = Timestamp::from_microsecond(alert.at.as_micros());
        Self {
            event_id: alert.event_id,
            kind: alert.kind.as_str().to_owned(),
            operation: alert.operation.to_string(),
            caller_id: alert.caller_id,
            workflow: alert.workflow,
            tenant: alert.tenant,
            step: alert.step,
            error: alert.error.map(|error| AlertError {
                code: error.code,
                message: error.message,
            }),
            advice: alert.advice,
            // A clock that is ten thousand years off must not lose an alert.
            at: at.unwrap_or(Timestamp::MAX),
        }
    }
}

/// The content of one message to a receiver: a single alert, or the last of several similar ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The alert; of several the last.
    pub alert: Alert,
    /// How many repeats of an earlier alert the message reports, this one included; 0 for a single
    /// alert.
    pub repeats: usize,
}

impl Message {
    /// A short title on one line.
    pub(super) fn headline(&self) -> String {
        let Alert {
            kind,
            workflow,
            step,
            error,
            ..
        } = &self.alert;
        let mut line = self.preface();
        line.push_str(kind);
        if !workflow.is_empty() {
            push(&mut line, format_args!(": {workflow}"));
        }
        if let Some(step) = step {
            push(&mut line, format_args!(", step {step}"));
        }
        if let Some(error) = error {
            push(&mut line, format_args!(": {}", error.code));
        }
        on_one_line(&line)
    }

    /// The title with the operation and the error message, on one line.
    pub(super) fn summary(&self) -> String {
        let Alert {
            kind,
            workflow,
            operation,
            caller_id,
            step,
            error,
            ..
        } = &self.alert;
        let mut line = self.preface();
        push(&mut line, format_args!("{kind}: "));
        if !workflow.is_empty() {
            push(&mut line, format_args!("{workflow}, "));
        }
        push(&mut line, format_args!("operation {operation}"));
        if let Some(caller_id) = caller_id {
            push(&mut line, format_args!(" ({caller_id})"));
        }
        if let Some(step) = step {
            push(&mut line, format_args!(", step {step}"));
        }
        if let Some(AlertError { code, message }) = error {
            push(&mut line, format_args!(": {code}: {message}"));
        }
        on_one_line(&line)
    }

    fn preface(&self) -> String {
        match self.repeats {
            0 => String::new(),
            repeats => format!("{repeats} more like this, last: "),
        }
    }
}

/// Cuts a text to at most `bytes_max`, and marks the cut.
pub(super) fn clip(text: &mut String, bytes_max: usize) {
    const MARK: &str = "...";
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - MARK.len()));
        text.push_str(MARK);
    }
}

fn push(line: &mut String, part: std::fmt::Arguments<'_>) {
    line.write_fmt(part)
        .expect("writing to a String cannot fail");
}

#[cfg(test)]
pub(super) mod tests {
    use waybill_engine::{AlertKind, OperationId, StepError};

    use super::*;

    pub(crate) fn alert() -> Alert {
        Alert {
            event_id: Uuid::from_u128(7),
            kind: "operation-parked".to_owned(),
            operation: "op-1".to_owned(),
            caller_id: None,
            workflow: "drone-delivery".to_owned(),
            tenant: "acme".to_owned(),
            step: Some("drone".to_owned()),
            error: Some(AlertError {
                code: "no-drone".to_owned(),
                message: "no \"drone\" is free\ntoday".to_owned(),
            }),
            advice: "Resubmit it once drones are back.".to_owned(),
            at: "2026-01-02T03:04:05Z".parse().unwrap(),
        }
    }

    #[test]
    fn headline_and_summary_are_one_line_and_count_repeats() {
        let mut message = Message {
            alert: alert(),
            repeats: 0,
        };
        assert_eq!(
            message.headline(),
            "operation-parked: drone-delivery, step drone: no-drone"
        );
        message.repeats = 12;
        assert_eq!(
            message.summary(),
            "12 more like this, last: operation-parked: drone-delivery, operation op-1, step \
             drone: no-drone: no \"drone\" is free today"
        );
        message.alert.step = None;
        message.alert.error = None;
        assert_eq!(
            message.headline(),
            "12 more like this, last: operation-parked: drone-delivery"
        );
    }

    #[test]
    fn a_message_has_the_callers_id_and_no_gap_for_an_unknown_workflow() {
        let mut message = Message {
            alert: alert(),
            repeats: 0,
        };
        message.alert.caller_id = Some("delivery-17".to_owned());
        message.alert.workflow.clear();
        message.alert.step = None;
        assert_eq!(message.headline(), "operation-parked: no-drone");
        assert_eq!(
            message.summary(),
            "operation-parked: operation op-1 (delivery-17): no-drone: no \"drone\" is free today"
        );
    }

    #[test]
    fn a_record_becomes_an_alert_whatever_its_time() {
        let record = OperatorAlert {
            event_id: Uuid::from_u128(7),
            kind: AlertKind::OperationParked,
            operation: OperationId(Uuid::from_u128(1)),
            caller_id: Some("delivery-17".to_owned()),
            workflow: "drone-delivery".to_owned(),
            tenant: "acme".to_owned(),
            step: Some("drone".to_owned()),
            error: Some(StepError {
                code: "no-drone".to_owned(),
                message: "no \"drone\" is free\ntoday".to_owned(),
            }),
            advice: "Resubmit it once drones are back.".to_owned(),
            at: waybill_engine::Timestamp(1_767_323_045_000_000),
        };
        let expected = Alert {
            operation: "00000000-0000-0000-0000-000000000001".to_owned(),
            caller_id: Some("delivery-17".to_owned()),
            ..alert()
        };
        assert_eq!(Alert::from(record.clone()), expected);
        let odd = Alert::from(OperatorAlert {
            at: waybill_engine::Timestamp(i64::MAX),
            ..record
        });
        assert_eq!(odd.at, Timestamp::MAX);
    }

    #[test]
    fn long_texts_are_clipped_between_characters() {
        let mut long = alert();
        long.advice = "ü".repeat(10_000);
        long.kind = "k".repeat(10_000);
        long.caller_id = Some("c".repeat(10_000));
        let clipped = long.clipped();
        assert_eq!(clipped.kind.len(), NAME_BYTES_MAX);
        assert_eq!(clipped.caller_id.unwrap().len(), NAME_BYTES_MAX);
        assert!(clipped.advice.len() <= SENTENCE_BYTES_MAX);
        assert!(clipped.advice.ends_with("ü..."));
        assert_eq!(alert().clipped(), alert());
    }

    #[test]
    fn an_alert_is_camel_case_json_and_read_back_as_it_was() {
        let json = serde_json::to_value(alert()).unwrap();
        assert_eq!(json["eventId"], "00000000-0000-0000-0000-000000000007");
        assert_eq!(json["at"], "2026-01-02T03:04:05Z");
        assert_eq!(serde_json::from_value::<Alert>(json).unwrap(), alert());
    }
}
