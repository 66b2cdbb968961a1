//! The counters of an engine.

/// Counters since the last time they were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Operations created.
    pub created: u64,
    /// Requests that repeated an earlier one.
    pub duplicates: u64,
    /// Requests with the id of an existing operation and another body.
    pub rejected: u64,
    /// Operations that ended `Processed`.
    pub processed: u64,
    /// Operations that were parked in `Error`.
    pub failed: u64,
    /// Operations that ended `Compensated` or `Cancelled`.
    pub undone: u64,
    /// Operations that were parked in `CompensationFailed`.
    pub undo_failed: u64,
    /// Cancels that were applied.
    pub cancelled: u64,
    /// Reschedules that were applied.
    pub rescheduled: u64,
    /// Cancels and reschedules that were refused.
    pub amendments_refused: u64,
    /// Operations whose deadline became unreachable.
    pub deadline_unreachable: u64,
    /// Recoveries that were applied.
    pub recoveries: u64,
    /// Recoveries that arrived too late to have an effect.
    pub recoveries_void: u64,
    /// Recoveries that were refused.
    pub recoveries_refused: u64,
    /// Attempts beyond a step's first.
    pub retries: u64,
    /// Steps whose undo was started.
    pub compensations: u64,
    /// Attempts that outlived their complete-by.
    pub time_outs: u64,
    /// Attempts whose outcome the agent reported as unknown.
    pub unknown_outcomes: u64,
    /// Attempts that the agent did not make.
    pub not_attempted: u64,
    /// Attempts that were delayed because their agent was throttled.
    pub put_off: u64,
    /// Replies that changed nothing: superseded, or repeated.
    pub stale_replies: u64,
    /// Of these, successes that proved an effect not otherwise accounted for.
    pub late_successes: u64,
    /// Replies of operations that have no row.
    pub unknown_replies: u64,
    /// Hand-offs to the deadline index; one operation may count several times.
    pub handed_off: u64,
    /// Operations taken over from an earlier ownership.
    pub resumed: u64,
    /// Records that could not be decoded.
    pub unreadable: u64,
    /// Records that belong to another partition.
    pub misrouted: u64,
    /// Records sent to a dead-letter topic.
    pub dead_lettered: u64,
    /// Operations parked because the engine's own logic failed on them.
    pub internal_errors: u64,
    /// Operations whose rows could not be read.
    pub unloadable: u64,
}
