//! `waybill ops list`: operations that linger, failed or are parked.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};

use clap::Args;
use serde_json::value::RawValue;
use uuid::Uuid;
use waybill_api::view::ItemView;
use waybill_telemetry::visible::escaped_json;

use super::OpsError;
use super::api::Api;
use super::filter::Filter;
use crate::shown::{NOTHING, Output, line};

/// The maximum number of operations in one list. Their IDs are kept in memory to list each once.
const LISTED_MAX: u64 = 1_000_000;
/// The page size: the API's maximum.
const PAGE_ITEMS: u64 = 1_000;
/// The default of `--limit`.
const LISTED: u64 = 100;

/// The arguments of `waybill ops list`.
#[derive(Clone, Debug, Args)]
pub(super) struct ListArgs {
    /// The maximum number of operations [default: 100]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=LISTED_MAX)
    )]
    limit: Option<u64>,
    /// List all operations, up to a million
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// List the newest operations first
    #[arg(long)]
    newest: bool,
    /// The format of the list
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    // Last, because its heading applies to all flags after it.
    #[command(flatten)]
    filter: Filter,
}

impl ListArgs {
    pub(super) async fn run(&self, api: &Api) -> Result<(), OpsError> {
        let mut query = self.filter.query();
        if self.newest {
            query.push(("order", "newest".to_owned()));
        }
        let limit = match (self.all, self.limit) {
            (true, _) => LISTED_MAX,
            (false, limit) => limit.unwrap_or(LISTED),
        };
        let mut listing = Listing::new(api, query, limit);
        let mut page = listing.next_page().await?;
        let mut out = io::stdout().lock();
        let mut columns = None;
        let mut is_empty = true;
        while let Some(items) = page {
            if !items.is_empty() {
                is_empty = false;
            }
            let found = Columns::of(items.iter().map(|(_, item)| item));
            // A later page may bring the first tenant.
            if self.output == Output::Table && !items.is_empty() && columns < Some(found) {
                writeln!(out, "{}", Row::heading(found))?;
                columns = Some(found);
            }
            let columns = columns.unwrap_or(found);
            for (json, item) in &items {
                match self.output {
                    Output::Json => writeln!(out, "{}", escaped_json(json.get()))?,
                    Output::Table => writeln!(out, "{}", Row { item, columns })?,
                }
            }
            page = listing.next_page().await?;
        }
        if listing.has_more() {
            eprintln!("there are more: use --all, or a --limit above {limit}");
        } else if is_empty {
            eprintln!("{}", nothing_found(&self.filter));
        }
        Ok(())
    }
}

/// The text for an empty list.
fn nothing_found(filter: &Filter) -> &'static str {
    match filter.is_empty() {
        true => "no operations linger, failed, or are parked",
        false => "no operations match",
    }
}

/// A list that is read page by page, each operation once.
pub(super) struct Listing<'a> {
    api: &'a Api,
    query: Vec<(&'static str, String)>,
    left: u64,
    at: At,
    seen: HashSet<Uuid>,
}

/// The position in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
enum At {
    Start,
    /// The cursor of the next page.
    Cursor(String),
    End,
}

impl<'a> Listing<'a> {
    /// Starts a list of at most `limit` operations.
    pub(super) fn new(api: &'a Api, query: Vec<(&'static str, String)>, limit: u64) -> Self {
        Self {
            api,
            query,
            left: limit,
            at: At::Start,
            seen: HashSet::new(),
        }
    }

    /// The next operations, each with its original JSON. A page may be empty though more follow.
    /// `None` at the end of the list or at the limit.
    pub(super) async fn next_page(
        &mut self,
    ) -> Result<Option<Vec<(Box<RawValue>, ItemView)>>, OpsError> {
        let mut query = self.query.clone();
        match &self.at {
            _ if self.left == 0 => return Ok(None),
            At::End => return Ok(None),
            At::Start => {}
            At::Cursor(cursor) => query.push(("cursor", cursor.clone())),
        }
        query.push(("limit", self.left.min(PAGE_ITEMS).to_string()));
        let page = self.api.page(&query).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for json in page.items {
            let item: ItemView = self.api.read(json.get().as_bytes())?;
            if self.left > 0 && self.seen.insert(item.id) {
                self.left -= 1;
                items.push((json, item));
            }
        }
        let next = page.next.map_or(At::End, At::Cursor);
        if next != At::End && next == self.at {
            return Err(self.api.unexpected("the list does not advance").into());
        }
        self.at = next;
        Ok(Some(items))
    }

    /// Whether the list ended at the limit and may continue.
    pub(super) fn has_more(&self) -> bool {
        self.at != At::End
    }
}

/// The columns of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Columns {
    /// The common columns.
    Plain,
    /// A tenant column as well.
    WithTenant,
}

impl Columns {
    /// The columns that these operations need.
    pub(super) fn of<'a>(items: impl IntoIterator<Item = &'a ItemView>) -> Self {
        let mut items = items.into_iter();
        match items.any(|item| !item.tenant.is_empty()) {
            true => Self::WithTenant,
            false => Self::Plain,
        }
    }
}

/// An operation as a line of a table.
pub(super) struct Row<'a> {
    pub(super) item: &'a ItemView,
    pub(super) columns: Columns,
}

impl Row<'_> {
    /// Column widths: 136 characters with the gaps. A narrower terminal can do without the last
    /// column.
    const WIDTHS: [usize; 8] = [36, 18, 4, 14, 11, 12, 19, 15];
    const TENANT_WIDTH: usize = 12;

    pub(super) fn heading(columns: Columns) -> String {
        let names = [
            "OPERATION",
            "STATE",
            "AGE",
            "WORKFLOW",
            "STEP",
            "FINGERPRINT",
            "ERROR",
            "CALLER'S ID",
        ];
        Self::line(names, "TENANT", columns)
    }

    fn line(cells: [&str; 8], tenant: &str, columns: Columns) -> String {
        let row = line(cells, Self::WIDTHS);
        match columns {
            Columns::Plain => row,
            Columns::WithTenant => {
                let [first @ .., last] = cells;
                let [widths @ .., width] = Self::WIDTHS;
                let before = format!("{:<121}", line(first, widths));
                before + &line([tenant, last], [Self::TENANT_WIDTH, width])
            }
        }
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ItemView {
            id,
            state,
            workflow,
            caller_id,
            step,
            error,
            fingerprint,
            age_seconds,
            abandoned,
            tenant,
            ..
        } = self.item;
        let error = error.as_ref().map_or(NOTHING, |error| &error.code);
        let error = match abandoned {
            true => &format!("abandoned: {error}"),
            false => error,
        };
        let or_nothing = |text: &Option<String>| text.clone().unwrap_or_else(|| NOTHING.to_owned());
        let named = |name: &'_ str| match name {
            "" => NOTHING.to_owned(),
            name => name.to_owned(),
        };
        let cells: [&str; 8] = [
            &id.to_string(),
            state,
            &age(*age_seconds),
            &named(workflow),
            &or_nothing(step),
            &or_nothing(fingerprint),
            error,
            &or_nothing(caller_id),
        ];
        f.write_str(&Self::line(cells, &named(tenant), self.columns))
    }
}

/// A time span in its largest whole unit.
fn age(seconds: u64) -> String {
    const UNITS: [(u64, char); 3] = [(86_400, 'd'), (3_600, 'h'), (60, 'm')];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    let (length, name) = unit.copied().unwrap_or((1, 's'));
    format!("{}{name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use waybill_api::view::ErrorView;

    use super::*;

    fn item() -> ItemView {
        ItemView {
            id: Uuid::from_u128(1),
            state: "CompensationFailed".into(),
            workflow: "drone-delivery".to_owned(),
            workflow_version: Some(1),
            tenant: "acme".to_owned(),
            caller_id: Some("order-17".to_owned()),
            step: Some("third-party".to_owned()),
            error: Some(ErrorView {
                code: "drone-unavailable".to_owned(),
                ..ErrorView::default()
            }),
            fingerprint: Some("0123456789ab".to_owned()),
            age_seconds: 86_399,
            ..ItemView::default()
        }
    }

    #[test]
    fn an_empty_list_says_whether_a_filter_left_it_empty() {
        let all = nothing_found(&Filter::default());
        assert_eq!(all, "no operations linger, failed, or are parked");
        let some = Filter::default().or_states(&[waybill_engine::ProcessState::Error]);
        assert_eq!(nothing_found(&some), "no operations match");
    }

    #[test]
    fn the_table_stands_under_its_heading() {
        let item = &item();
        let columns = Columns::of([item]);
        assert_eq!(columns, Columns::WithTenant);
        let (heading, row) = (Row::heading(columns), Row { item, columns }.to_string());
        for (name, cell) in [
            ("TENANT", "acme"),
            ("OPERATION", "00000000-"),
            ("STATE", "CompensationFailed"),
            ("AGE", "23h"),
            ("WORKFLOW", "drone-delivery"),
            ("STEP", "third-party"),
            ("FINGERPRINT", "0123456789ab"),
            ("ERROR", "drone-unavailable"),
            ("CALLER'S ID", "order-17"),
        ] {
            // `STEP` and `STATE` occur only once in the heading.
            assert_eq!(heading.find(name), row.find(cell), "{heading}\n{row}");
        }
    }

    #[test]
    fn no_line_is_longer_than_a_terminal_and_none_breaks() {
        let long = || Some("lang\nname ".repeat(20));
        let item = ItemView {
            state: "x".repeat(99).into(),
            workflow: long().unwrap(),
            caller_id: long(),
            step: long(),
            fingerprint: long(),
            age_seconds: 9_999 * 86_400,
            error: Some(ErrorView {
                code: "ü".repeat(99),
                ..ErrorView::default()
            }),
            abandoned: true,
            ..item()
        };
        for (columns, width) in [(Columns::Plain, 136), (Columns::WithTenant, 149)] {
            let item = &item;
            let row = Row { item, columns }.to_string();
            assert_eq!(row.chars().count(), width, "{row}");
            assert!(!row.contains('\n') && row.contains("abandoned: ü"), "{row}");
        }
        let item = &ItemView::default();
        let columns = Columns::of([item]);
        assert_eq!(columns, Columns::Plain);
        let nothing = Row { item, columns }.to_string();
        assert_eq!(
            nothing
                .split_whitespace()
                .filter(|cell| *cell == "-")
                .count(),
            5
        );
    }

    #[test]
    fn ages_are_shown_in_their_largest_unit() {
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_599, "59m"),
            (3_600, "1h"),
            (86_400, "1d"),
        ] {
            assert_eq!(age(seconds), expected);
        }
    }
}
