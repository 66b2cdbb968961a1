//! The broker: it appends at once, late, or never, and its answer may be lost.

use std::time::Duration;

use waybill_engine::{Offset, PartitionId};
use waybill_ingestion_core::{Failed, Refusal};

use super::judge::IntakeSight;
use super::{Event, World};

impl World {
    /// A record arrives at the broker.
    pub(super) fn arrives(&mut self, produced: u64) {
        let now = self.now;
        let outage = self
            .outages
            .iter()
            .find(|(from, to)| *from <= now && now < *to)
            .copied();
        let unknown = Event::Delivered {
            produced,
            outcome: Err(Failed::Unknown),
        };
        if let Some((_, end)) = outage {
            // The producer tries again until it gives up, and what it sent may still arrive.
            return match self.rng.below(3) {
                0 if end - now < self.accept_timeout => {
                    self.later(end - now, Event::Append { produced });
                }
                1 => {
                    self.saw(IntakeSight::AppendedLate);
                    self.later(end - now, Event::AppendLate { produced });
                    self.later(self.accept_timeout, unknown);
                }
                _ => {
                    self.saw(IntakeSight::UnknownAndLost);
                    self.later(self.accept_timeout, unknown);
                }
            };
        }
        if self.is_calm() || !self.rng.chance(self.faults) {
            let offset = self.append(produced);
            let is_unknown = !self.is_calm() && self.rng.chance(2);
            if is_unknown {
                self.saw(IntakeSight::OffsetUnknown);
            }
            let at = (PartitionId(0), (!is_unknown).then_some(offset));
            let after = self.travel();
            return self.later_ms(
                after,
                Event::Delivered {
                    produced,
                    outcome: Ok(at),
                },
            );
        }
        match self.rng.below(6) {
            0 => {
                self.saw(IntakeSight::UnknownAndAppended);
                self.append(produced);
                self.later(self.accept_timeout, unknown);
            }
            1 => {
                self.saw(IntakeSight::AppendedLate);
                let after = self.rng.below(20_000);
                self.later_ms(after, Event::AppendLate { produced });
                self.later(self.accept_timeout, unknown);
            }
            2 => {
                self.saw(IntakeSight::UnknownAndLost);
                self.later(self.accept_timeout, unknown);
            }
            3 => {
                self.saw(IntakeSight::UnknownAndAppended);
                self.append(produced);
                let after = self.travel();
                self.later_ms(after, Event::Dropped { produced });
            }
            _ => {
                self.saw(IntakeSight::RefusedByBroker);
                let refusals = [Refusal::DiskLimit, Refusal::TooLarge, Refusal::Broker];
                let refusal = refusals[self.rng.index(3)];
                let after = match self.rng.chance(30) {
                    // It was never sent.
                    true => self.accept_timeout,
                    false => Duration::from_millis(self.travel()),
                };
                self.later(
                    after,
                    Event::Delivered {
                        produced,
                        outcome: Err(Failed::Refused(refusal)),
                    },
                );
            }
        }
    }

    /// Appends a record, whose process may have died meanwhile.
    pub(super) fn append(&mut self, produced: u64) -> Offset {
        let record = self.produced[&produced].record;
        let log = self.log.entry(record.priority).or_default();
        log.push(record);
        Offset(i64::try_from(log.len()).unwrap() - 1)
    }
}
