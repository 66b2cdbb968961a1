//! Colors of states and verdicts, for people.
//!
//! Deliberately absent: the colors of comfy-table. They need three more crates, one of which turns
//! them off for the whole process if `NO_COLOR` is set, even with `--color always`. Marks without
//! width take their place while a table is laid out.

use std::io;

use clap::builder::styling::AnsiColor;
use clap::{Args, ValueEnum};
use waybill_telemetry::visible::may_be_colored;

/// Begins a tone in a table: a mark that no escaped text contains.
const MARKS: [(Tone, char); 3] = [
    (Tone::Good, '\u{2061}'),
    (Tone::Warning, '\u{2062}'),
    (Tone::Bad, '\u{2063}'),
];
/// Ends a tone in a table.
const END: char = '\u{2064}';

/// When to color the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// The flag for colors.
#[derive(Clone, Copy, Debug, Args)]
pub struct ColorArgs {
    /// When to color states; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    color: When,
}

impl ColorArgs {
    /// Whether to color standard output.
    pub fn is_colored(self) -> bool {
        match self.color {
            When::Auto => may_be_colored(&io::stdout()),
            When::Always => true,
            When::Never => false,
        }
    }
}

/// What a state or verdict means for its reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// It is done, or healthy.
    Good,
    /// It failed and recovers by itself, or is worth knowing.
    Warning,
    /// It waits for a person.
    Bad,
}

impl Tone {
    /// The tone of a state of an operation or a step.
    pub fn of_state(state: &str) -> Option<Self> {
        match state {
            "Processed" | "Completed" => Some(Self::Good),
            "Compensating" | "Compensated" | "Failed" | "TimedOut" | "Rejected" => {
                Some(Self::Warning)
            }
            "Error" | "CompensationFailed" | "Unreadable" => Some(Self::Bad),
            _ => None,
        }
    }

    /// The text in this tone.
    pub fn paint(self, text: &str) -> String {
        let style = self.color().on_default();
        format!("{style}{text}{style:#}")
    }

    /// The text of a cell that the table shows in this tone.
    pub fn mark(self, cell: &str) -> String {
        let mark = MARKS.into_iter().find(|(tone, _)| *tone == self);
        mark.map_or_else(String::new, |(_, mark)| format!("{mark}{cell}{END}"))
    }

    fn color(self) -> AnsiColor {
        match self {
            Self::Good => AnsiColor::Green,
            Self::Warning => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
        }
    }
}

/// A table with colors in the place of their marks.
pub fn painted(mut table: String) -> String {
    for (tone, mark) in MARKS {
        let style = tone.color().on_default();
        table = table.replace(mark, &style.to_string());
    }
    table.replace(END, &format!("{:#}", AnsiColor::Red.on_default()))
}

#[cfg(test)]
mod tests {
    use waybill_api::view::UNREADABLE;
    use waybill_engine::ProcessState;
    use waybill_telemetry::visible::escaped;

    use super::*;

    #[test]
    fn states_that_wait_for_a_person_are_bad_and_no_others() {
        for state in ProcessState::ALL {
            let is_bad = Tone::of_state(state.as_str()) == Some(Tone::Bad);
            assert_eq!(is_bad, state.is_parked(), "{state:?}");
        }
        assert_eq!(Tone::of_state(UNREADABLE), Some(Tone::Bad));
    }

    #[test]
    fn no_text_of_others_contains_a_mark() {
        for mark in MARKS.map(|(_, mark)| mark).into_iter().chain([END]) {
            assert!(!escaped(&mark.to_string()).contains(mark));
        }
    }
}
