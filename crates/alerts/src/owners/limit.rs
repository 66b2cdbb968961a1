//! The hourly limit on messages to a contact, so that requests cannot flood another person.
//!
//! A contact's hour begins with the first message to it. Time is an argument. Memory is bounded:
//! while the maximum number of contacts are in their hour, no further contact is notified. The
//! counts are those of this process alone.
//!
//! Spellings of one mailbox count as one contact: upper or lower case, with a tag (`anna+17@`) or
//! without.
//!
//! Not governor, which limits rates of tenants: its limiter has no maximum of keys, and refills
//! during the hour.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use waybill_engine::Contact;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Counts the messages to each contact.
#[derive(Debug)]
pub(super) struct Limit {
    messages_per_hour_max: u32,
    contacts_max: usize,
    sent: HashMap<Contact, u32>,
    /// Contacts in the order in which their hours end.
    hours: VecDeque<(Instant, Contact)>,
}

impl Limit {
    pub(super) fn new(messages_per_hour_max: u32, contacts_max: usize) -> Self {
        Self {
            messages_per_hour_max,
            contacts_max,
            sent: HashMap::new(),
            hours: VecDeque::new(),
        }
    }

    /// Whether the contact may get another message. If so, counts it as sent.
    pub(super) fn take(&mut self, contact: &Contact, now: Instant) -> bool {
        while let Some((ends, _)) = self.hours.front()
            && *ends <= now
        {
            if let Some((_, contact)) = self.hours.pop_front() {
                self.sent.remove(&contact);
            }
        }
        let contact = &mailbox(contact);
        if let Some(sent) = self.sent.get_mut(contact) {
            let may = *sent < self.messages_per_hour_max;
            *sent += u32::from(may);
            return may;
        }
        let may = self.hours.len() < self.contacts_max;
        if may {
            self.sent.insert(contact.clone(), 1);
            self.hours.push_back((now + HOUR, contact.clone()));
        }
        may
    }
}

/// The contact without the parts that mail servers ignore.
fn mailbox(contact: &Contact) -> Contact {
    let lower = contact.reveal().to_lowercase();
    let Some((local, domain)) = lower.rsplit_once('@') else {
        return Contact::new(lower);
    };
    let untagged = local.split_once('+').map_or(local, |(name, _)| name);
    Contact::new(format!("{untagged}@{domain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_mailbox_share_a_limit() {
        let mut limit = Limit::new(2, 10);
        let now = Instant::now();
        let mut take = |uri: &str| limit.take(&Contact::new(uri), now);
        assert!(take("mailto:anna@example.org"));
        assert!(take("mailto:Anna+17@Example.org"));
        assert!(!take("mailto:ANNA+18@example.org"));
        assert!(take("tel:+491701234567"), "a number is no tag");
        assert!(take("tel:+491701234568"));
    }

    fn contact(number: u32) -> Contact {
        Contact::new(format!("tel:+{number}"))
    }

    #[test]
    fn each_contact_has_an_hourly_limit_of_its_own() {
        let mut limit = Limit::new(2, 10);
        let start = Instant::now();
        assert!(limit.take(&contact(1), start));
        assert!(limit.take(&contact(1), start + HOUR / 2));
        assert!(!limit.take(&contact(1), start + HOUR / 2));
        assert!(limit.take(&contact(2), start + HOUR / 2));
        assert!(limit.take(&contact(1), start + HOUR));
        assert!(limit.take(&contact(2), start + HOUR));
        assert!(!limit.take(&contact(2), start + HOUR));
    }

    #[test]
    fn no_further_contact_gets_messages_while_the_maximum_of_contacts_is_tracked() {
        let mut limit = Limit::new(5, 2);
        let start = Instant::now();
        assert!(limit.take(&contact(1), start));
        assert!(limit.take(&contact(2), start + HOUR / 2));
        assert!(!limit.take(&contact(3), start + HOUR / 2));
        assert!(limit.take(&contact(1), start + HOUR / 2));
        assert!(limit.take(&contact(3), start + HOUR));
        assert!(!limit.take(&contact(4), start + HOUR));
        assert_eq!((limit.sent.len(), limit.hours.len()), (2, 2));
    }
}
