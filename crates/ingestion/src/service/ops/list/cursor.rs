//! Where a page of a list ends and the next one begins.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use waybill_engine::OperationRow;
use waybill_http::auth::Tenants;
use waybill_http::problem::Problem;
use waybill_store::{AttentionCursor, AttentionEntry, AttentionOrder};

/// The cursor that a client receives.
///
/// What must hold: it names only operations that the client may see. If the last entry of the page
/// is another tenant's, the cursor is the instant of that entry, and the next page reads that
/// instant again. An operation may then be on two pages, which is harmless.
pub(super) struct ShownCursor<'a> {
    tenants: &'a Tenants,
    /// The start of the page.
    began: AttentionCursor,
    last: Option<AttentionEntry>,
    last_own: Option<AttentionEntry>,
}

impl<'a> ShownCursor<'a> {
    /// For a page that begins here, for a client that may see these tenants.
    pub(super) fn new(tenants: &'a Tenants, began: AttentionCursor) -> Self {
        Self {
            tenants,
            began,
            last: None,
            last_own: None,
        }
    }

    /// Notes the next entry of the page, and its row.
    pub(super) fn passes(
        &mut self,
        entry: AttentionEntry,
        row: &Result<Option<OperationRow>, Problem>,
    ) {
        let is_own = match row {
            Ok(Some(row)) => self.tenants.include(&row.created.tenant),
            Ok(None) | Err(_) => self.tenants.only().is_none(),
        };
        self.last = Some(entry);
        if is_own {
            self.last_own = Some(entry);
        }
    }

    /// Whether the cursor shown for `next` advances. If not, the page must continue.
    pub(super) fn has_moved(&self, next: AttentionCursor) -> bool {
        self.at(next) != self.began
    }

    /// The cursor to show for this one.
    pub(super) fn at(&self, cursor: AttentionCursor) -> AttentionCursor {
        let Some(last) = self.last.filter(|_| self.tenants.only().is_some()) else {
            return cursor;
        };
        match self.last_own {
            Some(own) if own.at == last.at => AttentionCursor {
                after: Some(own),
                ..cursor
            },
            _ => {
                // The page began after an own entry of the same instant: continue from that.
                let after = self.began.after.filter(|began| began.at == last.at);
                let (since, until) = match cursor.order {
                    AttentionOrder::OldestFirst => (last.at, cursor.until),
                    AttentionOrder::NewestFirst => (cursor.since, last.at),
                };
                AttentionCursor {
                    after,
                    ..AttentionCursor::new(cursor.order, since, until)
                }
            }
        }
    }
}

/// The text of a cursor.
pub(super) fn to_text(cursor: &AttentionCursor) -> String {
    let json = serde_json::to_vec(cursor).expect("a cursor is numbers and ids");
    URL_SAFE_NO_PAD.encode(json)
}

/// Parses a cursor.
pub(super) fn of_text(text: &str) -> Option<AttentionCursor> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::{OperationId, Timestamp};

    use super::*;
    use waybill_http::problem::Kind;

    fn entry(at: i64, operation: u128) -> AttentionEntry {
        AttentionEntry {
            at: Timestamp(at),
            operation: OperationId(Uuid::from_u128(operation)),
        }
    }

    fn beginning(order: AttentionOrder) -> AttentionCursor {
        AttentionCursor::new(order, Timestamp(i64::MIN), Timestamp(i64::MAX))
    }

    #[test]
    fn a_cursor_reads_back_and_anything_else_is_refused() {
        let mut cursor = beginning(AttentionOrder::NewestFirst);
        cursor.after = Some(entry(3, 9));
        assert_eq!(of_text(&to_text(&cursor)), Some(cursor));
        for bad in ["", "x", "e30", "bm9uZQ=="] {
            assert_eq!(of_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cursor_contains_no_operation_of_another_tenant() {
        let tenants = Tenants::One("acme".into());
        for order in [AttentionOrder::OldestFirst, AttentionOrder::NewestFirst] {
            let began = beginning(order);
            let mut shown = ShownCursor::new(&tenants, began);
            let mut next = began;
            // The tenant cannot be read.
            let unreadable = || Err(Problem::new(Kind::RowUnreadable, ""));
            for passed in [entry(5, 1), entry(5, 2)] {
                shown.passes(passed, &unreadable());
                next.after = Some(passed);
            }
            let masked = shown.at(next);
            assert_eq!(masked.after, None);
            match order {
                AttentionOrder::OldestFirst => assert_eq!(masked.since, Timestamp(5)),
                AttentionOrder::NewestFirst => assert_eq!(masked.until, Timestamp(5)),
            }
            assert!(shown.has_moved(next));

            // The same instant again: the page must continue.
            let mut again = ShownCursor::new(&tenants, masked);
            again.passes(entry(5, 2), &unreadable());
            assert!(!again.has_moved(AttentionCursor {
                after: Some(entry(5, 2)),
                ..masked
            }));
        }
    }

    #[test]
    fn a_cursor_for_all_tenants_continues_after_the_last_entry() {
        let began = beginning(AttentionOrder::OldestFirst);
        let mut shown = ShownCursor::new(&Tenants::All, began);
        shown.passes(entry(5, 1), &Ok(None));
        let next = AttentionCursor {
            after: Some(entry(5, 1)),
            ..began
        };
        assert_eq!(shown.at(next), next);
    }
}
