//! Bugs that can be planted, one at a time, to test whether the judge detects them. Each corrupts a
//! decision of the loops, or its execution; the code that ships has no switch.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    CheckpointEarly,
    SendBeforePersist,
    SettleBeforeAcknowledged,
    IgnoreLease,
    AssumeRenewal,
    AssumeDurable,
    TakeWithoutWaiting,
    SkipDeleted,
    IgnoreStamps,
    ForgetStampFloor,
    RecoverTwice,
    LoseRecovery,
    SkipIndexEntry,
    MoveCursorEarly,
    WakeNothing,
    ForgetUnknownInUndo,
    DropLateSuccess,
    DropCopiedSuccess,
    TrustForgetful,
    UndoBeforeSettled,
    WorkPastCompleteBy,
    KeyPerAttempt,
    ResumeWithoutAsking,
    TimeOutBeforeInboxIsRead,
    LoseFailedRecord,
    LoseAlert,
    LoseOwnerNotice,
    LoseTombstone,
    BeginBeforeTaken,
    MergeAtHighest,
    ForgetRefused,
}

impl Bug {
    pub const ALL: [Self; 31] = [
        Self::CheckpointEarly,
        Self::SendBeforePersist,
        Self::SettleBeforeAcknowledged,
        Self::IgnoreLease,
        Self::AssumeRenewal,
        Self::AssumeDurable,
        Self::TakeWithoutWaiting,
        Self::SkipDeleted,
        Self::IgnoreStamps,
        Self::ForgetStampFloor,
        Self::RecoverTwice,
        Self::LoseRecovery,
        Self::SkipIndexEntry,
        Self::MoveCursorEarly,
        Self::WakeNothing,
        Self::ForgetUnknownInUndo,
        Self::DropLateSuccess,
        Self::DropCopiedSuccess,
        Self::TrustForgetful,
        Self::UndoBeforeSettled,
        Self::WorkPastCompleteBy,
        Self::KeyPerAttempt,
        Self::ResumeWithoutAsking,
        Self::TimeOutBeforeInboxIsRead,
        Self::LoseFailedRecord,
        Self::LoseAlert,
        Self::LoseOwnerNotice,
        Self::LoseTombstone,
        Self::BeginBeforeTaken,
        Self::MergeAtHighest,
        Self::ForgetRefused,
    ];

    /// Describes the fault for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::CheckpointEarly => "The checkpoint moves over everything that was read",
            Self::SendBeforePersist => "Messages are sent before their rows are durable",
            Self::SettleBeforeAcknowledged => {
                "A batch counts as settled when its messages are sent, not when they are acknowledged"
            }
            Self::IgnoreLease => "An owner whose lease has expired keeps sending",
            Self::AssumeRenewal => "A renewal of unknown outcome counts as written",
            Self::AssumeDurable => "A write of unknown outcome counts as durable",
            Self::TakeWithoutWaiting => {
                "A lease is taken without waiting for its owner to be silent"
            }
            Self::SkipDeleted => "A log that begins behind its checkpoint is accepted",
            Self::IgnoreStamps => "A write with a lower stamp overwrites a higher one",
            Self::ForgetStampFloor => "A new owner's stamps may be below its predecessor's",
            Self::RecoverTwice => {
                "A recovery is applied to the attempt after the one that was seen, too"
            }
            Self::LoseRecovery => "A recovery is read and marked as done, but not applied",
            Self::SkipIndexEntry => "A hand-off writes no entry into the deadline index",
            Self::MoveCursorEarly => {
                "A supervisor moves its cursor before its recoveries are acknowledged"
            }
            Self::WakeNothing => "The recoveries of an audit are not published",
            Self::ForgetUnknownInUndo => {
                "A step of unknown outcome is called undone without asking its agent"
            }
            Self::DropLateSuccess => {
                "A success of an operation that was undone in the meantime is dropped"
            }
            Self::DropCopiedSuccess => {
                "A success of an attempt that had succeeded is dropped though its undo has begun"
            }
            Self::TrustForgetful => {
                "An undo counts immediately although the service forgets what was undone"
            }
            Self::UndoBeforeSettled => {
                "A step of unknown outcome is undone before late calls can no longer take effect"
            }
            Self::WorkPastCompleteBy => "An agent starts work past its complete-by",
            Self::KeyPerAttempt => "Every attempt has its own idempotency key",
            Self::ResumeWithoutAsking => "A new owner does not ask again for what runs",
            Self::TimeOutBeforeInboxIsRead => {
                "Time-outs are applied before the inbox is read to its end"
            }
            Self::LoseFailedRecord => {
                "The record of a failed operation is not waited for, and lost in a crash"
            }
            Self::LoseAlert => "An alert is not waited for, and lost in a crash",
            Self::LoseOwnerNotice => "A notice to an owner is not waited for, and lost in a crash",
            Self::LoseTombstone => "A cancel that arrives before its create leaves no row",
            Self::BeginBeforeTaken => {
                "A shard of a new layout begins before its parents have ended"
            }
            Self::MergeAtHighest => {
                "A merged shard begins at the highest of its parents' checkpoints"
            }
            Self::ForgetRefused => {
                "A request that is refused when it is read again leads to no operation"
            }
        }
    }
}
