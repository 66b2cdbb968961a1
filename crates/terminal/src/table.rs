//! Tables for people: as wide as the terminal, or as their content if the output is not a terminal.
//! A narrow terminal gets fewer columns.

use std::io;

use comfy_table::presets::NOTHING as WITHOUT_BORDERS;
use comfy_table::{ColumnConstraint, ContentArrangement, Width};
use terminal_size::terminal_size_of;
use waybill_telemetry::visible::escaped;

use crate::color::{Tone, painted};

/// The gap between two columns.
const GAP: u16 = 1;
/// A cell is broken into lines of at least this width.
const BROKEN_MIN: u16 = 12;

/// A column of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Its minimum width if the output is not a terminal: columns of two tables are then aligned.
    pub width: u16,
    /// Whether its cells are broken into lines on a narrow terminal.
    pub may_break: bool,
    /// Of the columns that do not fit on a terminal, the one with the highest rank is hidden first;
    /// one of rank 0 never is.
    pub rank: u8,
    /// Whether its cells are states, which may have colors.
    pub has_states: bool,
}

impl Column {
    /// A column whose cells are broken into lines on a narrow terminal.
    pub const fn new(name: &'static str, width: u16) -> Self {
        Self {
            name,
            width,
            may_break: true,
            rank: 0,
            has_states: false,
        }
    }

    /// A column whose cells are never broken into lines.
    pub const fn whole(name: &'static str, width: u16) -> Self {
        Self {
            may_break: false,
            ..Self::new(name, width)
        }
    }

    /// A column of states, which are never broken into lines.
    pub const fn of_states(name: &'static str, width: u16) -> Self {
        Self {
            has_states: true,
            ..Self::whole(name, width)
        }
    }

    /// The column with this rank.
    pub const fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// The width of the terminal in characters; `None` if standard output is no terminal.
pub fn terminal_width() -> Option<u16> {
    terminal_size_of(io::stdout()).map(|(width, _)| width.0)
}

/// Says on standard error which columns did not fit on the terminal.
pub fn report_left_out(columns: &[&str]) {
    if !columns.is_empty() {
        eprintln!("{}", left_out_notice(columns));
    }
}

fn left_out_notice(columns: &[&str]) -> String {
    format!(
        "columns left out: {}: the terminal is too narrow; --output json shows all",
        columns.join(", ")
    )
}

/// A table that is written once all of its rows are known.
pub struct Table<'a> {
    columns: &'a [Column],
    terminal_width: Option<u16>,
    is_colored: bool,
    table: comfy_table::Table,
}

impl<'a> Table<'a> {
    /// A table without rows, for a terminal of this width.
    pub fn new(columns: &'a [Column], terminal_width: Option<u16>) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(WITHOUT_BORDERS);
        if let Some(width) = terminal_width {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
        }
        Self {
            columns,
            terminal_width,
            is_colored: false,
            table,
        }
    }

    /// The table with or without colors of states.
    pub fn colored(self, is_colored: bool) -> Self {
        Self { is_colored, ..self }
    }

    /// Begins the table with the names of its columns.
    pub fn with_heading(mut self) -> Self {
        let names = self.columns.iter().map(|column| column.name);
        self.table.set_header(names);
        self
    }

    /// Adds a row: a cell for each column. Control characters are shown as escapes.
    pub fn add<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells = cells.into_iter().zip(self.columns).map(|(cell, column)| {
            let cell = escaped(cell.as_ref());
            match Tone::of_state(&cell) {
                Some(tone) if self.is_colored && column.has_states => tone.mark(&cell),
                Some(_) | None => cell,
            }
        });
        self.table.add_row(cells.collect::<Vec<_>>());
    }

    /// The lines, without blanks at their ends.
    pub fn into_text(mut self) -> String {
        let constraints = self.constraints();
        for (column, constraint) in self.table.column_iter_mut().zip(constraints) {
            column.set_padding((0, GAP));
            column.set_constraint(constraint);
        }
        painted(self.table.trim_fmt())
    }

    /// The names of the columns that do not fit on the terminal.
    pub fn left_out(&self) -> Vec<&'static str> {
        let columns = self.columns.iter().zip(self.constraints());
        columns
            .filter(|(_, constraint)| *constraint == ColumnConstraint::Hidden)
            .map(|(column, _)| column.name)
            .collect()
    }

    fn constraints(&self) -> Vec<ColumnConstraint> {
        let Some(terminal_width) = self.terminal_width else {
            let widths = self.columns.iter().map(|column| column.width + GAP);
            return widths
                .map(|width| ColumnConstraint::LowerBoundary(Width::Fixed(width)))
                .collect();
        };
        let content = self.table.column_max_content_widths();
        let columns = self.columns.iter().zip(content);
        // The least width of each column, and how it is kept.
        let mut shown: Vec<_> = columns
            .map(|(column, content)| match column.may_break {
                false => (column, content, ColumnConstraint::ContentWidth),
                true => {
                    let least = content.min(BROKEN_MIN);
                    let width = Width::Fixed(least + GAP);
                    (column, least, ColumnConstraint::LowerBoundary(width))
                }
            })
            .collect();
        loop {
            let visible = shown
                .iter_mut()
                .filter(|(.., constraint)| *constraint != ColumnConstraint::Hidden);
            let mut needed = 0;
            let mut first_to_hide = None;
            for (column, least, constraint) in visible {
                needed = least.saturating_add(GAP).saturating_add(needed);
                if column.rank > first_to_hide.as_ref().map_or(0, |&(rank, _)| rank) {
                    first_to_hide = Some((column.rank, constraint));
                }
            }
            match first_to_hide {
                Some((_, constraint)) if needed > terminal_width => {
                    *constraint = ColumnConstraint::Hidden;
                }
                Some(_) | None => break,
            }
        }
        shown
            .into_iter()
            .map(|(.., constraint)| constraint)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column::whole("ID", 4),
        Column::new("STATE", 9),
        Column::new("ERROR", 8),
    ];

    fn table(terminal_width: Option<u16>) -> Table<'static> {
        let mut table = Table::new(&COLUMNS, terminal_width).with_heading();
        table.add([
            "a-long-id",
            "Processed",
            "the service\nanswered nothing at all",
        ]);
        table.add(["b", "x", "-"]);
        table
    }

    #[test]
    fn without_a_terminal_nothing_is_cut_or_broken() {
        assert_eq!(
            table(None).into_text(),
            "ID        STATE     ERROR\n\
             a-long-id Processed the service\\nanswered nothing at all\n\
             b         x         -"
        );
        let short = || {
            let mut table = Table::new(&COLUMNS, None);
            table.add(["b", "x", "-"]);
            table.into_text()
        };
        assert_eq!(short(), "b    x         -");
    }

    #[test]
    fn colors_of_states_change_neither_widths_nor_other_cells() {
        let columns = [Column::of_states("STATE", 9), Column::new("ERROR", 8)];
        let text = |is_colored| {
            let mut table = Table::new(&columns, Some(40)).with_heading();
            table = table.colored(is_colored);
            table.add(["Processed", "-"]);
            table.add(["Error", "Error"]);
            table.add(["Pending", "-"]);
            table.into_text()
        };
        let plain = "STATE     ERROR\nProcessed -\nError     Error\nPending   -";
        assert_eq!(text(false), plain);
        let colored = plain
            .replace("Processed", "\u{1b}[32mProcessed\u{1b}[0m")
            .replace("Error ", "\u{1b}[31mError\u{1b}[0m ");
        assert_eq!(text(true), colored);
    }

    #[test]
    fn columns_that_do_not_fit_are_hidden_by_rank() {
        let columns = [
            Column::whole("ID", 4),
            Column::whole("FIRST", 5).ranked(2),
            Column::whole("SECOND", 6).ranked(1),
        ];
        let headings = |width| {
            let mut table = Table::new(&columns, Some(width)).with_heading();
            table.add(["an-id", "one", "two"]);
            let left_out = table.left_out().join(", ");
            let text = table.into_text();
            (text.lines().next().unwrap().to_owned(), left_out)
        };
        let expected = |shown: &str, left_out: &str| (shown.to_owned(), left_out.to_owned());
        assert_eq!(headings(20), expected("ID    FIRST SECOND", ""));
        assert_eq!(headings(15), expected("ID    SECOND", "FIRST"));
        assert_eq!(headings(8), expected("ID", "FIRST, SECOND"));
        assert_eq!(headings(4), expected("ID", "FIRST, SECOND"), "never hidden");
        assert_eq!(
            left_out_notice(&["FIRST", "SECOND"]),
            "columns left out: FIRST, SECOND: the terminal is too narrow; --output json shows all"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_ids_stay_whole() {
        for width in [34, 40, 60] {
            let text = table(Some(width)).into_text();
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(usize::from(width)), "{text}");
            assert!(text.contains("a-long-id"), "{text}");
            let words: String = text.split_whitespace().collect();
            assert!(words.contains("answered"), "{text}");
        }
    }
}
