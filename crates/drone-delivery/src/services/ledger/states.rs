//! The states of one operation's effects: two bits per combination of service and step, with
//! queries over all of them.

/// The maximum number of combinations of service and step. A workflow has one for each step that
/// calls one of these services.
pub const SLOTS_MAX: usize = 32;

/// The lower bit of each pair.
const LOWER_BITS: u64 = 0x5555_5555_5555_5555;

/// The state of one key's effect at one service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EffectState {
    /// No effect.
    None,
    /// Made and existing.
    Made,
    /// Made and undone.
    Undone,
    /// Undone before it was made, so that it must never be made.
    Barred,
}

/// The states of all slots of one operation.
#[derive(Clone, Copy, Default)]
pub(super) struct States(u64);

impl States {
    pub(super) fn get(self, slot: usize) -> EffectState {
        match (self.0 >> (slot * 2)) & 0b11 {
            0 => EffectState::None,
            1 => EffectState::Made,
            2 => EffectState::Undone,
            _ => EffectState::Barred,
        }
    }

    pub(super) fn set(&mut self, slot: usize, state: EffectState) {
        let bits = match state {
            EffectState::None => 0,
            EffectState::Made => 1,
            EffectState::Undone => 2,
            EffectState::Barred => 3,
        };
        self.0 = (self.0 & !(0b11 << (slot * 2))) | (bits << (slot * 2));
    }

    /// The slots with existing effects.
    pub(super) fn made(self) -> SlotSet {
        SlotSet(self.0 & !(self.0 >> 1) & LOWER_BITS)
    }

    /// The slots with undone effects.
    pub(super) fn undone(self) -> SlotSet {
        SlotSet(!self.0 & (self.0 >> 1) & LOWER_BITS)
    }

    /// The slots with a tombstone.
    pub(super) fn barred(self) -> SlotSet {
        SlotSet(self.0 & (self.0 >> 1) & LOWER_BITS)
    }
}

/// A set of slots: the lower bit of each slot's pair is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SlotSet(u64);

impl SlotSet {
    pub(super) fn insert(&mut self, slot: usize) {
        self.0 |= 1 << (slot * 2);
    }

    pub(super) fn contains(self, slot: usize) -> bool {
        self.0 & (1 << (slot * 2)) != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_keeps_its_own_state_and_the_sets_agree_with_it() {
        let all = [
            EffectState::None,
            EffectState::Made,
            EffectState::Undone,
            EffectState::Barred,
        ];
        let mut states = States::default();
        for slot in 0..SLOTS_MAX {
            states.set(slot, all[(slot + 1) % 4]);
            states.set(slot, all[slot % 4]);
        }
        for slot in 0..SLOTS_MAX {
            let state = all[slot % 4];
            assert_eq!(states.get(slot), state);
            assert_eq!(states.made().contains(slot), state == EffectState::Made);
            assert_eq!(states.undone().contains(slot), state == EffectState::Undone);
            assert_eq!(states.barred().contains(slot), state == EffectState::Barred);
        }
    }
}
