//! How a group member handles damaged records.
//!
//! What must hold here: no record is skipped. librdkafka continues after a damaged batch, so every
//! partition is paused first. That discards prefetched records but keeps the position after the
//! last record handed over, where a resumed partition continues. Neither step needs a broker, so a
//! search that fails does no harm: the damage is met again.
//!
//! Only paused partitions are resumed: librdkafka would read others again from where they were
//! assigned. A partition seeks only past undecodable records. librdkafka then forgets its position,
//! so this module remembers it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;
use waybill_engine::Offset;

use super::context::{partition_of, partitions_of};
use super::{GroupConsumer, GroupHandler, TopicPartition};
use crate::damage::{self, DamagedLog, Position, Round};
use crate::partition::partition_number;
use crate::partition_list::{check_each, partitions_list};
use crate::stall::Behind;
use crate::watermarks::watermarks;

/// How long the brokers may take to report where a partition continues.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

impl GroupConsumer {
    /// Finds out which partitions are damaged, and pauses them for a while. Reads all others again
    /// from the end of their records: the prefetched ones may have gaps.
    ///
    /// # Errors
    ///
    /// If a partition cannot be paused. The records that the client hands over next may then have
    /// gaps.
    pub(super) fn leave_damaged(
        &mut self,
        error: &KafkaError,
        handler: &mut dyn GroupHandler,
    ) -> KafkaResult<()> {
        let assigned = self.consumer.assignment()?;
        self.consumer.pause(&assigned)?;
        check_each(&assigned)?;
        let until = damage::round_end();
        let positions = self.positions(until)?;
        let consumer = &self.consumer;
        let found = Round {
            config: &self.config,
            history: &mut self.damage_history,
            until,
            finds_next: handler.takes_undecodable(),
        }
        .find(consumer, positions);
        if found.is_empty() {
            damage::log_not_found(&self.client_id, error);
        }
        self.leave(found, handler);
        if !self.held.load(Ordering::Acquire) {
            self.read_on(&self.whole(&assigned));
        }
        Ok(())
    }

    /// Checks from time to time, after a poll that emptied the queue, for partitions that stall
    /// without an error, and pauses those for a while.
    ///
    /// # Errors
    ///
    /// If the client does not return its positions, or does not pause such a partition. It is
    /// checked again later.
    pub(super) fn leave_stalled(&mut self, handler: &mut dyn GroupHandler) -> KafkaResult<()> {
        let now = Instant::now();
        if self.held.load(Ordering::Acquire) {
            self.stalls.clear();
            return Ok(());
        }
        if !self.stalls.is_due(now) {
            return Ok(());
        }
        let (positions, unknown) = self.known_positions()?;
        let positions = positions
            .into_iter()
            .map(|(topic, partition, position)| Behind {
                topic,
                partition,
                position: Some(position),
            });
        let unknown = unknown.into_iter().map(|at| Behind {
            topic: at.topic,
            partition: at.partition,
            position: None,
        });
        let partitions = positions.chain(unknown).collect();
        let client = self.consumer.client();
        let suspects = self.stalls.suspects(now, client, partitions);
        if suspects.is_empty() {
            return Ok(());
        }
        let (mut positions, mut asked) = (Vec::new(), TopicPartitionList::new());
        for at in suspects {
            match at.position {
                Some(position) => positions.push((at.topic, at.partition, position)),
                None => {
                    asked.add_partition(&at.topic, partition_number(at.partition));
                }
            }
        }
        let until = damage::round_end();
        self.ask_positions(asked, &mut positions, until);
        let found = Round {
            config: &self.config,
            history: &mut self.damage_history,
            until,
            finds_next: handler.takes_undecodable(),
        }
        .find_stalled(&self.consumer, positions, &mut self.stalls);
        if found.is_empty() {
            return Ok(());
        }
        let at: Vec<_> = found.iter().map(partition_of_log).collect();
        let list = list_of(&at);
        self.consumer.pause(&list)?;
        check_each(&list)?;
        let passed = self.leave(found, handler);
        self.read_on(&list_of(&passed));
        Ok(())
    }

    /// Remembers when to read paused partitions again. Returns those that continue now, behind
    /// records that the handler has handled.
    fn leave(
        &mut self,
        found: Vec<DamagedLog>,
        handler: &mut dyn GroupHandler,
    ) -> Vec<TopicPartition> {
        let again_after = self.damaged_again_after;
        let again_at = Instant::now() + again_after;
        let mut passed = Vec::new();
        for log in found {
            let at = partition_of_log(&log);
            if let Some(next) = log.next
                && handler.undecodable(&log, next)
                && self.move_to(&at, next)
            {
                log.log_passed_over(next);
                passed.push(at);
            } else {
                log.log_stopped(&self.client_id, Some(again_after));
                self.damaged.insert(at, again_at);
            }
        }
        passed
    }

    /// Has a paused partition continue at an offset. Returns whether the client will.
    fn move_to(&mut self, at: &TopicPartition, next: Offset) -> bool {
        let number = partition_number(at.partition);
        let offset = rdkafka::Offset::Offset(next.0);
        let sought = self
            .consumer
            .seek(&at.topic, number, offset, LOOKUP_TIMEOUT);
        let is_sought = sought.is_ok();
        self.log_failure("seeking past undecodable records", sought);
        if is_sought {
            self.moved_to.insert(at.clone(), next);
        }
        is_sought
    }

    /// Reads damaged partitions again after a while: a replica with intact records may have become
    /// leader.
    pub(super) fn try_damaged_again(&mut self) {
        if self.damaged.is_empty() || self.held.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let due = self.damaged.extract_if(.., |_, again_at| *again_at <= now);
        let due: Vec<_> = due.map(|(partition, _)| partition).collect();
        self.read_on(&list_of(&due));
    }

    /// The partitions of a list that are not known to be damaged.
    pub(super) fn whole(&self, list: &TopicPartitionList) -> TopicPartitionList {
        let mut partitions = partitions_of(list);
        partitions.retain(|partition| !self.damaged.contains_key(partition));
        list_of(&partitions)
    }

    /// Resumes partitions. One that the client cannot resume is retried as damaged ones are.
    fn read_on(&mut self, paused: &TopicPartitionList) {
        let resumed = self.consumer.resume(paused);
        self.log_failure(
            "resuming partitions",
            resumed.and_then(|()| check_each(paused)),
        );
        let again_at = Instant::now() + self.damaged_again_after;
        for element in paused.elements() {
            if element.error().is_err() {
                self.damaged.insert(partition_of(&element), again_at);
            }
        }
    }

    /// Where to continue each partition that is not known to be damaged: after the last record
    /// handed over, otherwise at the group's committed offset, otherwise at the beginning. Leaves
    /// out partitions about which no broker answers.
    fn positions(&self, until: Instant) -> KafkaResult<Vec<Position>> {
        let (mut positions, unknown) = self.known_positions()?;
        self.ask_positions(list_of(&unknown), &mut positions, until);
        Ok(positions)
    }

    /// The same without asking brokers; also returns the partitions whose position only the group
    /// knows.
    fn known_positions(&self) -> KafkaResult<(Vec<Position>, Vec<TopicPartition>)> {
        let known = self.consumer.position()?;
        check_each(&known)?;
        let (mut positions, mut unknown) = (Vec::new(), Vec::new());
        for element in known.elements() {
            let at = partition_of(&element);
            match element.offset() {
                _ if self.damaged.contains_key(&at) => {}
                rdkafka::Offset::Offset(offset) => {
                    positions.push((at.topic, at.partition, Offset(offset)));
                }
                _ => match self.moved_to.get(&at) {
                    Some(next) => positions.push((at.topic, at.partition, *next)),
                    None => unknown.push(at),
                },
            }
        }
        Ok((positions, unknown))
    }

    fn ask_positions(
        &self,
        asked: TopicPartitionList,
        positions: &mut Vec<Position>,
        until: Instant,
    ) {
        if asked.count() > 0 {
            let looked_up = self.look_up(asked, positions, until);
            self.log_failure("reading the positions of partitions", looked_up);
        }
    }

    fn look_up(
        &self,
        asked: TopicPartitionList,
        positions: &mut Vec<Position>,
        until: Instant,
    ) -> KafkaResult<()> {
        let patience = || LOOKUP_TIMEOUT.min(until.saturating_duration_since(Instant::now()));
        let committed = self.consumer.committed_offsets(asked, patience())?;
        for element in committed.elements() {
            element.error()?;
            let at = partition_of(&element);
            let offset = match element.offset() {
                rdkafka::Offset::Offset(offset) => Offset(offset),
                _ => {
                    let client = self.consumer.client();
                    watermarks(client, &at.topic, at.partition, patience())?.0
                }
            };
            positions.push((at.topic, at.partition, offset));
        }
        Ok(())
    }
}

fn partition_of_log(log: &DamagedLog) -> TopicPartition {
    TopicPartition {
        topic: log.topic.clone(),
        partition: log.partition,
    }
}

fn list_of(partitions: &[TopicPartition]) -> TopicPartitionList {
    partitions_list(
        partitions
            .iter()
            .map(|at| (at.topic.as_str(), at.partition)),
    )
}
