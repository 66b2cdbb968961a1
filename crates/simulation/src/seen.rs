//! What runs have covered: a run without faults proves nothing.

use waybill_engine::EngineStats;

/// A situation that must occur now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    CrashIdle,
    CrashBeforePersisting,
    CrashAmidPersisting,
    CrashBeforeSending,
    CrashAmidSending,
    CrashBeforeSettling,
    Pauses,
    TakeOvers,
    Splits,
    Merges,
    DoneByFollowed,
    HandedOver,
    SpoiltRows,
    TransactionMarkers,
    RefusedAgain,
    LeasesExpired,
    GracefulStops,
    CutOffs,
    FullQueues,
    Retention,
    RequestsDeleted,
    Refused,
    SchedulerFaults,
    UnknownWrites,
    PartsRepaired,
    PartsNotRead,
    ProposalsCompleted,
    ProposalsDropped,
    WritesRepeated,
    LostMessages,
    GivenUp,
    FencedCommits,
    FencedMessages,
    FencedRenewals,
    FencedWrites,
    LateWritesThatStood,
    LateMessages,
    WindowWasFull,
    ClocksSet,
    AgentCrashes,
    AgentPauses,
    AgentStops,
    AgentsFenced,
    DrainsTimedOut,
    AgentDeadLetters,
    AgentRecordsSentAgain,
    AgentCommitsRefused,
    LastCommitsLost,
    CommittedOffsetsWentBack,
    RequestsHandedOver,
    RequestsLost,
    RequestsTakenOver,
    RequestsReadAgain,
    RequestsRefused,
    LacksOfBytes,
    RequestsHandedBack,
    SupersededRequests,
    AnsweredDirectly,
    AnsweredWhileStopping,
    DiedWithItsAsker,
    SupervisorCrashes,
    SupervisorPauses,
    SupervisorTakeOvers,
    SupervisorLeasesLost,
    SupervisorFaults,
    FailedPasses,
    WaitsForTurns,
    Rebalances,
    CommitsRefused,
    EntriesWrittenAgain,
    EntriesLost,
    RecoveriesLost,
    WokenByAudit,
    AuditsFailed,
    IndexEntriesSeen,
    FailedRecordsSeen,
    TombstoneCancels,
    CancelsApplied,
    CancelsRefused,
    Reschedules,
    ReschedulesRefused,
    LateCallsRefused,
    LateEffectsUndone,
    CopiesUndone,
    UndosBegunByAnAnswer,
    UndosToBeConfirmed,
    ConfirmationsThatUndid,
    ExpiredAtAgent,
    Parks,
    PivotRefusals,
    Resubmits,
    OperatorCompensations,
    RetryCompensations,
    Abandons,
    ManualUndos,
    Probes,
    ProbesNotPerformed,
    Waits,
    UnreachableDeadlines,
    Reopened,
    SkippedSteps,
    EndedProcessed,
    EndedError,
    EndedCompensated,
    EndedCancelled,
    EndedCompensationFailed,
}

impl Sight {
    pub const ALL: [Self; 106] = [
        Self::CrashIdle,
        Self::CrashBeforePersisting,
        Self::CrashAmidPersisting,
        Self::CrashBeforeSending,
        Self::CrashAmidSending,
        Self::CrashBeforeSettling,
        Self::Pauses,
        Self::TakeOvers,
        Self::Splits,
        Self::Merges,
        Self::DoneByFollowed,
        Self::HandedOver,
        Self::SpoiltRows,
        Self::TransactionMarkers,
        Self::RefusedAgain,
        Self::LeasesExpired,
        Self::GracefulStops,
        Self::CutOffs,
        Self::FullQueues,
        Self::Retention,
        Self::RequestsDeleted,
        Self::Refused,
        Self::SchedulerFaults,
        Self::UnknownWrites,
        Self::PartsRepaired,
        Self::PartsNotRead,
        Self::ProposalsCompleted,
        Self::ProposalsDropped,
        Self::WritesRepeated,
        Self::LostMessages,
        Self::GivenUp,
        Self::FencedCommits,
        Self::FencedMessages,
        Self::FencedRenewals,
        Self::FencedWrites,
        Self::LateWritesThatStood,
        Self::LateMessages,
        Self::WindowWasFull,
        Self::ClocksSet,
        Self::AgentCrashes,
        Self::AgentPauses,
        Self::AgentStops,
        Self::AgentsFenced,
        Self::DrainsTimedOut,
        Self::AgentDeadLetters,
        Self::AgentRecordsSentAgain,
        Self::AgentCommitsRefused,
        Self::LastCommitsLost,
        Self::CommittedOffsetsWentBack,
        Self::RequestsHandedOver,
        Self::RequestsLost,
        Self::RequestsTakenOver,
        Self::RequestsReadAgain,
        Self::RequestsRefused,
        Self::LacksOfBytes,
        Self::RequestsHandedBack,
        Self::SupersededRequests,
        Self::AnsweredDirectly,
        Self::AnsweredWhileStopping,
        Self::DiedWithItsAsker,
        Self::SupervisorCrashes,
        Self::SupervisorPauses,
        Self::SupervisorTakeOvers,
        Self::SupervisorLeasesLost,
        Self::SupervisorFaults,
        Self::FailedPasses,
        Self::WaitsForTurns,
        Self::Rebalances,
        Self::CommitsRefused,
        Self::EntriesWrittenAgain,
        Self::EntriesLost,
        Self::RecoveriesLost,
        Self::WokenByAudit,
        Self::AuditsFailed,
        Self::IndexEntriesSeen,
        Self::FailedRecordsSeen,
        Self::TombstoneCancels,
        Self::CancelsApplied,
        Self::CancelsRefused,
        Self::Reschedules,
        Self::ReschedulesRefused,
        Self::LateCallsRefused,
        Self::LateEffectsUndone,
        Self::CopiesUndone,
        Self::UndosBegunByAnAnswer,
        Self::UndosToBeConfirmed,
        Self::ConfirmationsThatUndid,
        Self::ExpiredAtAgent,
        Self::Parks,
        Self::PivotRefusals,
        Self::Resubmits,
        Self::OperatorCompensations,
        Self::RetryCompensations,
        Self::Abandons,
        Self::ManualUndos,
        Self::Probes,
        Self::ProbesNotPerformed,
        Self::Waits,
        Self::UnreachableDeadlines,
        Self::Reopened,
        Self::SkippedSteps,
        Self::EndedProcessed,
        Self::EndedError,
        Self::EndedCompensated,
        Self::EndedCancelled,
        Self::EndedCompensationFailed,
    ];
}

/// How often each situation occurred.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    counts: [u64; Sight::ALL.len()],
    pub stats: EngineStats,
    /// The total number of events.
    pub events: u64,
    /// How many of them a crash can come before with an effect of its own.
    pub points: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            counts: [0; Sight::ALL.len()],
            stats: EngineStats::default(),
            events: 0,
            points: 0,
        }
    }
}

impl Seen {
    pub fn count(&mut self, sight: Sight) {
        self.counts[sight as usize] += 1;
    }

    pub fn of(&self, sight: Sight) -> u64 {
        self.counts[sight as usize]
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        self.add(&other.stats);
        self.events += other.events;
        self.points += other.points;
    }

    /// Adds the counters of an engine.
    pub fn add(&mut self, stats: &EngineStats) {
        for (sum, count) in by_name(&mut self.stats)
            .into_iter()
            .zip(by_name(&mut stats.clone()))
        {
            *sum.1 += *count.1;
        }
    }

    /// The counters of the engines, by name.
    pub fn engine_counts(&self) -> Vec<(&'static str, u64)> {
        let mut stats = self.stats;
        let counts = by_name(&mut stats);
        counts
            .into_iter()
            .map(|(name, count)| (name, *count))
            .collect()
    }
}

/// Every counter, by name. A counter that is missing here is a compile error.
fn by_name(stats: &mut EngineStats) -> [(&'static str, &mut u64); 30] {
    let EngineStats {
        created,
        duplicates,
        rejected,
        processed,
        failed,
        undone,
        undo_failed,
        cancelled,
        rescheduled,
        amendments_refused,
        deadline_unreachable,
        recoveries,
        recoveries_void,
        recoveries_refused,
        retries,
        compensations,
        time_outs,
        unknown_outcomes,
        not_attempted,
        put_off,
        stale_replies,
        late_successes,
        unknown_replies,
        handed_off,
        resumed,
        unreadable,
        misrouted,
        dead_lettered,
        internal_errors,
        unloadable,
    } = stats;
    [
        ("created", created),
        ("duplicates", duplicates),
        ("rejected", rejected),
        ("processed", processed),
        ("failed", failed),
        ("undone", undone),
        ("undo failed", undo_failed),
        ("cancelled", cancelled),
        ("rescheduled", rescheduled),
        ("amendments refused", amendments_refused),
        ("deadline unreachable", deadline_unreachable),
        ("recoveries", recoveries),
        ("recoveries void", recoveries_void),
        ("recoveries refused", recoveries_refused),
        ("retries", retries),
        ("compensations", compensations),
        ("time-outs", time_outs),
        ("unknown outcomes", unknown_outcomes),
        ("not attempted", not_attempted),
        ("postponed", put_off),
        ("stale replies", stale_replies),
        ("late successes", late_successes),
        ("unknown replies", unknown_replies),
        ("handed off", handed_off),
        ("resumed", resumed),
        ("unreadable", unreadable),
        ("misrouted", misrouted),
        ("dead-lettered", dead_lettered),
        ("internal errors", internal_errors),
        ("unloadable", unloadable),
    ]
}
