//! Events that do not follow from the effect in progress.

use std::fmt::Debug;

/// A driver passed a state machine an event that is not a result of the effect in progress.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unexpected event {event} in state {state}")]
pub struct UnexpectedEvent {
    /// The state's name.
    pub state: String,
    /// The event's name.
    pub event: String,
}

impl UnexpectedEvent {
    pub(crate) fn new(state: &impl Debug, event: &impl Debug) -> Self {
        Self {
            state: name(state),
            event: name(event),
        }
    }
}

/// The variant's name, without its content.
fn name(of: &impl Debug) -> String {
    let text = format!("{of:?}");
    let is_name = |character: &char| character.is_ascii_alphanumeric();
    text.chars().take_while(is_name).collect()
}
