//! The message to one contact about one operation.

use std::fmt;

use jiff::Timestamp;
use uuid::Uuid;
use waybill_engine::{OwnerNotice, ProcessState};
use waybill_telemetry::visible::on_one_line;

use crate::alert::clip;
use crate::template::Fill;

/// The longest name in a message, in bytes; longer ones are clipped.
const NAME_BYTES_MAX: usize = 256;

/// A message to one contact.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct OwnerMessage {
    /// Its own id, the same in every delivery.
    pub(super) id: Uuid,
    /// The address or the number: personal data.
    pub(super) to: String,
    operation: String,
    caller_id: String,
    workflow: String,
    tenant: String,
    state: String,
    text: String,
    at: Timestamp,
}

impl OwnerMessage {
    /// The message for the contact at this place in the notice.
    pub(super) fn new(notice: &OwnerNotice, place: usize, to: String) -> Self {
        let name = |text: &str| {
            let mut text = on_one_line(text);
            clip(&mut text, NAME_BYTES_MAX);
            text
        };
        let operation = notice.operation.to_string();
        let workflow = name(&notice.workflow);
        let caller_id = name(notice.caller_id.as_deref().unwrap_or_default());
        let known_as = match caller_id.as_str() {
            "" => &operation,
            caller_id => caller_id,
        };
        let at = Timestamp::from_microsecond(notice.at.as_micros());
        Self {
            id: Uuid::new_v5(&notice.event_id, place.to_string().as_bytes()),
            to,
            text: format!("Your {workflow} {known_as} {}.", came_to(notice.state)),
            operation,
            caller_id,
            workflow,
            tenant: name(&notice.tenant),
            state: notice.state.as_str().to_owned(),
            at: at.unwrap_or(Timestamp::MAX),
        }
    }
}

/// The end of the sentence about an operation in this state.
const fn came_to(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Processed => "is complete",
        ProcessState::Error | ProcessState::CompensationFailed => {
            "is delayed, and a person will look into it"
        }
        ProcessState::Compensated => "could not be completed, and was undone",
        ProcessState::Cancelled => "was cancelled",
        ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating => {
            "is in progress"
        }
    }
}

impl fmt::Debug for OwnerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerMessage")
            .field("id", &self.id)
            .field("operation", &self.operation)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Fill for OwnerMessage {
    const FIELDS: &'static [(&'static str, fn(&Self) -> String)] = &[
        ("notice.id", |m| m.id.to_string()),
        ("notice.to", |m| m.to.clone()),
        ("notice.text", |m| m.text.clone()),
        ("notice.state", |m| m.state.clone()),
        ("notice.operation", |m| m.operation.clone()),
        ("notice.callerId", |m| m.caller_id.clone()),
        ("notice.workflow", |m| m.workflow.clone()),
        ("notice.tenant", |m| m.tenant.clone()),
        ("notice.at", |m| m.at.to_string()),
    ];

    fn sample(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            id: Uuid::nil(),
            to: text.clone(),
            operation: text.clone(),
            caller_id: text.clone(),
            workflow: text.clone(),
            tenant: text.clone(),
            state: text.clone(),
            text,
            at: Timestamp::UNIX_EPOCH,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use waybill_engine::{Contact, OperationId};

    use super::*;

    pub(in crate::owners) fn notice() -> OwnerNotice {
        OwnerNotice {
            event_id: Uuid::from_u128(7),
            operation: OperationId(Uuid::from_u128(1)),
            caller_id: Some("delivery-17".to_owned()),
            workflow: "drone-delivery".to_owned(),
            tenant: "acme".to_owned(),
            state: ProcessState::Processed,
            contacts: vec![Contact::new("mailto:anna@example.org")],
            at: waybill_engine::Timestamp(1_767_323_045_000_000),
        }
    }

    fn text(change: impl FnOnce(&mut OwnerNotice)) -> String {
        let mut notice = notice();
        change(&mut notice);
        OwnerMessage::new(&notice, 0, String::new()).text
    }

    #[test]
    fn every_final_state_has_its_own_sentence() {
        let texts = [
            ProcessState::Processed,
            ProcessState::Error,
            ProcessState::CompensationFailed,
            ProcessState::Compensated,
            ProcessState::Cancelled,
        ]
        .map(|state| text(|notice| notice.state = state));
        let delayed = "Your drone-delivery delivery-17 is delayed, and a person will look into it.";
        assert_eq!(
            texts,
            [
                "Your drone-delivery delivery-17 is complete.",
                delayed,
                delayed,
                "Your drone-delivery delivery-17 could not be completed, and was undone.",
                "Your drone-delivery delivery-17 was cancelled.",
            ]
        );
        assert_eq!(
            text(|notice| notice.caller_id = None),
            "Your drone-delivery 00000000-0000-0000-0000-000000000001 is complete."
        );
    }

    #[test]
    fn names_given_by_callers_are_clipped_to_one_line() {
        let odd = text(|notice| notice.caller_id = Some("a\r\nBcc: x".to_owned()));
        assert_eq!(odd, "Your drone-delivery a  Bcc: x is complete.");
        let long = text(|notice| notice.caller_id = Some("a".repeat(5_000)));
        assert!(long.len() < 400, "{long}");
    }

    #[test]
    fn messages_of_one_notice_have_distinct_stable_ids() {
        let id = |place| OwnerMessage::new(&notice(), place, String::new()).id;
        assert_eq!(id(0), id(0));
        assert_ne!(id(0), id(1));
    }

    #[test]
    fn debug_output_shows_no_contact() {
        let message = OwnerMessage::new(&notice(), 0, "anna@example.org".to_owned());
        assert!(!format!("{message:?}").contains("anna"));
    }
}
