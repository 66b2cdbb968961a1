//! The ids of operations, chosen by callers or by ingestion.
//!
//! What must hold: the id of an operation is a pure function of the tenant and the caller's id, in
//! every ingestion and over every restart, so that a repeat meets the operation that it repeats.
//! Ids that ingestion made also arrive as callers' ids: if the outcome of a request is unknown, the
//! answer names the id to repeat it with. Such an id is the operation's id itself. A mark in its
//! last 16 bits, computed from the rest and the tenant, distinguishes it from a UUIDv7 that a
//! caller made. The random part keeps 58 bits, of which 42 count up within a process.

use std::fmt;
use std::sync::Mutex;

use uuid::timestamp::context::ContextV7;
use uuid::{Timestamp, Uuid, Version};
use waybill_clock::wall_clock;
use waybill_engine::{OperationId, murmur2};
use waybill_telemetry::visible::is_word;

/// The longest id that a caller may choose, in characters.
pub const CALLER_ID_CHARS_MAX: usize = 256;

/// Counts the ids of one millisecond, and keeps ids growing if the clock goes back.
static COUNT: Mutex<ContextV7> = Mutex::new(ContextV7::new());

/// A new id for an operation of `tenant` without a caller's id.
pub fn fresh(tenant: &str) -> OperationId {
    let since_epoch = wall_clock().since(waybill_engine::Timestamp(0));
    let (seconds, nanos) = (since_epoch.as_secs(), since_epoch.subsec_nanos());
    let at = Timestamp::from_unix(&COUNT, seconds, nanos);
    let mut bytes = Uuid::new_v7(at).into_bytes();
    let mark = mark(&bytes, tenant);
    bytes[14..].copy_from_slice(&mark);
    OperationId(Uuid::from_bytes(bytes))
}

/// Whether [`fresh`] made `id` for `tenant`. A UUIDv7 of another origin matches once in 65,536
/// times. That does no harm: the result is always the same.
pub fn is_ours(id: OperationId, tenant: &str) -> bool {
    let bytes = id.0.as_bytes();
    id.0.get_version() == Some(Version::SortRand) && bytes[14..] == mark(bytes, tenant)
}

fn mark(bytes: &[u8; 16], tenant: &str) -> [u8; 2] {
    let mut text = Vec::with_capacity(14 + tenant.len());
    text.extend_from_slice(&bytes[..14]);
    text.extend_from_slice(tenant.as_bytes());
    let hash = murmur2(&text);
    ((hash ^ (hash >> 16)) as u16).to_be_bytes()
}

/// An id that a caller gave: one word of 1 to [`CALLER_ID_CHARS_MAX`] visible characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallerId(String);

/// The text is not a valid caller's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "must be 1 to {CALLER_ID_CHARS_MAX} visible characters, without white space, must not begin with a combining mark, and must not be `.` or `..`"
)]
pub struct BadCallerId;

impl CallerId {
    /// Checks `text` as a caller's id.
    pub fn new(text: impl Into<String>) -> Result<Self, BadCallerId> {
        let text = text.into();
        let is_short = text.chars().nth(CALLER_ID_CHARS_MAX).is_none();
        // Clients take these out of a path.
        let is_of_path = matches!(&*text, "." | "..");
        match is_short && !is_of_path && is_word(&text) {
            true => Ok(Self(text)),
            false => Err(BadCallerId),
        }
    }

    /// Checks the value of an `Idempotency-Key` header, with or without the quotes of a structured
    /// field's string.
    pub fn of_header(value: &[u8]) -> Result<Self, BadCallerId> {
        let text = std::str::from_utf8(value).map_err(|_| BadCallerId)?.trim();
        let bare = text
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or(text);
        Self::new(bare)
    }

    /// The text, owned.
    pub fn into_string(self) -> String {
        self.0
    }

    /// The operation of `tenant` with this id.
    pub fn operation(&self, tenant: &str) -> OperationId {
        self.as_ours(tenant)
            .unwrap_or_else(|| OperationId::of_caller(tenant, &self.0))
    }

    /// The operation id in this text, if ingestion made it for `tenant`.
    pub fn as_ours(&self, tenant: &str) -> Option<OperationId> {
        as_operation_id(&self.0).filter(|id| is_ours(*id, tenant))
    }
}

impl fmt::Display for CallerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Every operation that `text` in a path can refer to: by its own id, or by the caller's id of
/// `tenant`.
pub fn candidates(tenant: &str, text: &str) -> Vec<OperationId> {
    let mut ids = Vec::with_capacity(2);
    ids.extend(as_operation_id(text));
    if let Ok(caller_id) = CallerId::new(text) {
        let id = caller_id.operation(tenant);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Accepts only the spelling that answers use: another spelling of the UUID is another caller's id.
fn as_operation_id(text: &str) -> Option<OperationId> {
    let id: OperationId = text.parse().ok()?;
    (id.key() == text.as_bytes()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_are_distinct_version_7_and_recognised_for_their_tenant_only() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let id = fresh("acme");
            assert_eq!(id.0.get_version_num(), 7);
            assert!(is_ours(id, "acme"));
            assert!(seen.insert(id));
        }
        let mistaken = seen.iter().filter(|id| is_ours(**id, "other")).count();
        assert!(
            mistaken < 10,
            "{mistaken} of 10,000 ids pass for another tenant's"
        );
    }

    #[test]
    fn a_generated_id_is_used_unchanged_and_any_other_becomes_version_5() {
        let id = fresh("");
        let ours = CallerId::new(id.to_string()).unwrap();
        assert_eq!(ours.operation(""), id);

        let upper = CallerId::new(id.to_string().to_uppercase()).unwrap();
        assert_eq!(upper.operation(""), OperationId::of_caller("", &upper.0));

        let callers_own = CallerId::new("order-17").unwrap();
        assert_eq!(
            callers_own.operation("acme"),
            OperationId::of_caller("acme", "order-17")
        );
        assert_ne!(callers_own.operation("acme"), callers_own.operation(""));
    }

    #[test]
    fn a_path_may_contain_either_form() {
        let uuid = Uuid::new_v4().to_string();
        assert_eq!(
            candidates("", &uuid),
            [uuid.parse().unwrap(), OperationId::of_caller("", &uuid)]
        );
        assert_eq!(
            candidates("t", "order-17"),
            [OperationId::of_caller("t", "order-17")]
        );
        let id = fresh("");
        assert_eq!(candidates("", &id.to_string()), [id]);
        assert_eq!(candidates("", "a b"), []);
    }

    #[test]
    fn a_callers_id_is_visible_and_bounded() {
        for good in ["a", "Größe-1", "a/b:c~d", &"x".repeat(256)] {
            assert!(CallerId::new(good).is_ok(), "{good}");
        }
        let invisible = [
            "a\u{200b}",
            "a\u{202e}b",
            "a\u{e0041}",
            "a\u{a0}",
            "a\u{378}",
            "\u{301}a",
        ];
        for bad in [
            "",
            ".",
            "..",
            " ",
            "a b",
            "a\u{0}",
            "a\n",
            "\u{85}",
            &"x".repeat(257),
        ]
        .into_iter()
        .chain(invisible)
        {
            assert_eq!(CallerId::new(bad), Err(BadCallerId), "{bad:?}");
        }
        assert_eq!(CallerId::of_header(b"\"k-1\"").unwrap().0, "k-1");
        assert_eq!(CallerId::of_header(b" k-1 ").unwrap().0, "k-1");
        assert_eq!(CallerId::of_header(b"\xff"), Err(BadCallerId));
        assert_eq!(CallerId::of_header(b"\"\""), Err(BadCallerId));
    }
}
