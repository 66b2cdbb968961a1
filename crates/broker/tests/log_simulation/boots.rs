//! Starts of the machine: what the stored record may say of them, and so whether a process must
//! take it that the machine has booted since the log was open, or must not.

use std::collections::BTreeSet;

use super::judge::{Rule, Verdict, broken};

/// What is known of the record's boot id.
pub(super) struct Boots {
    /// The ids that the newest record may have. `None` stands for no record.
    stored: BTreeSet<Option<String>>,
    /// Whether another record may be read than the newest, which was damaged or could not be read.
    are_unsure: bool,
}

impl Boots {
    pub(super) fn new() -> Self {
        Self {
            stored: [None].into(),
            are_unsure: false,
        }
    }

    /// A record is about to be stored in the start of the machine that has this id.
    pub(super) fn may_be_stored(&mut self, boot_id: Option<String>) {
        self.stored.insert(boot_id);
    }

    /// It is stored.
    pub(super) fn are_stored(&mut self, boot_id: Option<String>) {
        self.stored = [boot_id].into();
        self.are_unsure = false;
    }

    /// The newest record was damaged, or the disk failed when it was read.
    pub(super) fn may_be_missed(&mut self) {
        self.are_unsure = true;
    }

    /// Whether a process may take it that the machine has booted, or not, in this start of it.
    pub(super) fn check(&self, boot_id: &Option<String>, has_rebooted: bool) -> Verdict {
        let is_earlier = |stored: &&Option<String>| stored.is_some() && *stored != boot_id;
        let earlier = self.stored.iter().filter(is_earlier).count();
        let may_have = self.are_unsure || earlier > 0;
        let must_have = !self.are_unsure && earlier == self.stored.len();
        if (has_rebooted && !may_have) || (!has_rebooted && must_have) {
            let stored = &self.stored;
            let what = format!("a reboot: {has_rebooted}, now {boot_id:?}, stored {stored:?}");
            return Err(broken(Rule::Rebooted, what));
        }
        Ok(())
    }
}
