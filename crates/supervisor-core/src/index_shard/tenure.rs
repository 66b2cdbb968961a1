//! An owner's work on an index shard: passes, reroutes and skips, while its lease is kept.

use std::time::Duration;

use waybill_engine::{BootTime, Now};
use waybill_state::{DueBucket, Lease};

use super::pass::{Page, Pass};
use super::{Effect, Event, IndexShard, Notice, RETRY_PAUSE, State};
use crate::lease::HeldLease;
use crate::sweep::Sweep;
use crate::unexpected::UnexpectedEvent;

/// How often a partition that is no longer in use is checked for records.
const REROUTE_EVERY: Duration = Duration::from_secs(3);

/// The ownership of an index shard that has a cursor.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) lease: HeldLease,
    pub(super) sweep: Sweep,
    rerouted_at: BootTime,
    /// Since when the sweep could skip.
    skippable_since: Option<BootTime>,
}

/// The effect in progress.
#[derive(Debug)]
pub(super) enum Doing {
    Renewing {
        row: Box<Lease>,
        sent: BootTime,
        then: Then,
    },
    Rerouting,
    Skipping(DueBucket),
    /// Reads entries.
    Reading(Pass),
    /// Reads the rows of due entries.
    Looking(Pass, Page),
    /// Reserves a turn for recoveries.
    Reserving(Pass, Page),
    /// Waits for the turn.
    Waiting(Pass, Page, BootTime),
    Publishing(Pass, Page),
    MovingCursor(DueBucket),
    Pausing,
}

/// What follows once the lease is renewed, if that is due.
#[derive(Debug)]
pub(super) enum Then {
    Turn,
    Pass,
    Read(Pass),
    /// Publishes recoveries at this instant.
    Publish(Pass, Page, BootTime),
}

impl Tenure {
    pub(super) fn new(lease: HeldLease, cursor: DueBucket, grace: Duration, now: BootTime) -> Self {
        Self {
            lease,
            sweep: Sweep::new(cursor, grace),
            rerouted_at: now,
            skippable_since: None,
        }
    }
}

impl IndexShard {
    /// Handles the result of an effect of the owner.
    pub(super) fn sweep(
        &mut self,
        mut tenure: Tenure,
        doing: Doing,
        event: Event,
        now: Now,
    ) -> Result<Effect, UnexpectedEvent> {
        Ok(match (doing, event) {
            (Doing::Renewing { row, sent, then }, Event::LeaseWritten(true)) => {
                tenure.lease.renewed(*row, sent);
                self.proceed(tenure, then, now)
            }
            (Doing::Renewing { .. }, Event::LeaseWritten(false)) => {
                self.notices.push(Notice::Lost);
                self.end()
            }
            (Doing::Renewing { then, .. }, Event::Failed) => match then {
                Then::Turn | Then::Pass => self.fail(),
                Then::Read(_) | Then::Publish(..) => self.fail_pass(tenure, now),
            },
            (Doing::Rerouting, Event::Rerouted(to)) => match to == tenure.lease.rerouted() {
                true => self.begin_pass(tenure, now),
                false => {
                    let row = tenure.lease.renewal_with(to);
                    self.renew(tenure, row, Then::Pass, now)
                }
            },
            (Doing::Skipping(cursor), Event::CursorMoved) => {
                tenure.sweep.skip_to(cursor);
                tenure.skippable_since = None;
                self.read_buckets(tenure, now)
            }
            (Doing::Skipping(_), Event::Failed) => self.fail(),
            (Doing::Reading(pass), Event::Entries(entries)) => {
                self.look_at(tenure, pass, entries, now)
            }
            (Doing::Looking(pass, page), Event::Rows(rows)) => {
                self.decide(tenure, pass, page, rows, now)
            }
            (Doing::Reserving(pass, page), Event::Turn(wait)) => {
                match self.is_stopping && !wait.is_zero() {
                    true => self.end_pass(tenure, false, now),
                    false => self.keep(tenure, Then::Publish(pass, page, now.boot + wait), now),
                }
            }
            (Doing::Waiting(pass, page, until), Event::Waited) => {
                match self.is_stopping && now.boot < until {
                    true => self.end_pass(tenure, false, now),
                    false => self.keep(tenure, Then::Publish(pass, page, until), now),
                }
            }
            (Doing::Publishing(pass, page), Event::Published) => {
                self.publish(tenure, pass, page, now)
            }
            (Doing::MovingCursor(cursor), Event::CursorMoved) => {
                let is_behind = tenure.sweep.cursor_moved(cursor);
                self.notices.push(Notice::Swept);
                self.end_pass(tenure, is_behind, now)
            }
            (
                Doing::Reading(_)
                | Doing::Looking(..)
                | Doing::Publishing(..)
                | Doing::MovingCursor(_),
                Event::Failed,
            ) => self.fail_pass(tenure, now),
            (Doing::Pausing, Event::Waited) if self.is_stopping => self.release(&tenure.lease),
            (Doing::Pausing, Event::Waited) => self.begin_turn(tenure, now),
            (doing, event) => return Err(UnexpectedEvent::new(&doing, &event)),
        })
    }

    pub(super) fn sweeping(&mut self, tenure: Tenure, doing: Doing) {
        self.state = State::Sweeping(Box::new(tenure), doing);
    }

    pub(super) fn begin_turn(&mut self, tenure: Tenure, now: Now) -> Effect {
        self.keep(tenure, Then::Turn, now)
    }

    /// Renews the lease first, if a third of it has passed.
    pub(super) fn keep(&mut self, tenure: Tenure, then: Then, now: Now) -> Effect {
        if !tenure.lease.renewal_due_in(now.boot).is_zero() {
            return self.proceed(tenure, then, now);
        }
        let row = tenure.lease.renewal();
        self.renew(tenure, row, then, now)
    }

    fn renew(&mut self, tenure: Tenure, row: Lease, then: Then, now: Now) -> Effect {
        let (renewal, sent) = (row.clone(), now.boot);
        let row = Box::new(row);
        self.sweeping(tenure, Doing::Renewing { row, sent, then });
        Effect::RenewLease(renewal)
    }

    fn proceed(&mut self, mut tenure: Tenure, then: Then, now: Now) -> Effect {
        let is_valid = tenure.lease.is_valid(now.boot);
        match then {
            Then::Turn if now.boot.since(tenure.rerouted_at) >= REROUTE_EVERY => {
                tenure.rerouted_at = now.boot;
                let from = tenure.lease.rerouted();
                self.sweeping(tenure, Doing::Rerouting);
                Effect::Reroute(from)
            }
            Then::Turn | Then::Pass => self.begin_pass(tenure, now),
            Then::Read(_) | Then::Publish(..) if !is_valid => self.end_pass(tenure, false, now),
            Then::Read(pass) => self.read_entries(tenure, pass),
            Then::Publish(pass, page, at) if now.boot < at => {
                let renewal_due_in = tenure.lease.renewal_due_in(now.boot);
                let wait = at.since(now.boot).min(renewal_due_in);
                self.sweeping(tenure, Doing::Waiting(pass, page, at));
                Effect::Wait(wait)
            }
            Then::Publish(pass, mut page, _) => {
                let chunk = page.take_chunk(self.settings.chunk);
                self.sweeping(tenure, Doing::Publishing(pass, page));
                Effect::Publish(chunk)
            }
        }
    }

    /// Begins a pass over the open buckets, after a skip if the sweep is far behind for good.
    fn begin_pass(&mut self, mut tenure: Tenure, now: Now) -> Effect {
        let skips_to = tenure.sweep.may_skip_to(now.wall);
        let since = tenure.skippable_since.unwrap_or(now.boot);
        tenure.skippable_since = skips_to.map(|_| since);
        // Wait before skipping: a clock that is ahead also makes the cursor look old.
        let is_confirmed = now.boot.since(since) >= self.settings.audit_interval;
        match skips_to.filter(|_| is_confirmed && tenure.lease.is_valid(now.boot)) {
            Some(cursor) => {
                let behind = tenure.sweep.behind(now.wall);
                self.notices.push(Notice::Skipping(behind));
                self.sweeping(tenure, Doing::Skipping(cursor));
                Effect::MoveCursor(cursor)
            }
            None => self.read_buckets(tenure, now),
        }
    }

    fn read_buckets(&mut self, tenure: Tenure, now: Now) -> Effect {
        let pass = Pass::new(tenure.sweep.to_read(now.wall));
        self.read_bucket(tenure, pass, now)
    }

    /// A pass has ended without a failure. The next one follows immediately if the cursor could
    /// have moved further.
    pub(super) fn end_pass(&mut self, tenure: Tenure, is_behind: bool, now: Now) -> Effect {
        self.notices
            .push(Notice::Behind(tenure.sweep.behind(now.wall)));
        match is_behind && !self.is_stopping && tenure.skippable_since.is_none() {
            true => self.begin_turn(tenure, now),
            false => self.pause(tenure, self.settings.interval),
        }
    }

    fn fail_pass(&mut self, tenure: Tenure, now: Now) -> Effect {
        self.notices
            .push(Notice::Behind(tenure.sweep.behind(now.wall)));
        self.notices.push(Notice::PassFailed);
        self.pause(tenure, RETRY_PAUSE + self.settings.interval)
    }

    fn pause(&mut self, tenure: Tenure, pause: Duration) -> Effect {
        self.sweeping(tenure, Doing::Pausing);
        Effect::Wait(pause)
    }
}
