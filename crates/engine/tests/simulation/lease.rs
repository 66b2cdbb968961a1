//! Owning a partition: a candidate takes a lease that has gone silent, its owner renews it and moves
//! the checkpoint with that, and learns, late perhaps, that it was lost.

use std::time::Duration;

use waybill_engine::{Epoch, Event, Offset, Stamp, Timestamp};

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::history::Rule;
use crate::queue::What;
use crate::run::Run;
use crate::scheduler::{FINGERPRINT_BASE, Life, Owner};
use crate::seen::Sight;
use crate::store::{Checkpoint, LEASE_MARGIN_MICROS, LEASE_MICROS, Lease};

/// How far an owner's clock may be ahead.
const AHEAD_MICROS: u64 = 1_800_000;

impl Run {
    /// A candidate takes a lease that nobody has renewed for long enough.
    pub fn watch(&mut self, partition: usize) {
        let after = self.rng.between(100_000, 400_000);
        self.later(after, What::Watch { partition });
        let seen = self.store.shards[partition].lease;
        let patience = LEASE_MICROS + LEASE_MARGIN_MICROS;
        if seen.is_some_and(|lease| {
            !lease.is_free && self.now.since(lease.changed_at).as_micros() < u128::from(patience)
        }) {
            return;
        }
        match seen {
            Some(lease) if lease.is_free => self.seen.count(Sight::HandedOver),
            Some(_) => self.seen.count(Sight::TakeOvers),
            None => {}
        }
        let owner = self.owners.len();
        let clock = Clock::new(self.owner_skew(), self.now);
        let floor = seen.map_or(Stamp(0), |lease| lease.stamp_limit);
        let lease = Lease {
            owner,
            epoch: seen.map_or(Epoch(1), |lease| lease.epoch.next()),
            stamp_limit: self.stamp_limit(floor, clock),
            checkpoint: seen.map_or(Checkpoint::default(), |lease| lease.checkpoint),
            changed_at: self.now,
            is_free: false,
        };
        self.store.shards[partition].lease = Some(lease);
        self.note_all(|| format!("owner {owner} takes partition {partition}: {lease:?}"));
        let forgets = self.bug == Some(Bug::ForgetStampFloor);
        let stamp_floor = if forgets { Stamp(0) } else { floor };
        let mut new = Owner::new(partition, &lease, stamp_floor, clock);
        new.valid_until = valid_until(self.now);
        self.owners.push(new);
        let after = self.rng.below(5_000);
        self.later(after, What::Start { owner });
        self.later(after + 100_000, What::Renew { owner });
    }

    /// An owner's clock may be far ahead, and so may its stamps; that only makes it patient. Where
    /// settling protects, all clocks have to be nearly right.
    fn owner_skew(&mut self) -> i64 {
        let skew = self.skew();
        if !self.plan.is_settling() && self.rng.chance(25) {
            return skew + i64::try_from(self.rng.below(AHEAD_MICROS)).unwrap();
        }
        skew
    }

    /// Limits lie two leases ahead; now and then hardly anything, so that stamps run out.
    fn stamp_limit(&mut self, limit: Stamp, mut clock: Clock) -> Stamp {
        let ahead = if self.rng.chance(4) {
            2
        } else {
            2 * LEASE_MICROS
        };
        let now = clock.read(self.now).as_micros();
        Stamp(limit.0.max(now) + i64::try_from(ahead).unwrap())
    }

    /// Sends the renewal of the lease, with the checkpoint.
    pub fn renew(&mut self, index: usize) {
        let after = self.rng.between(80_000, 350_000);
        self.later(after, What::Renew { owner: index });
        let held = self.store.shards[self.owners[index].partition].lease;
        let owner = &mut self.owners[index];
        let (Some(engine), Some(held), false) = (&owner.engine, held, owner.is_renewing) else {
            return;
        };
        let reached = engine.checkpoint();
        let position = |offset: Offset| usize::try_from(offset.0).unwrap();
        let mut checkpoint = Checkpoint {
            requests: position(reached.requests),
            replies: position(reached.replies),
            recoveries: position(reached.recoveries),
        };
        let fits = reached.requests_fingerprint.is_none_or(|fingerprint| {
            fingerprint + 1 == checkpoint.requests as u64 + FINGERPRINT_BASE
        });
        if !fits || reached.consumed < reached.requests {
            self.fail(Rule::Contract, None, || format!("{reached:?}"));
        }
        let owner = &mut self.owners[index];
        if self.bug == Some(Bug::CheckpointEarly) {
            checkpoint.requests = owner.next[0];
            checkpoint.replies = owner.next[1];
        }
        owner.is_renewing = true;
        let is_free = owner.may_release(self.now);
        let (epoch, limit, clock) = (owner.epoch, owner.stamp_limit, owner.clock);
        let lease = Box::new(Lease {
            owner: index,
            epoch,
            stamp_limit: self.stamp_limit(limit, clock),
            checkpoint,
            changed_at: held.changed_at,
            is_free,
        });
        let is_slow = !self.plan.is_settling() && !self.is_calm() && self.rng.chance(3);
        let after = self.rng.below(if is_slow { 1_500_000 } else { 5_000 });
        let sent = self.now;
        self.later(
            after,
            What::RenewalLands {
                owner: index,
                sent,
                lease,
            },
        );
    }

    /// The conditional write of a renewal.
    pub fn renewal_lands(&mut self, index: usize, sent: Timestamp, lease: Lease) {
        let partition = self.owners[index].partition;
        let stored = &mut self.store.shards[partition].lease;
        let is_written =
            stored.is_some_and(|stored| stored.epoch == lease.epoch && !stored.is_free);
        if is_written {
            *stored = Some(Lease {
                changed_at: self.now,
                ..lease
            });
            self.check_checkpoint(partition);
        } else {
            self.seen.count(Sight::FencedRenewals);
        }
        let after = self.rng.below(3_000);
        self.later(
            after,
            What::Renewed {
                owner: index,
                sent,
                lease: Box::new(lease),
                is_written,
            },
        );
    }

    pub fn renewed(&mut self, index: usize, sent: Timestamp, lease: Lease, is_written: bool) {
        let ignores = self.bug == Some(Bug::IgnoreLease);
        let owner = &mut self.owners[index];
        owner.is_renewing = false;
        if !is_written && !ignores {
            return self.give_up(index);
        }
        if is_written && lease.is_free {
            owner.life = Life::GaveUp;
            return self.note_all(|| format!("owner {index} has given its lease back"));
        }
        if is_written {
            owner.valid_until = valid_until(sent);
            owner.stamp_limit = lease.stamp_limit;
            self.apply(index, Event::StampLimit(lease.stamp_limit));
        }
    }

    /// The lease is lost: the engine's decisions are worth nothing any more.
    pub fn give_up(&mut self, index: usize) {
        let owner = &mut self.owners[index];
        owner.life = Life::GaveUp;
        self.note_all(|| format!("owner {index} finds its lease lost"));
    }

    pub fn has_valid_lease(&self, index: usize) -> bool {
        self.now < self.owners[index].valid_until || self.bug == Some(Bug::IgnoreLease)
    }
}

fn valid_until(sent: Timestamp) -> Timestamp {
    sent + Duration::from_micros(LEASE_MICROS - LEASE_MARGIN_MICROS)
}
