//! `waybill ops list`: operations that linger, failed or are parked.

use std::collections::HashSet;
use std::io::{self, Write};

use clap::Args;
use serde_json::value::RawValue;
use uuid::Uuid;
use waybill_api::view::{ItemView, PAGE_ITEMS_MAX};
use waybill_telemetry::visible::escaped_json;
use waybill_terminal::{
    ColorArgs, Column, NOTHING, Output, Table, report_left_out, terminal_width,
};

use super::OpsError;
use super::api::Api;
use super::filter::Filter;

/// The maximum number of operations in one list. Their IDs are kept in memory to list each once.
const LISTED_MAX: u64 = 1_000_000;
/// The page size: the API's maximum.
const PAGE_ITEMS: u64 = PAGE_ITEMS_MAX as u64;
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
    #[command(flatten)]
    color: ColorArgs,
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
        let terminal_width = terminal_width();
        let is_colored = self.color.is_colored();
        let mut had_tenants = None;
        let mut left_out = Vec::new();
        let mut is_empty = true;
        while let Some(items) = page {
            is_empty &= items.is_empty();
            let rows = || items.iter().map(|(_, item)| item);
            match self.output {
                Output::Json => {
                    for (json, _) in &items {
                        writeln!(out, "{}", escaped_json(json.get()))?;
                    }
                }
                Output::Table if items.is_empty() => {}
                Output::Table => {
                    // Pages differ on a terminal. Elsewhere, they share a heading until one brings
                    // the first tenant.
                    let keeps_tenants = terminal_width.is_none() && had_tenants == Some(true);
                    let table =
                        ItemTable::of(rows(), terminal_width, keeps_tenants).colored(is_colored);
                    let has_tenants = Some(table.has_tenants());
                    left_out.extend(table.left_out(rows()));
                    let text = match terminal_width.is_some() || had_tenants < has_tenants {
                        true => table.with_heading(rows()),
                        false => table.rows(rows()),
                    };
                    had_tenants = had_tenants.max(has_tenants);
                    writeln!(out, "{text}")?;
                }
            }
            page = listing.next_page().await?;
        }
        report_left_out(&distinct(left_out));
        if listing.has_more() {
            eprintln!("there are more: use --all, or a --limit above {limit}");
        } else if is_empty {
            eprintln!("{}", nothing_found(&self.filter));
        }
        Ok(())
    }
}

/// The names without repetitions, in their order.
fn distinct(names: Vec<&'static str>) -> Vec<&'static str> {
    let mut seen = HashSet::new();
    names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .collect()
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

/// Operations as a table.
pub(super) struct ItemTable {
    columns: Vec<Column>,
    terminal_width: Option<u16>,
    is_colored: bool,
}

impl ItemTable {
    const COLUMNS: [Column; 8] = [
        Column::whole("OPERATION", 36),
        Column::of_states("STATE", 18),
        Column::whole("AGE", 4),
        Column::new("WORKFLOW", 14).ranked(4),
        Column::new("STEP", 11).ranked(2),
        Column::whole("FINGERPRINT", 12).ranked(5),
        Column::new("ERROR", 19),
        Column::new("CALLER'S ID", 15).ranked(3),
    ];
    const TENANT: Column = Column::new("TENANT", 12).ranked(1);

    /// A table for a terminal of this width, with the columns that these operations need, or with
    /// that of tenants in any case.
    pub(super) fn of<'a>(
        items: impl IntoIterator<Item = &'a ItemView>,
        terminal_width: Option<u16>,
        has_tenants: bool,
    ) -> Self {
        let mut columns = Self::COLUMNS.to_vec();
        if has_tenants || items.into_iter().any(|item| !item.tenant.is_empty()) {
            columns.insert(columns.len() - 1, Self::TENANT);
        }
        Self {
            columns,
            terminal_width,
            is_colored: false,
        }
    }

    /// The table with or without colors of states.
    fn colored(self, is_colored: bool) -> Self {
        Self { is_colored, ..self }
    }

    fn has_tenants(&self) -> bool {
        self.columns.len() > Self::COLUMNS.len()
    }

    /// The operations with a heading.
    pub(super) fn with_heading<'a>(&self, items: impl IntoIterator<Item = &'a ItemView>) -> String {
        self.text(
            Table::new(&self.columns, self.terminal_width).with_heading(),
            items,
        )
    }

    /// The operations alone.
    fn rows<'a>(&self, items: impl IntoIterator<Item = &'a ItemView>) -> String {
        self.text(Table::new(&self.columns, self.terminal_width), items)
    }

    /// The columns that do not fit on the terminal.
    pub(super) fn left_out<'a>(
        &self,
        items: impl IntoIterator<Item = &'a ItemView>,
    ) -> Vec<&'static str> {
        if self.terminal_width.is_none() {
            return Vec::new();
        }
        let mut table = Table::new(&self.columns, self.terminal_width).with_heading();
        self.add(&mut table, items);
        table.left_out()
    }

    fn text<'a>(&self, table: Table<'_>, items: impl IntoIterator<Item = &'a ItemView>) -> String {
        let mut table = table.colored(self.is_colored);
        self.add(&mut table, items);
        table.into_text()
    }

    fn add<'a>(&self, table: &mut Table<'_>, items: impl IntoIterator<Item = &'a ItemView>) {
        for item in items {
            let mut cells = cells(item).to_vec();
            if self.has_tenants() {
                cells.insert(cells.len() - 1, or_nothing(&item.tenant));
            }
            table.add(cells);
        }
    }
}

fn cells(item: &ItemView) -> [String; 8] {
    let ItemView {
        id,
        state,
        workflow,
        caller_id,
        step,
        further_failed_steps,
        error,
        fingerprint,
        age_seconds,
        abandoned,
        ..
    } = item;
    let error = error.as_ref().map_or(NOTHING, |error| &error.code);
    let error = match abandoned {
        true => format!("abandoned: {error}"),
        false => error.to_owned(),
    };
    let given = |text: &Option<String>| or_nothing(text.as_deref().unwrap_or_default());
    let step = match further_failed_steps.len() {
        0 => given(step),
        further => format!("{} +{further}", given(step)),
    };
    [
        id.to_string(),
        state.to_string(),
        age(*age_seconds),
        or_nothing(workflow),
        step,
        given(fingerprint),
        error,
        given(caller_id),
    ]
}

/// A text as a cell, which is never empty.
fn or_nothing(text: &str) -> String {
    match text {
        "" => NOTHING.to_owned(),
        text => text.to_owned(),
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
    fn the_step_column_counts_further_failed_undos() {
        let mut item = item();
        item.further_failed_steps = vec!["drone".to_owned()];
        assert_eq!(cells(&item)[4], "third-party +1");
    }

    #[test]
    fn an_empty_list_mentions_its_filter() {
        let all = nothing_found(&Filter::default());
        assert_eq!(all, "no operations linger, failed, or are parked");
        let some = Filter::default().or_states(&[waybill_engine::ProcessState::Error]);
        assert_eq!(nothing_found(&some), "no operations match");
    }

    #[test]
    fn a_narrow_terminal_reports_the_columns_that_it_leaves_out() {
        let item = &item();
        let left_out = |width| ItemTable::of([item], width, false).left_out([item]);
        assert!(left_out(None).is_empty());
        assert!(left_out(Some(200)).is_empty());
        let narrow = left_out(Some(80));
        assert!(narrow.contains(&"WORKFLOW"), "{narrow:?}");
        assert!(!narrow.contains(&"STATE"), "{narrow:?}");
        assert_eq!(distinct(vec!["A", "B", "A"]), ["A", "B"]);
    }

    #[test]
    fn each_cell_is_below_its_heading() {
        let item = &item();
        let table = ItemTable::of([item], None, false);
        assert!(table.has_tenants());
        let text = table.with_heading([item]);
        let (heading, row) = text.split_once('\n').unwrap();
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
            assert_eq!(heading.find(name), row.find(cell), "{text}");
        }
        assert_eq!(table.rows([item]), row, "aligned without a heading, too");
    }

    #[test]
    fn hostile_texts_break_no_line_and_nothing_is_an_empty_cell() {
        let long = || Some("lang\nname ".repeat(20));
        let item = ItemView {
            state: "x".repeat(99).into(),
            workflow: long().unwrap(),
            caller_id: long(),
            step: long(),
            error: Some(ErrorView {
                code: "ü".repeat(99),
                ..ErrorView::default()
            }),
            abandoned: true,
            ..item()
        };
        let row = ItemTable::of([&item], None, false).rows([&item]);
        assert!(!row.contains('\n') && row.contains("abandoned: ü"), "{row}");
        let item = &ItemView::default();
        let table = ItemTable::of([item], None, false);
        assert!(!table.has_tenants());
        let count = |table: &ItemTable| {
            let row = table.rows([item]);
            row.split_whitespace().filter(|cell| *cell == "-").count()
        };
        assert_eq!(count(&table), 5);
        let below_a_tenant = ItemTable::of([item], None, true);
        assert_eq!(count(&below_a_tenant), 6);
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
