//! The list of operations that linger, failed or are parked.
//!
//! It reads the attention table, and then only the rows that the entries name. An entry is a hint:
//! its operation may have continued since. One call reads a bounded number of entries; if these do
//! not fill the page, the answer has fewer items and a cursor to continue from.
//!
//! What must hold: an operation that needs a person is never left out. An operation with several
//! entries (it lingered, then failed, then was parked) may be on several pages, but only once on
//! each.
//!
//! A cursor does not reveal to a caller of one tenant which operations of other tenants were
//! skipped.

mod admission;
mod cursor;

use std::collections::HashSet;

use hyper::{StatusCode, header};
use uuid::Uuid;
use waybill_api::view::{ItemView, ListView, PAGE_ITEMS_MAX, UNREADABLE};
use waybill_clock::wall_clock;
use waybill_engine::{OperationRow, ProcessState, Timestamp, Workflows};
use waybill_http::auth::Tenants;
use waybill_http::problem::Problem;
use waybill_store::{AttentionCursor, AttentionEntry, AttentionOrder};
use waybill_units::duration_from_text;

use self::cursor::{ShownCursor, of_text, to_text};
use crate::service::{Api, Call, OF_LIST, QueryErrors, Reply, json, pairs, set_static};
use crate::view::{item_of_row, unreadable_item};

pub use self::admission::ListAdmission;

/// The default number of items on a page.
const PAGE_ITEMS: usize = 100;
/// How many entries one call reads.
const ENTRIES_MAX: usize = 2_000;
/// How many rows are held at the same time.
const ROWS_AT_ONCE: usize = 100;

impl Api {
    /// `GET /v1/operations`.
    pub async fn list(&self, call: Call<'_>) -> Result<Reply, Problem> {
        let Call { query, caller, .. } = call;
        let now = wall_clock();
        let Asked {
            filter,
            mut cursor,
            limit,
        } = Asked::read(query, now, caller.tenants())?;
        let mut permit = self.lists.admit(caller.tenants()).await?;
        let mut shown = ShownCursor::new(caller.tenants(), cursor);
        let mut page = Page {
            items: Vec::new(),
            listed: HashSet::new(),
            now,
            workflows: &self.rules.workflows,
        };
        let index_shards = self.intake.partition_map().all_ever();
        let mut looked_at = 0;
        let next = 'page: loop {
            let entries = self
                .intake
                .reads()
                .attention_page(index_shards.clone(), cursor, ROWS_AT_ONCE)
                .await?;
            let ids = entries
                .entries
                .iter()
                .map(|entry| entry.operation)
                .collect();
            let rows = self.intake.rows(ids).await?;
            for (entry, row) in entries.entries.iter().zip(rows) {
                shown.passes(*entry, &row);
                page.add_if_listed(*entry, row, &filter);
                cursor.after = Some(*entry);
                if page.items.len() == limit {
                    break 'page Some(shown.at(cursor));
                }
            }
            looked_at += entries.entries.len();
            match entries.next {
                None => break None,
                Some(next) if looked_at >= ENTRIES_MAX && shown.has_moved(next) => {
                    break Some(shown.at(next));
                }
                Some(next) => cursor = next,
            }
            permit.pause().await;
        };
        let view = ListView {
            items: page.items,
            next: next.map(|cursor| to_text(&cursor)),
        };
        let mut reply = json(StatusCode::OK, &view);
        set_static(&mut reply, header::CACHE_CONTROL, "no-store");
        Ok(reply)
    }
}

/// A page that is being filled.
struct Page<'a> {
    items: Vec<ItemView>,
    listed: HashSet<Uuid>,
    now: Timestamp,
    workflows: &'a Workflows,
}

impl Page<'_> {
    fn add_if_listed(
        &mut self,
        entry: AttentionEntry,
        row: Result<Option<OperationRow>, Problem>,
        filter: &Filter,
    ) {
        let item = match row {
            Ok(None) => return,
            Ok(Some(row)) => {
                let item = item_of_row(&row, self.workflows, entry, self.now);
                match filter.lets_pass(&item, row.state.state) {
                    true => item,
                    false => return,
                }
            }
            Err(_) => {
                let item = unreadable_item(entry, self.now);
                match filter.lets_pass_unreadable() {
                    true => item,
                    false => return,
                }
            }
        };
        if self.listed.insert(item.id) {
            self.items.push(item);
        }
    }
}

/// Which operations a list shows.
#[derive(Debug, Default)]
struct Filter {
    /// Any of these states; empty means all, except final states that need no attention.
    states: Vec<ProcessState>,
    wants_unreadable: bool,
    workflow: Option<String>,
    tenant: Option<String>,
    step: Option<String>,
    /// A code or a fingerprint.
    error: Option<String>,
    wants_abandoned: bool,
}

impl Filter {
    fn lets_pass(&self, item: &ItemView, state: ProcessState) -> bool {
        let is_of_state = match (self.states.as_slice(), self.wants_unreadable) {
            ([], true) => false,
            ([], false) => !matches!(
                state,
                ProcessState::Processed | ProcessState::Compensated | ProcessState::Cancelled
            ),
            (states, _) => states.contains(&state),
        };
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        let is_of_error = self.error.as_deref().is_none_or(|wanted| {
            item.error
                .as_ref()
                .is_some_and(|error| error.code == wanted)
                || item.fingerprint.as_deref() == Some(wanted)
        });
        is_of_state
            && is_of_error
            && is(&self.workflow, &item.workflow)
            && is(&self.tenant, &item.tenant)
            && is(&self.step, item.step.as_deref().unwrap_or_default())
            && (self.wants_abandoned || !item.abandoned)
    }

    /// Parses a word of the parameter `state`.
    fn read_state(&mut self, word: &str, errors: &mut QueryErrors) {
        if word == UNREADABLE {
            self.wants_unreadable = true;
            return;
        }
        let mut listed = ProcessState::LISTED.into_iter();
        if let Some(state) = listed.find(|state| state.as_str() == word) {
            self.states.push(state);
            return;
        }
        let words = ProcessState::LISTED.map(ProcessState::as_str).join(", ");
        let mut detail = format!("must be any of {words}, {UNREADABLE}");
        let mut known = ProcessState::ALL.into_iter();
        if let Some(state) = known.find(|state| state.as_str() == word) {
            let state = state.as_str();
            detail.push_str(&format!(": {state} operations are not listed"));
        }
        errors.wrong("state", detail);
    }

    /// Whether an unreadable row passes: only its being unreadable is known.
    fn lets_pass_unreadable(&self) -> bool {
        let others = [&self.workflow, &self.tenant, &self.step, &self.error];
        (self.wants_unreadable || self.states.is_empty()) && others.iter().all(|it| it.is_none())
    }
}

/// The parameters of a list.
#[derive(Debug)]
struct Asked {
    filter: Filter,
    cursor: AttentionCursor,
    limit: usize,
}

impl Asked {
    fn read(query: Option<&str>, now: Timestamp, tenants: &Tenants) -> Result<Self, Problem> {
        let mut errors = QueryErrors::default();
        let (mut filter, mut limit) = (Filter::default(), PAGE_ITEMS);
        let (mut order, mut older_than) = (AttentionOrder::OldestFirst, None);
        let mut going_on = None;
        for (name, value) in pairs(query) {
            let Some(value) = errors.known_value(name, value, &OF_LIST) else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            match name {
                "state" => value
                    .split(',')
                    .for_each(|word| filter.read_state(word, &mut errors)),
                "workflow" => filter.workflow = Some(value),
                "tenant" => filter.tenant = Some(value),
                "step" => filter.step = Some(value),
                "error" => filter.error = Some(value),
                "abandoned" => match value.as_str() {
                    "true" => filter.wants_abandoned = true,
                    "false" => filter.wants_abandoned = false,
                    _ => errors.wrong(name, "must be true or false"),
                },
                "olderThan" => match duration_from_text(&value) {
                    Ok(duration) => older_than = Some(duration),
                    Err(error) => errors.wrong(name, error.to_string()),
                },
                "limit" => match value.parse() {
                    Ok(number) if (1..=PAGE_ITEMS_MAX).contains(&number) => limit = number,
                    _ => errors.wrong(name, format!("must be from 1 to {PAGE_ITEMS_MAX}")),
                },
                "order" => match value.as_str() {
                    "oldest" => order = AttentionOrder::OldestFirst,
                    "newest" => order = AttentionOrder::NewestFirst,
                    _ => errors.wrong(name, "must be oldest or newest"),
                },
                "cursor" => match of_text(&value) {
                    Some(cursor) => going_on = Some(cursor),
                    None => errors.wrong(name, "must be the unchanged `next` of a page"),
                },
                _ => errors.unknown(name, &OF_LIST),
            }
        }
        errors.into_result()?;
        let named = filter.tenant.take();
        filter.tenant = match tenants {
            Tenants::All => named,
            Tenants::One(_) => Some(tenants.meant(named.unwrap_or_default())?),
        };
        // Without an age no entry is too young, not even one that another clock dates in the
        // future.
        let until = older_than.map_or(Timestamp(i64::MAX), |age| {
            let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            Timestamp(now.as_micros().saturating_sub(micros))
        });
        Ok(Self {
            filter,
            cursor: going_on
                .unwrap_or_else(|| AttentionCursor::new(order, Timestamp(i64::MIN), until)),
            limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_parameter_is_named() {
        let query = "state=Broken&olderThan=soon&limit=0&order=random&cursor=x&abandoned=1&what=";
        let problem = Asked::read(Some(query), Timestamp(0), &Tenants::All).unwrap_err();
        assert_eq!(problem.errors.len(), 7, "{:?}", problem.errors);
        let query = "state=a,b&limit=0&limit=x";
        let problem = Asked::read(Some(query), Timestamp(0), &Tenants::All).unwrap_err();
        let named = problem.errors.into_iter();
        let named: Vec<_> = named.filter_map(|error| error.parameter).collect();
        assert_eq!(named, ["state", "limit"]);
    }

    #[test]
    fn every_parameter_that_is_listed_is_read() {
        for name in OF_LIST {
            let query = format!("{name}=%20");
            let read = Asked::read(Some(&query), Timestamp(0), &Tenants::All);
            let errors = read.map_or_else(|problem| problem.errors, |_| Vec::new());
            let mut details = errors.iter().map(|error| &error.detail);
            assert!(!details.any(|it| it.starts_with("is unknown")), "{name}");
        }
    }

    #[test]
    fn a_state_that_is_not_listed_is_refused() {
        for state in ["Pending", "Processed", "Cancelled"] {
            let query = format!("state=Error,{state}");
            let problem = Asked::read(Some(&query), Timestamp(0), &Tenants::All).unwrap_err();
            let [error] = &problem.errors[..] else {
                panic!("{:?}", problem.errors)
            };
            let expected = format!(
                "must be any of Processing, Error, Compensating, Compensated, CompensationFailed, \
                 Unreadable: {state} operations are not listed"
            );
            assert_eq!(error.detail, expected);
        }
    }

    #[test]
    fn a_query_selects_filter_and_start() {
        let now = Timestamp(100_000_000);
        let query = "state=Error,CompensationFailed&olderThan=40s&order=newest&limit=7&step=a%2Bb";
        let asked = Asked::read(Some(query), now, &Tenants::All).unwrap();
        assert_eq!(asked.limit, 7);
        assert_eq!(asked.cursor.until, Timestamp(60_000_000));
        assert_eq!(asked.cursor.order, AttentionOrder::NewestFirst);
        assert_eq!(asked.filter.step.as_deref(), Some("a+b"));
        assert_eq!(
            asked.filter.states,
            [ProcessState::Error, ProcessState::CompensationFailed]
        );
    }
}
