//! The requests that were sent, and their answers. Values only.

use std::collections::HashMap;

use waybill_engine::{Offset, OperationId, Outcome, PartitionId, StepReply, StepRequest};
use waybill_kafka::RawRecord;
use waybill_messages::headers::TRACEPARENT;
use waybill_messages::{DecodeError, Record as _};

/// A request that was sent, as an index into the transcript.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SentId(usize);

/// The expected answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    /// An answer by complete-by.
    Answer,
    /// An answer by complete-by, or none.
    AnswerOrSilence,
    /// No answer: complete-by had passed when it was sent.
    Silence,
    /// No answer, because it cannot be read, but a dead letter.
    DeadLetter,
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) request: StepRequest,
    pub(super) expected: Expected,
    /// Its partition.
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) replies: Vec<Reply>,
}

impl Sent {
    /// The first outcome that it was answered with.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.replies.first().map(|reply| &reply.reply.outcome)
    }

    /// Whether a reply repeats all fields that identify this request.
    pub(super) fn is_echoed_by(&self, reply: &StepReply) -> bool {
        self.matches(reply) == PERFECT
    }

    /// How many of the identifying fields, besides the operation, a reply repeats, as a weight.
    fn matches(&self, reply: &StepReply) -> u32 {
        let Self { request, .. } = self;
        [
            (4, request.attempt == reply.attempt),
            (4, request.action == reply.action),
            (2, request.epoch == reply.epoch),
            (1, *request.step == reply.step),
            (1, request.nonce == reply.nonce),
        ]
        .into_iter()
        .map(|(weight, same)| if same { weight } else { 0 })
        .sum()
    }
}

/// The value of [`Sent::matches`] if all fields are equal.
const PERFECT: u32 = 12;

/// A reply to a request of the kit.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) reply: StepReply,
    /// Its partition.
    pub(super) partition: PartitionId,
    /// Whether its key is the operation's id.
    pub(super) keyed: bool,
    /// Its timestamp, in milliseconds since the Unix epoch.
    pub(super) timestamp_ms: Option<i64>,
    pub(super) traceparent: Option<String>,
}

/// All requests and answers.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    sent: Vec<Sent>,
    by_operation: HashMap<OperationId, Vec<SentId>>,
    by_key: HashMap<Vec<u8>, OperationId>,
    /// The agent's dead letters.
    pub(super) dead_letters: Vec<RawRecord>,
    /// Records with a key of the kit that are not replies: their number, and the last one's cause.
    pub(super) unreadable: Option<(usize, DecodeError)>,
    /// Records of the reply topic of which it is unclear whether they answer the kit.
    pub(super) strange: usize,
    /// Whether a reply did not repeat the identifying fields of its request.
    is_misled: bool,
}

impl Transcript {
    pub(super) fn enter(
        &mut self,
        request: StepRequest,
        expected: Expected,
        (partition, offset): (PartitionId, Offset),
    ) -> SentId {
        let id = SentId(self.sent.len());
        let operation = request.operation;
        self.by_operation.entry(operation).or_default().push(id);
        self.by_key.insert(operation.key().to_vec(), operation);
        self.sent.push(Sent {
            request,
            expected,
            partition,
            offset,
            replies: Vec::new(),
        });
        id
    }

    pub(super) fn get(&self, id: SentId) -> &Sent {
        &self.sent[id.0]
    }

    pub(super) fn all(&self) -> &[Sent] {
        &self.sent
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SentId, &Sent)> {
        let ids = (0..self.sent.len()).map(SentId);
        ids.zip(&self.sent)
    }

    /// Whether a reply is in the requested partition. From an agent that repeats wrong fields, it
    /// may belong to any request of its operation.
    pub(super) fn is_in_place(&self, sent: &Sent, reply: &Reply) -> bool {
        let asked = |sent: &Sent| sent.request.reply_partition == reply.partition;
        if !self.is_misled {
            return asked(sent);
        }
        let mut others = self.by_operation[&sent.request.operation].iter();
        others.any(|id| asked(self.get(*id)))
    }

    /// Takes a record of the reply topic. Skips those of other operations: another check may be
    /// running.
    pub(super) fn read_reply(&mut self, raw: &RawRecord) {
        let key = raw.key.as_deref().unwrap_or_default();
        let reply = match StepReply::decode(raw.value.as_deref().unwrap_or_default()) {
            Ok(reply) => reply,
            Err(error) if self.by_key.contains_key(key) => {
                let before = self.unreadable.as_ref().map_or(0, |(count, _)| *count);
                self.unreadable = Some((before + 1, error));
                return;
            }
            Err(_) => {
                self.strange += 1;
                return;
            }
        };
        let Some(sent) = self.question_of(&reply) else {
            // The operation is unknown, so only the key identifies the owner.
            if self.by_key.contains_key(key) {
                self.strange += 1;
            }
            return;
        };
        self.is_misled |= !self.get(sent).is_echoed_by(&reply);
        let keyed = key == reply.operation.key();
        let traceparent = raw.headers.iter().find(|(name, _)| name == TRACEPARENT);
        let traceparent = traceparent.map(|(_, value)| {
            String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into_owned()
        });
        self.sent[sent.0].replies.push(Reply {
            reply,
            partition: raw.partition,
            keyed,
            timestamp_ms: raw.timestamp_ms,
            traceparent,
        });
    }

    /// The request that a reply answers. A reply that does not repeat all fields counts for the
    /// most similar request that waits for an answer. If the agent is known to send such replies,
    /// so does one that names a request with an answer: for that request it would be a duplicate.
    fn question_of(&self, reply: &StepReply) -> Option<SentId> {
        let asked = self.by_operation.get(&reply.operation)?;
        let rank = |id: &&SentId| {
            let sent = self.get(**id);
            let likeness = sent.matches(reply);
            let is_awaited = sent.expected == Expected::Answer || !self.is_misled;
            let waits = is_awaited && sent.replies.is_empty();
            // The first of equals.
            let first = std::cmp::Reverse(id.0);
            let perfect = likeness == PERFECT;
            let before = if self.is_misled { waits } else { perfect };
            (perfect && waits, before, waits, likeness, first)
        };
        asked.iter().max_by_key(rank).copied()
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Action, Attempt, Epoch, Nonce};

    use super::*;
    use waybill_agent::success;
    use waybill_agent::testing::StepRequestBuilder;

    const NONCE: Nonce = Nonce([7; Nonce::BYTES]);

    fn request(attempt: u32) -> StepRequest {
        let builder = StepRequestBuilder::new("a", "s")
            .operation(OperationId(uuid::Uuid::from_u128(1)))
            .attempt(Attempt(attempt))
            .epoch(Epoch(5));
        StepRequest {
            nonce: Some(NONCE),
            ..builder.build()
        }
    }

    fn answer(attempt: u32, epoch: u64) -> RawRecord {
        answer_with(Some(NONCE), attempt, epoch)
    }

    fn answer_with(nonce: Option<Nonce>, attempt: u32, epoch: u64) -> RawRecord {
        let request = request(attempt);
        let reply = StepReply {
            operation: request.operation,
            step: "s".to_owned(),
            attempt: Attempt(attempt),
            epoch: Epoch(epoch),
            action: Action::Run,
            nonce,
            outcome: success(vec![]),
        };
        let mut value = Vec::new();
        reply.encode(&mut value).unwrap();
        RawRecord {
            topic: "r".to_owned(),
            partition: PartitionId(0),
            offset: Offset(0),
            timestamp_ms: Some(1),
            key: Some(request.operation.key().to_vec()),
            value: Some(value),
            headers: Vec::new(),
        }
    }

    fn transcript(attempts: &[u32]) -> (Transcript, Vec<SentId>) {
        let mut transcript = Transcript::default();
        let at = (PartitionId(0), Offset(0));
        let ids = attempts
            .iter()
            .map(|attempt| transcript.enter(request(*attempt), Expected::Answer, at))
            .collect();
        (transcript, ids)
    }

    fn answered(transcript: &Transcript, ids: &[SentId]) -> Vec<usize> {
        ids.iter()
            .map(|id| transcript.get(*id).replies.len())
            .collect()
    }

    #[test]
    fn each_delivery_of_an_attempt_requires_its_own_answer() {
        let (mut transcript, ids) = transcript(&[1, 1, 2]);
        transcript.read_reply(&answer(1, 5));
        assert_eq!(answered(&transcript, &ids), [1, 0, 0]);
        transcript.read_reply(&answer(1, 5));
        assert_eq!(answered(&transcript, &ids), [1, 1, 0]);
        // A duplicate counts for no other attempt.
        transcript.read_reply(&answer(1, 5));
        assert_eq!(answered(&transcript, &ids), [2, 1, 0]);
        let sent = transcript.get(ids[0]);
        assert!(sent.is_echoed_by(&sent.replies[0].reply));
    }

    #[test]
    fn an_incomplete_echo_is_matched_to_the_most_similar_request() {
        let (mut transcript, ids) = transcript(&[1, 2]);
        transcript.read_reply(&answer(2, 0));
        assert_eq!(answered(&transcript, &ids), [0, 1]);
        let sent = transcript.get(ids[1]);
        assert!(!sent.is_echoed_by(&sent.replies[0].reply));
    }

    #[test]
    fn a_reply_without_the_nonce_of_its_request_repeats_too_little() {
        for nonce in [None, Some(Nonce([8; Nonce::BYTES]))] {
            let (mut transcript, ids) = transcript(&[1, 2]);
            transcript.read_reply(&answer_with(nonce, 2, 5));
            assert_eq!(answered(&transcript, &ids), [0, 1]);
            let sent = transcript.get(ids[1]);
            assert!(!sent.is_echoed_by(&sent.replies[0].reply), "{nonce:?}");
        }
    }

    #[test]
    fn a_misleading_agent_is_not_trusted() {
        let (mut transcript, ids) = transcript(&[7, 8]);
        transcript.read_reply(&answer(1, 5));
        assert_eq!(answered(&transcript, &ids), [1, 0]);
        transcript.read_reply(&answer(7, 5));
        assert_eq!(answered(&transcript, &ids), [1, 1]);
    }

    #[test]
    fn an_undecodable_reply_is_matched_by_its_key() {
        let (mut transcript, ids) = transcript(&[1]);
        let mut noise = answer(1, 5);
        noise.value = Some(b"{}".to_vec());
        transcript.read_reply(&noise);
        assert_eq!(transcript.unreadable.as_ref().unwrap().0, 1);
        noise.key = Some(b"other".to_vec());
        transcript.read_reply(&noise);
        assert_eq!(
            (
                transcript.unreadable.as_ref().unwrap().0,
                transcript.strange
            ),
            (1, 1)
        );
        assert_eq!(answered(&transcript, &ids), [0]);
    }
}
