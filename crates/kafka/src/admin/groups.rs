//! Consumer groups, as their brokers describe them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdkafka::groups::GroupList;

use super::{Admin, AdminError, REQUEST_TIMEOUT};

impl Admin {
    /// The topics that members of consumer groups have subscribed to. Joins no group.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer. Groups that this client has no permission to describe are left
    /// out.
    pub async fn topics_read(&self) -> Result<TopicsRead, AdminError> {
        let client = Arc::clone(&self.client);
        let answer = tokio::task::spawn_blocking(move || {
            let groups = client.inner().fetch_group_list(None, REQUEST_TIMEOUT);
            groups.map(|groups| topics_read(&groups))
        });
        let read = answer.await.map_err(|_| AdminError::Stopped)?;
        read.map_err(|source| AdminError::Request {
            action: "listing the consumer groups",
            source,
        })
    }
}

/// The topics that members of consumer groups read.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TopicsRead {
    /// The topics.
    pub topics: BTreeSet<String>,
    /// The assignment strategies of groups with members, by group.
    pub strategies: BTreeMap<String, String>,
    /// The number of groups that this client may describe.
    pub groups: usize,
    /// Groups whose subscriptions are unknown, because they are rebalancing or use another
    /// protocol.
    pub unknown_groups: Vec<String>,
}

fn topics_read(groups: &GroupList) -> TopicsRead {
    let mut read = TopicsRead {
        groups: groups.groups().len(),
        ..TopicsRead::default()
    };
    for group in groups.groups() {
        match group.state() {
            "Stable" => {
                let strategy = group.protocol().to_owned();
                read.strategies.insert(group.name().to_owned(), strategy);
                for member in group.members() {
                    let topics = subscribed(member.metadata().unwrap_or_default());
                    read.topics.extend(topics.unwrap_or_default());
                }
            }
            "Empty" => {}
            _ => read.unknown_groups.push(group.name().to_owned()),
        }
    }
    read
}

/// The topics in a member's subscription, in the consumer protocol: a version, an array of names,
/// then fields that are not needed here. `None` if the bytes have another form.
fn subscribed(metadata: &[u8]) -> Option<Vec<String>> {
    let (_version, rest) = metadata.split_first_chunk::<2>()?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut topics = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (length, name) = rest.split_first_chunk::<2>()?;
        let (name, behind) = name.split_at_checked(u16::from_be_bytes(*length).into())?;
        topics.push(String::from_utf8(name.to_vec()).ok()?);
        rest = behind;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_reports_its_topics_and_a_truncated_one_reports_none() {
        let metadata = [
            &[0, 3, 0, 0, 0, 2, 0, 2][..],
            b"ab",
            &[0, 1],
            b"c",
            &[0, 0, 0, 0],
        ];
        let metadata = metadata.concat();
        let topics = Some(vec!["ab".to_owned(), "c".to_owned()]);
        assert_eq!(subscribed(&metadata), topics);
        assert_eq!(
            subscribed(&metadata[..13]),
            topics,
            "an old version ends there"
        );
        for end in 0..13 {
            assert_eq!(subscribed(&metadata[..end]), None, "{end} bytes");
        }
        assert_eq!(subscribed(&[0, 0, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
