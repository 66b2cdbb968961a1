//! Ownership of a shard: a candidate takes a lease that was not renewed. Its owner renews it and
//! stores the checkpoint with it, and learns, perhaps late, that it has lost it.

use std::time::Duration;

use waybill_engine::{
    Event, Priority, ResumeOffsets, ShardHandover, ShardId, ShardingScheme, Source, Stamp,
    Timestamp,
};

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::history::Rule;
use crate::queue::What;
use crate::run::Run;
use crate::scheduler::{FINGERPRINT_BASE, Life, Owner, offset};
use crate::seen::Sight;
use crate::store::{Checkpoint, LEASE_MARGIN_MICROS, LEASE_MICROS, Lease, LeaseKey};

/// How far an owner's clock may be ahead.
const AHEAD_MICROS: u64 = 1_800_000;

impl Run {
    /// A candidate takes a lease that was not renewed for long enough.
    pub fn watch(&mut self, shard: ShardId) {
        let after = self.rng.between(100_000, 400_000);
        self.later(after, What::Watch { shard });
        let (generation, scheme) = self.store.layout();
        if shard.0 >= scheme.shards() {
            return;
        }
        let key = (generation, shard);
        let begun = match self.store.leases.get(&key) {
            Some(lease) if !self.may_be_taken(lease) => return,
            Some(lease) => {
                let is_free = lease.is_free;
                let lease = lease.clone();
                self.seen.count(match is_free {
                    true => Sight::HandedOver,
                    false => Sight::TakeOvers,
                });
                lease
            }
            None => match self.beginning(key) {
                Some(lease) => lease,
                None => return,
            },
        };
        let owner = self.owners.len();
        let clock = Clock::new(self.owner_skew());
        let floor = begun.stamp_limit;
        let lease = Lease {
            owner,
            epoch: begun.epoch.next(),
            stamp_limit: self.stamp_limit(floor, clock),
            changed_at: self.now,
            is_free: false,
            ..begun
        };
        self.store.leases.insert(key, lease.clone());
        self.note_all(|| format!("owner {owner} takes {key:?}: {lease:?}"));
        let forgets = self.bug == Some(Bug::ForgetStampFloor);
        let stamp_floor = if forgets { Stamp(0) } else { floor };
        let mut new = Owner::new(key, scheme, &lease, stamp_floor, clock);
        new.valid_until = valid_until(self.now);
        self.owners.push(new);
        let after = self.rng.below(5_000);
        self.later(after, What::Start { owner });
        self.later(after + 100_000, What::Renew { owner });
    }

    /// Whether a lease looks free to a candidate.
    fn may_be_taken(&self, lease: &Lease) -> bool {
        let patience = LEASE_MICROS + LEASE_MARGIN_MICROS;
        lease.is_free || self.now.since(lease.changed_at).as_micros() >= u128::from(patience)
    }

    /// The first lease of a shard, once all shards that it follows are ended.
    fn beginning(&mut self, (generation, shard): LeaseKey) -> Option<Lease> {
        let Some(before) = generation.checked_sub(1) else {
            return Some(Lease::default());
        };
        let (scheme, of_before) = (self.store.layouts[generation], self.store.layouts[before]);
        let mut leases = Vec::new();
        for parent in scheme.follows(of_before, shard) {
            leases.push((parent, self.end((before, parent))?));
        }
        self.seen.count(match leases.len() {
            1 => Sight::Splits,
            _ => Sight::Merges,
        });
        let at = |source| {
            leases
                .iter()
                .map(move |(_, lease)| lease.checkpoint.on(source))
        };
        let is_greedy = self.bug == Some(Bug::MergeAtHighest);
        let begin = |source| match is_greedy {
            true => at(source).max().unwrap_or_default(),
            false => at(source).min().unwrap_or_default(),
        };
        let checkpoint = Checkpoint::of(begin);
        let resume = leases.iter().flat_map(|(parent, lease)| {
            let own = ResumeOffsets {
                scheme: of_before,
                shard: *parent,
                at: lease.checkpoint.0,
            };
            lease.handover.resume_offsets().iter().copied().chain([own])
        });
        let handover = ShardHandover::new(resume, |source| offset(checkpoint.on(source)));
        let of_leases = || leases.iter().map(|(_, lease)| lease);
        Some(Lease {
            epoch: of_leases().map(|lease| lease.epoch).max()?,
            stamp_limit: of_leases().map(|lease| lease.stamp_limit).max()?,
            checkpoint,
            handover,
            ..Lease::default()
        })
    }

    /// Ends a shard of an earlier layout for good, if its owner has released it or is silent.
    fn end(&mut self, key: LeaseKey) -> Option<Lease> {
        let current = match self.store.leases.get(&key) {
            Some(lease) if lease.is_ended => return Some(lease.clone()),
            Some(lease) if self.bug == Some(Bug::BeginBeforeTaken) => return Some(lease.clone()),
            Some(lease) if !self.may_be_taken(lease) => return None,
            Some(lease) => lease.clone(),
            None => self.beginning(key)?,
        };
        let ended = Lease {
            epoch: current.epoch.next(),
            changed_at: self.now,
            is_free: true,
            is_ended: true,
            ..current
        };
        self.note_all(|| format!("{key:?} is ended: {ended:?}"));
        self.store.leases.insert(key, ended.clone());
        Some(ended)
    }

    /// Changes the number of shards per partition.
    pub fn repartition(&mut self) {
        let (_, scheme) = self.store.layout();
        let others = [1, 2, 4].into_iter();
        let others = others.filter(|&number| number != scheme.shards_per_partition);
        let others: Vec<u32> = others.collect();
        let next = ShardingScheme {
            shards_per_partition: others[self.rng.index(others.len())],
            ..scheme
        };
        self.note_all(|| format!("the sharding changes: {next}"));
        self.store.layouts.push(next);
        for shard in self.watched..next.shards() {
            let shard = ShardId(shard);
            self.later(1_000, What::Watch { shard });
        }
        self.watched = self.watched.max(next.shards());
    }

    /// An owner's clock and stamps may be far ahead, which only makes it wait longer. If protection
    /// is by settling, all clocks must be nearly right.
    fn owner_skew(&mut self) -> i64 {
        let skew = self.skew();
        if !self.plan.is_settling() && self.rng.chance(25) {
            return skew + i64::try_from(self.rng.below(AHEAD_MICROS)).unwrap();
        }
        skew
    }

    /// A limit is two leases ahead; occasionally much less, so that stamps run out.
    fn stamp_limit(&mut self, limit: Stamp, mut clock: Clock) -> Stamp {
        let ahead = if self.rng.chance(4) {
            2
        } else {
            2 * LEASE_MICROS
        };
        let now = clock.read(self.now).as_micros();
        Stamp(limit.0.max(now) + i64::try_from(ahead).unwrap())
    }

    /// Sends the renewal of the lease, which contains the checkpoint.
    pub fn renew(&mut self, index: usize) {
        let after = self.rng.between(80_000, 350_000);
        self.later(after, What::Renew { owner: index });
        let (generation, _) = self.store.layout();
        let (key, now) = (self.owners[index].key, self.now);
        if key.0 != generation {
            // Its layout has ended.
            self.owners[index].stop(now);
        }
        let held = self.store.leases.get(&key).cloned();
        let owner = &mut self.owners[index];
        let (Some(engine), Some(held), false) = (&owner.engine, held, owner.is_renewing) else {
            return;
        };
        let reached = engine.checkpoint();
        let mut checkpoint = Checkpoint(reached.at);
        let fits = |priority: Priority| {
            let done = checkpoint.on(priority.source());
            let has_fingerprint = reached.fingerprints[priority]
                .is_none_or(|fingerprint| fingerprint + 1 == done as u64 + FINGERPRINT_BASE);
            has_fingerprint && reached.consumed[priority] >= reached.at.on(priority.source())
        };
        if !Priority::ALL.into_iter().all(fits) {
            self.fail(Rule::Contract, None, || format!("{reached:?}"));
        }
        let owner = &mut self.owners[index];
        if self.bug == Some(Bug::CheckpointEarly) {
            checkpoint = Checkpoint::of(|source| match source {
                Source::Recoveries => checkpoint.on(source),
                _ => owner.next[Self::index_of(source)],
            });
        }
        owner.is_renewing = true;
        let is_free = owner.may_release(self.now);
        let (epoch, limit, clock) = (owner.epoch, owner.stamp_limit, owner.clock);
        let lease = Box::new(Lease {
            owner: index,
            epoch,
            stamp_limit: self.stamp_limit(limit, clock),
            handover: pruned(held.handover, checkpoint),
            checkpoint,
            changed_at: held.changed_at,
            is_free,
            is_ended: false,
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
        let (partition, key) = (self.owners[index].partition, self.owners[index].key);
        let stored = self.store.leases.get(&key);
        let is_written =
            stored.is_some_and(|stored| stored.epoch == lease.epoch && !stored.is_free);
        if is_written {
            let renewed = Lease {
                changed_at: self.now,
                ..lease.clone()
            };
            self.store.leases.insert(key, renewed);
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

    /// The lease is lost: the engine's decisions are dropped.
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

/// The part of a handover beyond a checkpoint.
fn pruned(mut handover: ShardHandover, checkpoint: Checkpoint) -> ShardHandover {
    handover.forget_below(|source| offset(checkpoint.on(source)));
    handover
}
