//! Reroutes the records of a partition that is no longer in use, for a limited time.
//!
//! [`Reroute`] is a state machine, driven like [`IndexShard`](crate::IndexShard), which begins it
//! with [`Effect::Reroute`](crate::index_shard::Effect::Reroute) and stores the offsets that it
//! reached. The driver keeps the records between [`Effect::Read`] and [`Effect::Forward`].
//!
//! What must hold: an offset is reached once every record below it that belongs elsewhere was
//! acknowledged where it belongs. A failure ends one topic, and the others are read nevertheless.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use waybill_engine::{BootTime, Now, Offset, PartitionId, Source, TopicOffsets};
use waybill_state::Retired;

use crate::unexpected::UnexpectedEvent;

/// After this long the next topic follows: the lease must be renewed, and the index shard swept.
const READ_TIME_MAX: Duration = Duration::from_millis(500);

/// What the driver performs next. Each effect has one result, an [`Event`], and may also end in
/// [`Event::Failed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Read how many partitions a topic has; then [`Event::Partitions`].
    ReadPartitions(Source),
    /// Read where the partition begins and ends on a topic; then [`Event::Offsets`].
    ReadOffsets(Source),
    /// Begin to consume the partition of a topic here; then [`Event::Opened`].
    Open(Source, Offset),
    /// Read records below this offset; then [`Event::Read`].
    Read(Offset),
    /// Forward the records of the last read; then [`Event::Forwarded`], once all are acknowledged.
    Forward,
    /// Nothing: the offsets were reached.
    End(TopicOffsets),
}

/// The result of an [`Effect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The driver has started.
    Started,
    /// The number of partitions; `None` if there is no such topic.
    Partitions(Option<u32>),
    /// The first offset and the one after the last; `None` if they are not known.
    Offsets(Option<(Offset, Offset)>),
    /// Records can be read.
    Opened,
    /// The records below this offset were read.
    Read(Offset),
    /// All are acknowledged.
    Forwarded,
    /// The effect failed, or its outcome is unknown.
    Failed,
}

/// The driver's next work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output {
    /// Whether to close the consumer first.
    pub closes: bool,
    /// What to perform then.
    pub effect: Effect,
}

/// The reroute of one partition.
#[derive(Debug)]
pub struct Reroute {
    partition: PartitionId,
    /// The times in which the partition was not in use, in order.
    times: Vec<Retired>,
    reached: TopicOffsets,
    /// The topics that follow.
    sources: VecDeque<Source>,
    state: State,
    closes: bool,
}

/// One time in which a partition was not in use, on one topic.
#[derive(Clone, Copy, Debug)]
struct Time {
    source: Source,
    /// Its place among the times.
    index: usize,
    retired: Retired,
    /// When the next topic follows.
    by: BootTime,
}

#[derive(Clone, Copy, Debug)]
enum State {
    New,
    ReadingPartitions(Time),
    ReadingOffsets(Time),
    Opening(Time, Offset),
    Reading(Time, Offset),
    Forwarding(Time, Offset, Offset),
    Ended,
}

impl Reroute {
    /// The machine of a partition that was not in use at these times, in order. Records below
    /// `from` were rerouted before. Begins with [`Event::Started`].
    #[must_use]
    pub fn new(partition: PartitionId, times: Vec<Retired>, from: TopicOffsets) -> Self {
        Self {
            partition,
            times,
            reached: from,
            sources: Source::ALL.into_iter().collect(),
            state: State::New,
            closes: false,
        }
    }

    /// Handles the result of the last effect.
    ///
    /// # Errors
    ///
    /// If the event is not a result of that effect.
    pub fn handle(&mut self, event: Event, now: Now) -> Result<Output, UnexpectedEvent> {
        let effect = match (mem::replace(&mut self.state, State::Ended), event) {
            (State::New, Event::Started) => self.next_source(now),
            (State::ReadingPartitions(time), Event::Partitions(has)) => {
                // A topic created after the partition was dropped need not have the partition.
                match has.is_some_and(|has| self.partition.0 < has) {
                    true => {
                        self.state = State::ReadingOffsets(time);
                        Effect::ReadOffsets(time.source)
                    }
                    false => self.end_time(time, now),
                }
            }
            (State::ReadingOffsets(time), Event::Offsets(Some((first, end)))) => {
                let until = time.retired.until;
                let end = until.map_or(end, |until| end.min(until.on(time.source)));
                let at = self.reached.on_mut(time.source);
                *at = first.max(*at);
                let at = *at;
                match at < end {
                    true => {
                        self.state = State::Opening(time, end);
                        Effect::Open(time.source, at)
                    }
                    false => self.end_time(time, now),
                }
            }
            (State::ReadingOffsets(time), Event::Offsets(None)) => self.end_time(time, now),
            (State::Opening(time, end), Event::Opened) => self.read(time, end, now),
            (State::Reading(time, end), Event::Read(read_to)) => {
                self.state = State::Forwarding(time, end, read_to);
                Effect::Forward
            }
            (State::Forwarding(time, end, read_to), Event::Forwarded) => {
                let at = self.reached.on_mut(time.source);
                *at = read_to.max(*at);
                self.read(time, end, now)
            }
            (
                State::ReadingPartitions(time)
                | State::ReadingOffsets(time)
                | State::Opening(time, _),
                Event::Failed,
            ) => self.end_time(time, now),
            (State::Reading(time, _) | State::Forwarding(time, ..), Event::Failed) => {
                self.closes = true;
                self.end_time(time, now)
            }
            (state, event) => return Err(UnexpectedEvent::new(&state, &event)),
        };
        Ok(Output {
            closes: mem::take(&mut self.closes),
            effect,
        })
    }

    fn next_source(&mut self, now: Now) -> Effect {
        match self.sources.pop_front() {
            Some(source) => self.begin_time(source, 0, now.boot + READ_TIME_MAX, now),
            None => Effect::End(self.reached),
        }
    }

    /// Begins with a time, or with the next topic after the last time.
    fn begin_time(&mut self, source: Source, index: usize, by: BootTime, now: Now) -> Effect {
        let Some(&retired) = self.times.get(index) else {
            return self.next_source(now);
        };
        let at = self.reached.on_mut(source);
        *at = retired.from.on(source).max(*at);
        let time = Time {
            source,
            index,
            retired,
            by,
        };
        if retired.is_over(source, *at) {
            return self.end_time(time, now);
        }
        self.state = State::ReadingPartitions(time);
        Effect::ReadPartitions(source)
    }

    /// Continues with the next time, if this one is finished: it is later.
    fn end_time(&mut self, time: Time, now: Now) -> Effect {
        let at = self.reached.on(time.source);
        match time.retired.is_over(time.source, at) {
            true => self.begin_time(time.source, time.index + 1, time.by, now),
            false => self.next_source(now),
        }
    }

    /// Reads on, until the end is reached or the time is up.
    fn read(&mut self, time: Time, end: Offset, now: Now) -> Effect {
        if self.reached.on(time.source) < end && now.boot < time.by {
            self.state = State::Reading(time, end);
            return Effect::Read(end);
        }
        self.closes = true;
        self.end_time(time, now)
    }
}

#[cfg(test)]
mod tests;
