//! Following the layout: which readers this process runs, and what becomes of them when the layout is
//! replaced by another.
//!
//! What must hold: the readers of a layout that has ended take no new batch, finish the commit that is
//! under way, and give their leases back; those of the new one begin when all whom they follow were taken
//! (`ownership`), wherever those ran. Readers whose partition is another in the new layout go on until they have
//! read the one that they leave to its end.

use std::time::Instant;

use waybill_engine::{Division, ReaderId};
use waybill_store::Layout;
use waybill_telemetry::chain;

use super::input::Input;
use super::partition::{Slot, SlotState};
use super::scheduler_loop::SchedulerLoop;
use super::tasks::{self, Task, TaskError};

/// Which readers a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// All of whatever layout is in force.
    All,
    /// From the first to the last, those that the layout has.
    Range {
        /// The first one.
        first: ReaderId,
        /// The last one, included.
        last: ReaderId,
    },
}

impl Own {
    /// Those of a division.
    pub fn of(self, division: Division) -> impl Iterator<Item = ReaderId> {
        division.all().filter(move |reader| match self {
            Self::All => true,
            Self::Range { first, last } => (first..=last).contains(reader),
        })
    }
}

impl SchedulerLoop {
    /// Asks for the layout, as often as leases are renewed: it is one small read for all readers.
    pub(super) fn read_layout(&mut self) {
        let (asked_at, is_awaited) = self.layout_asked;
        let rest = match is_awaited {
            // An answer that is this late is not waited for any longer.
            true => self.settings.stuck_after,
            false => self.settings.lease / 3,
        };
        if asked_at.elapsed() < rest {
            return;
        }
        self.layout_asked = (Instant::now(), true);
        let store = self.store.clone();
        let reading = async move { Ok(store.layout().await?) };
        tasks::spawn(
            &self.runtime,
            &self.sender,
            Task::Layout,
            reading,
            Input::Layout,
        );
    }

    /// Takes over the layout that the store has, if it is a newer one.
    pub(super) fn layout_read(&mut self, result: Result<Option<Layout>, TaskError>) {
        self.layout_asked.1 = false;
        let layout = match result {
            Ok(Some(layout)) if layout.generation() > self.layout.generation() => layout,
            Ok(_) => {
                self.layout_unread = false;
                return;
            }
            Err(error) => {
                // Once for each time that it cannot be read: it is asked for again and again.
                if !std::mem::replace(&mut self.layout_unread, true) {
                    tracing::warn!(error = %chain(&error), "the layout of readers cannot be read");
                }
                return;
            }
        };
        self.layout_unread = false;
        tracing::info!(%layout, "the layout of readers was changed");
        self.layout = layout;
        self.commits.written(self.layout.partitions_written());
        for (&reader, slot) in &mut self.slots {
            slot.look_again(self.assigned.next());
            if let SlotState::Owned(owned) = &mut slot.state {
                let generation = owned.lease.row.key.generation;
                let end = self.layout.end_of(generation, reader);
                let share = owned.share.clone().with_end(end);
                if share != owned.share {
                    self.consumers.share(reader, &share);
                    owned.share = share;
                }
            }
        }
        for reader in self.settings.own.of(self.layout.division()) {
            self.slots.entry(reader).or_insert_with(Slot::new);
        }
        self.forget_gone();
        if self.slots.is_empty() {
            let readers = self.layout.division().readers();
            tracing::warn!(
                readers,
                "no reader of the new layout is one of this process"
            );
        }
        self.views.relay(self.settings.own, &self.layout);
    }

    /// Forgets the readers that the layout does not have, once they stand still.
    pub(super) fn forget_gone(&mut self) {
        let division = self.layout.division();
        self.slots.retain(|reader, slot| {
            reader.0 < division.readers() || matches!(slot.state, SlotState::Owned(_))
        });
    }
}
