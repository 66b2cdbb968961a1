//! The contract of every [`Store`], whatever holds its rows.
//!
//! An implementation defines in [`Subject`] how it is opened, and runs every rule with
//! [`contract_tests!`](crate::contract_tests). Rules use fresh ids, partitions and index shards of
//! their own, so that they may share one database.

pub mod attention;
pub mod corrupt;
pub mod due;
pub mod layout;
pub mod lease;
pub mod reply_key;
pub mod rows;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;
use waybill_engine::{
    Attempt, Created, Epoch, Offset, OperationId, OperationRow, OperationState, OwnerId,
    PartitionId, Position, Priority, ProcessState, RequestHash, Stamp, StepProgress, StepState,
    Timestamp,
};
use waybill_store::{RowWrite, Store, WriteBatch};

/// A store under test.
pub trait Subject {
    /// Opens the store, and again after it was closed by dropping what this returned before.
    fn open(&self) -> impl Future<Output = Arc<dyn Store>> + Send;

    /// Makes the stored state of an operation unreadable without the store, which is closed.
    fn spoil(&self, id: OperationId) -> impl Future<Output = ()> + Send;

    /// Why the rules cannot run here; `None` if they can.
    fn why_skipped(&self) -> Option<String> {
        None
    }

    /// Removes what the rule has left.
    fn clean_up(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Closes the store and opens it again.
pub async fn reopen(subject: &impl Subject, store: Arc<dyn Store>) -> Arc<dyn Store> {
    assert_eq!(
        Arc::strong_count(&store),
        1,
        "the rule still holds the store"
    );
    drop(store);
    subject.open().await
}

/// Closes the store, makes the states of `ids` unreadable and opens it again.
pub async fn reopen_spoiled(
    subject: &impl Subject,
    store: Arc<dyn Store>,
    ids: &[OperationId],
) -> Arc<dyn Store> {
    assert_eq!(
        Arc::strong_count(&store),
        1,
        "the rule still holds the store"
    );
    drop(store);
    for &id in ids {
        subject.spoil(id).await;
    }
    subject.open().await
}

/// Makes one test of every rule, each with its own subject.
#[macro_export]
macro_rules! contract_tests {
    ($subject:expr) => {
        contract_tests! {
            $subject;
            rows {
                a_row_reads_back_whole,
                rows_are_read_in_the_order_asked_for_and_missing_ones_are_none,
                an_empty_batch_is_written,
                the_immutable_part_stays_when_a_write_does_not_give_it,
                a_lower_stamp_changes_nothing,
                an_equal_stamp_changes_nothing,
                a_late_create_brings_the_immutable_part_and_not_the_state,
                the_highest_stamp_wins_in_every_order,
                the_highest_stamp_wins_among_concurrent_writers,
                a_row_whose_retention_has_passed_reads_as_none,
                a_final_row_that_is_reopened_is_kept_for_good_again,
                a_batch_of_two_thousand_rows_is_written_whole,
                rows_survive_reopening,
            }
            corrupt {
                an_unreadable_row_is_named_and_fails_no_other,
                a_state_without_an_immutable_part_is_unreadable_and_fails_no_other,
                a_write_replaces_an_unreadable_row_and_the_rest_of_its_batch_is_written,
            }
            lease {
                a_lease_that_was_never_taken_is_none,
                a_lease_is_taken_renewed_and_read_back_with_its_checkpoint,
                a_lease_is_taken_only_from_exactly_what_was_seen,
                a_lease_is_released_by_taking_it_without_an_owner,
                a_stale_owners_renewal_is_refused,
                a_renewal_never_goes_back_and_its_repeat_is_accepted,
                of_sixteen_contenders_exactly_one_takes_a_lease,
                an_owner_that_renews_and_a_contender_never_both_win,
                leases_of_shards_of_layouts_and_of_roles_do_not_mix,
                an_ended_lease_is_kept_with_its_handover_and_cannot_be_renewed,
            }
            layout {
                a_layout_is_replaced_only_from_what_was_seen_and_read_back,
                of_eight_contenders_exactly_one_replaces_the_layout,
            }
            reply_key {
                the_first_reply_key_remains_and_survives_reopening,
                all_of_eight_callers_get_the_same_reply_key,
            }
            due {
                due_entries_are_read_in_order_from_their_bucket_only,
                a_due_entry_written_twice_is_read_once,
                a_bucket_is_read_page_by_page,
                the_cursor_moves_forward_only_and_survives_reopening,
                the_cursor_leaves_entries_at_and_behind_it,
                no_row_is_visible_before_its_index_entries,
            }
            attention {
                attention_is_listed_over_days_and_index_shards_in_either_order,
                a_listing_keeps_to_its_instants_and_to_its_index_shards,
                a_cursor_that_was_made_up_lists_nothing_outside_its_instants,
                a_page_of_no_entries_stays_where_it_is,
                entries_written_during_a_listing_appear_only_ahead_of_it,
            }
        }
    };
    ($subject:expr; $($module:ident { $($rule:ident),* $(,)? })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $rule() {
                let subject = $subject;
                if let Some(why) = $crate::contract::Subject::why_skipped(&subject) {
                    println!("SKIPPED: {why}");
                    return;
                }
                $crate::contract::$module::$rule(&subject).await;
                $crate::contract::Subject::clean_up(&subject).await;
            }
        )*)*
    };
}

/// Repeatable pseudo-random numbers (xorshift64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// An id that no other test uses.
pub fn fresh_id() -> OperationId {
    OperationId(Uuid::new_v4())
}

/// A partition that no other rule of this process uses.
pub fn fresh_partition() -> PartitionId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    PartitionId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An immutable part that `mark` distinguishes from others.
pub fn created(mark: i64) -> Arc<Created> {
    Arc::new(Created {
        workflow: "drone-delivery".into(),
        workflow_version: 1,
        step_names: vec!["account".into(), "drone".into()],
        tenant: "tenant".into(),
        caller_id: Some(format!("caller-{mark}")),
        input: Arc::from(format!("{{\"mark\":{mark}}}").as_bytes()),
        deadline: Some(Timestamp(mark)),
        reply_to: Some("answers".to_owned()),
        request_hash: RequestHash([7; 16]),
        request: Position {
            priority: match mark % 2 {
                0 => Priority::Normal,
                _ => Priority::High,
            },
            partition: PartitionId(3),
            offset: Offset(mark),
        },
        requested_at: Timestamp(mark),
        created_at: Timestamp(mark + 1),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    })
}

/// A state that `mark` distinguishes from others.
pub fn state(mark: i64) -> OperationState {
    OperationState {
        state: ProcessState::Processing,
        locked_by: Some(OwnerId(Uuid::from_u128(5))),
        epoch: Epoch(1),
        next_due: Some(Timestamp(mark)),
        handed_off: false,
        failure_count: 0,
        sequence: 0,
        updated_at: Timestamp(mark),
        error: None,
        steps: vec![
            StepProgress {
                state: StepState::Completed,
                attempt: Attempt(1),
                outputs: vec![("mark".to_owned(), mark.to_string())],
                ..StepProgress::default()
            },
            StepProgress::default(),
        ],
        ..OperationState::default()
    }
}

/// A write whose state, and immutable part if there is one, are marked with its stamp.
pub fn write(id: OperationId, stamp: i64, with_created: bool) -> RowWrite {
    RowWrite {
        id,
        created: with_created.then(|| created(stamp)),
        state: state(stamp),
        stamp: Stamp(stamp),
        keep_for: None,
    }
}

/// A batch of rows only.
pub fn rows(rows: impl IntoIterator<Item = RowWrite>) -> WriteBatch {
    WriteBatch {
        rows: rows.into_iter().collect(),
        ..WriteBatch::default()
    }
}

/// The row that a state of one stamp and an immutable part of another make.
pub fn row(id: OperationId, state_stamp: i64, created_stamp: i64) -> OperationRow {
    OperationRow {
        id,
        created: created(created_stamp),
        state: state(state_stamp),
        stamp: Stamp(state_stamp),
    }
}
