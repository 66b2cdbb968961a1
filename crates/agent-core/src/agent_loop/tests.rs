//! Every rule of the run loop, in virtual time.

use super::*;
use crate::queues::Admission;
use crate::refusal::Refusal;
use crate::requests::{at, request};
use crate::resends::Purpose;

const FAST: usize = 0;
const SLOW: usize = 1;
const P: PartitionId = PartitionId(0);
/// Of the requests' owner.
const EPOCH: u64 = 7;

const LIMITS: QueueLimits = QueueLimits {
    workers: 1,
    in_flight_max: 3,
    in_flight_bytes_max: 1 << 20,
};

/// Two agents that own the first partition of their topics. A record to send is a number.
fn agents() -> AgentLoop<u32> {
    let mut agents = AgentLoop::new([LIMITS, LIMITS]);
    agents.assign(FAST, P);
    agents.assign(SLOW, P);
    agents
}

/// Begins the record of a request, which arrives at 0.
fn begin(agents: &mut AgentLoop<u32>, agent: usize, offset: i64, epoch: u64) -> Work<Source> {
    let source = agents.begin(agent, P, Offset(offset)).unwrap().record;
    Work::new(request(epoch, at(10_000)), source, 10, None, at(0))
}

/// Reads a request that has room.
fn queue(agents: &mut AgentLoop<u32>, agent: usize, offset: i64) -> Source {
    let work = begin(agents, agent, offset, EPOCH);
    let source = work.source;
    assert!(matches!(agents.read(work, at(0)), Admission::Queued));
    source
}

/// Starts the next attempt of an agent.
fn start(agents: &mut AgentLoop<u32>, agent: usize, now: Now) -> Work<Source> {
    match agents.next(agent, now) {
        Next::Start(work) => work,
        other => panic!("{other:?}"),
    }
}

fn end(agents: &mut AgentLoop<u32>, work: &Work<Source>, now: Now) -> Ended {
    let attempted = Attempted {
        source: work.source,
        bytes: work.bytes,
        deadline: work.deadline,
        took: Some(Duration::from_millis(5)),
        outcome: Some(Outcome::NotPerformed),
    };
    agents.ended(attempted, now)
}

/// Reads and performs a request, and returns its reply.
fn perform(agents: &mut AgentLoop<u32>, offset: i64) -> Sent {
    queue(agents, FAST, offset);
    let work = start(agents, FAST, at(0));
    let ended = end(agents, &work, at(5));
    assert_eq!(ended, Ended::Answer(Outcome::NotPerformed));
    reply(&work)
}

fn reply(work: &Work<Source>) -> Sent {
    let complete_by = work.request.complete_by;
    Sent {
        source: work.source,
        purpose: Purpose::Reply { complete_by },
    }
}

fn dead_letter(source: Source) -> Sent {
    Sent {
        source,
        purpose: Purpose::DeadLetter,
    }
}

/// The offsets to commit of the agent `fast`.
fn commits(agents: &mut AgentLoop<u32>) -> Vec<i64> {
    let commits = agents.commits().into_iter();
    let of_fast = commits.filter(|(agent, ..)| *agent == FAST);
    of_fast.map(|(.., offset)| offset.0).collect()
}

#[test]
fn a_commit_never_passes_a_request_whose_reply_is_not_acknowledged() {
    let mut agents = agents();
    let first = perform(&mut agents, 100);
    let second = perform(&mut agents, 101);
    queue(&mut agents, FAST, 102);
    assert_eq!(commits(&mut agents), [100]);
    agents.acknowledged(second);
    assert_eq!(commits(&mut agents), [0_i64; 0]);
    agents.acknowledged(first);
    assert_eq!(commits(&mut agents), [102]);
    let running = start(&mut agents, FAST, at(10));
    assert_eq!(commits(&mut agents), [0_i64; 0]);
    end(&mut agents, &running, at(20));
    assert_eq!(
        commits(&mut agents),
        [0_i64; 0],
        "its reply is not acknowledged"
    );
    assert_eq!(agents.open(), 1);
    agents.acknowledged(reply(&running));
    assert_eq!(commits(&mut agents), [103]);
    assert_eq!((agents.open(), agents.depth(FAST)), (0, (0, 0)));
}

#[test]
fn a_refused_request_is_open_until_its_answer_is_acknowledged() {
    let mut agents = agents();
    for offset in 0..3 {
        queue(&mut agents, FAST, offset);
    }
    let full = begin(&mut agents, FAST, 3, EPOCH);
    let Admission::Refused(refused) = agents.read(full, at(0)) else {
        panic!("there is room");
    };
    assert!(matches!(refused.refusal, Refusal::NoRoom { .. }));
    assert_eq!(agents.open(), 4);
    agents.acknowledged(reply(&refused.work));
    assert_eq!(agents.open(), 3);
    // The other agent is not affected.
    queue(&mut agents, SLOW, 0);
    start(&mut agents, SLOW, at(0));
}

#[test]
fn work_with_too_little_time_left_is_answered_and_not_started() {
    let mut agents = agents();
    queue(&mut agents, FAST, 0);
    queue(&mut agents, FAST, 1);
    let first = start(&mut agents, FAST, at(0));
    let attempted = Attempted {
        source: first.source,
        bytes: first.bytes,
        deadline: first.deadline,
        took: Some(Duration::from_secs(6)),
        outcome: Some(Outcome::NotPerformed),
    };
    agents.ended(attempted, at(6_000));
    let Next::Refused(refused) = agents.next(FAST, at(6_000)) else {
        panic!("it starts");
    };
    assert!(matches!(refused.refusal, Refusal::NoRoom { .. }));
    assert_eq!(agents.depth(FAST), (0, 0));
    assert_eq!(agents.open(), 2, "neither answer is acknowledged");
}

#[test]
fn a_revoked_partitions_work_neither_starts_nor_counts() {
    let mut agents = agents();
    queue(&mut agents, FAST, 100);
    queue(&mut agents, FAST, 101);
    queue(&mut agents, FAST, 102);
    queue(&mut agents, SLOW, 0);
    let running = start(&mut agents, FAST, at(0));
    assert_eq!(agents.revoke(FAST, P), Some(Offset(100)));
    assert_eq!(agents.open(), 1, "the other agent's");
    assert!(matches!(agents.next(FAST, at(0)), Next::Empty));
    assert_eq!(agents.depth(FAST), (0, 1));

    agents.assign(FAST, P);
    let again = queue(&mut agents, FAST, 100);
    assert!(agents.holds(again) && !agents.holds(running.source));
    // Its reply is sent, and moves nothing.
    assert!(matches!(
        end(&mut agents, &running, at(5)),
        Ended::Answer(_)
    ));
    agents.acknowledged(reply(&running));
    assert_eq!(commits(&mut agents), [100]);
    assert_eq!(agents.open(), 2);
    assert_eq!(start(&mut agents, FAST, at(5)).source, again);
    assert_eq!(agents.begin(FAST, PartitionId(1), Offset(0)), None);
}

#[test]
fn a_revoked_partitions_work_is_not_handed_back() {
    let mut agents = agents();
    queue(&mut agents, FAST, 100);
    queue(&mut agents, SLOW, 0);
    agents.revoke(FAST, P);
    let handed_back = agents.drain();
    let agents_of: Vec<usize> = handed_back
        .iter()
        .map(|refused| refused.work.source.topic)
        .collect();
    assert_eq!(agents_of, [SLOW]);
}

#[test]
fn a_failed_reply_keeps_its_request_open_and_is_sent_again_until_complete_by() {
    let mut agents = agents();
    let sent = perform(&mut agents, 100);
    assert!(!agents.has_resends());
    let failed = agents.failed(1, sent, Failure::Temporary, at(5));
    assert_eq!(failed, Failed::Kept { is_first: true });
    assert_eq!((agents.open(), commits(&mut agents)), (1, vec![100]));
    assert!(agents.due_resends(at(1_004)).is_empty());
    assert_eq!(agents.due_resends(at(1_005)), [1]);
    assert!(!agents.has_resends(), "it is in flight");
    assert_eq!(agents.open(), 1);

    // Even a permanent refusal: the request must be answered.
    agents.failed(1, sent, Failure::Permanent, at(9_000));
    assert!(agents.due_resends(at(10_000)).is_empty());
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![101]));
}

#[test]
fn an_acknowledged_reply_that_was_sent_again_ends_its_request() {
    let mut agents = agents();
    let sent = perform(&mut agents, 100);
    agents.failed(1, sent, Failure::QueueFull, at(5));
    assert_eq!(agents.due_resends(at(5)), [1]);
    agents.acknowledged(sent);
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![101]));
}

#[test]
fn reading_pauses_while_the_broker_accepts_no_records() {
    let mut agents = agents();
    let sent = perform(&mut agents, 100);
    for record in 0..1_000 {
        assert!(agents.may_read());
        agents.failed(record, sent, Failure::Temporary, at(0));
    }
    assert!(!agents.may_read());
    assert_eq!(agents.due_resends(at(1_000)).len(), 1_000);
    assert!(agents.may_read());
}

#[test]
fn a_request_past_complete_by_is_done_without_an_answer() {
    let mut agents = agents();
    let late = begin(&mut agents, FAST, 100, EPOCH);
    assert!(matches!(agents.read(late, at(10_000)), Admission::Late));
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![101]));

    // Dequeued late.
    queue(&mut agents, FAST, 101);
    let Next::Late(work) = agents.next(FAST, at(10_000)) else {
        panic!("it starts");
    };
    let ended = agents.ended(Attempted::late(&work), at(10_000));
    assert_eq!(ended, Ended::GivenUp);
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![102]));

    // A late outcome.
    queue(&mut agents, FAST, 102);
    let work = start(&mut agents, FAST, at(0));
    assert_eq!(end(&mut agents, &work, at(10_000)), Ended::GivenUp);
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![103]));
    assert_eq!(agents.depth(FAST), (0, 0));
}

#[test]
fn a_superseded_owner_is_refused_when_it_is_read_and_when_it_would_start() {
    let mut agents = agents();
    queue(&mut agents, FAST, 100);
    let newer = begin(&mut agents, SLOW, 0, EPOCH + 1);
    assert!(matches!(agents.read(newer, at(0)), Admission::Queued));
    let older = begin(&mut agents, FAST, 101, EPOCH);
    let Admission::Refused(read) = agents.read(older, at(0)) else {
        panic!("it is queued");
    };
    let Next::Refused(dequeued) = agents.next(FAST, at(0)) else {
        panic!("it starts");
    };
    assert_eq!(
        (read.refusal, dequeued.refusal),
        (Refusal::Superseded, Refusal::Superseded)
    );
    assert_eq!(agents.depth(FAST), (0, 0));
    assert_eq!(agents.open(), 3, "the answers are not acknowledged");
    start(&mut agents, SLOW, at(0));
}

#[test]
fn a_poison_record_is_done_once_its_dead_letter_is_acknowledged_or_refused_for_good() {
    let mut agents = agents();
    let poison = |agents: &mut AgentLoop<u32>, offset| {
        let begun = agents.begin(FAST, P, Offset(offset)).unwrap();
        dead_letter(begun.record)
    };
    let first = poison(&mut agents, 100);
    assert_eq!(commits(&mut agents), [100]);
    agents.acknowledged(first);
    assert_eq!(commits(&mut agents), [101]);

    let second = poison(&mut agents, 101);
    agents.failed(2, second, Failure::Temporary, at(0));
    assert_eq!(
        agents.due_resends(at(1_000_000)),
        [2],
        "whatever time passes"
    );
    assert_eq!(commits(&mut agents), [0_i64; 0]);
    let failed = agents.failed(2, second, Failure::Permanent, at(1_000_001));
    assert_eq!(failed, Failed::Dropped);
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![102]));
}

#[test]
fn an_undecodable_part_of_a_log_is_passed_once_its_dead_letter_is_acknowledged() {
    let mut agents = agents();
    let source = agents.begin_undecodable(FAST, P, Offset(100)).unwrap();
    agents.pass(FAST, P, Offset(110));
    assert_eq!(agents.begin_undecodable(FAST, P, Offset(100)), None);
    assert_eq!(commits(&mut agents), [100]);
    agents.acknowledged(dead_letter(source));
    assert_eq!(commits(&mut agents), [110]);
}

#[test]
fn an_answer_that_cannot_be_encoded_ends_its_request() {
    let mut agents = agents();
    let sent = perform(&mut agents, 100);
    agents.give_up(sent.source);
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![101]));
}

#[test]
fn a_drain_hands_back_waiting_requests_and_lets_running_ones_end() {
    let mut agents = agents();
    let waiting = [
        queue(&mut agents, FAST, 100),
        queue(&mut agents, FAST, 101),
        queue(&mut agents, SLOW, 0),
    ];
    let running = start(&mut agents, FAST, at(0));
    assert_eq!(running.source, waiting[0]);
    let back = agents.drain();
    let sources: Vec<Source> = back.iter().map(|refused| refused.work.source).collect();
    assert_eq!(sources, waiting[1..]);
    assert!(back.iter().all(|back| back.refusal == Refusal::Stopping));
    assert!(matches!(agents.next(FAST, at(0)), Next::Closed));
    assert!(agents.wakes_another(FAST));
    assert_eq!(agents.open(), 3, "nothing is answered yet");
    assert!(matches!(
        end(&mut agents, &running, at(5)),
        Ended::Answer(_)
    ));
    agents.acknowledged(reply(&running));
    for refused in &back {
        agents.acknowledged(reply(&refused.work));
    }
    assert_eq!((agents.open(), commits(&mut agents)), (0, vec![102]));
}
