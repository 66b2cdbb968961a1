use super::super::messages::JoinAnswer;
use super::*;

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(30);

fn join(member_id: &StrBytes, instance: Option<&'static str>) -> Join {
    Join {
        member_id: member_id.clone(),
        instance_id: instance.map(StrBytes::from_static_str),
        client_id: StrBytes::from_static_str("client"),
        client_host: StrBytes::from_static_str("/127.0.0.1"),
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocol_type: StrBytes::from_static_str("consumer"),
        protocols: vec![(
            StrBytes::from_static_str("range"),
            Bytes::from_static(b"topics"),
        )],
        takes_generated_id: true,
        can_skip_assignment: true,
    }
}

/// A group with the time at which things happen to it.
struct Fixture {
    group: Group,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self {
            group: Group::new(10),
            now: Instant::now(),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.group.tick(self.now);
    }

    fn ask_join(&mut self, join: Join) -> oneshot::Receiver<JoinAnswer> {
        let (answer, answered) = oneshot::channel();
        self.group.join(self.now, Duration::ZERO, join, answer);
        answered
    }

    /// A dynamic member gets its id and joins with it.
    fn ask_join_anew(&mut self) -> (StrBytes, oneshot::Receiver<JoinAnswer>) {
        let answer = self
            .ask_join(join(&StrBytes::new(), None))
            .try_recv()
            .unwrap();
        let Err((ResponseError::MemberIdRequired, id)) = answer else {
            panic!("{answer:?}")
        };
        let answered = self.ask_join(join(&id, None));
        (id, answered)
    }

    fn ask_sync(
        &mut self,
        joined: &Joined,
        instance: Option<&'static str>,
        assignments: &[(&StrBytes, &'static [u8])],
    ) -> oneshot::Receiver<SyncAnswer> {
        let (answer, answered) = oneshot::channel();
        let sync = Sync {
            membership: membership(joined, instance),
            protocol_type: None,
            protocol: None,
            assignments: assignments
                .iter()
                .map(|&(id, bytes)| (id.clone(), Bytes::from_static(bytes)))
                .collect(),
        };
        self.group.sync(self.now, sync, usize::MAX, answer);
        answered
    }

    /// Two members in one generation, both with an assignment.
    fn two_stable(&mut self) -> (Joined, Joined) {
        let (a, mut first) = self.ask_join_anew();
        first.try_recv().unwrap().unwrap();
        let (b, mut second) = self.ask_join_anew();
        let mut first = self.ask_join(join(&a, None));
        let (a_joined, b_joined) = (
            first.try_recv().unwrap().unwrap(),
            second.try_recv().unwrap().unwrap(),
        );
        assert_eq!(a_joined.leader, a);
        let mut b_sync = self.ask_sync(&b_joined, None, &[]);
        assert!(
            b_sync.try_recv().is_err(),
            "the leader has not brought the assignment"
        );
        let mut a_sync = self.ask_sync(&a_joined, None, &[(&a, b"for a"), (&b, b"for b")]);
        assert_eq!(a_sync.try_recv().unwrap().unwrap().2, &b"for a"[..]);
        assert_eq!(b_sync.try_recv().unwrap().unwrap().2, &b"for b"[..]);
        (a_joined, b_joined)
    }
}

fn membership(joined: &Joined, instance: Option<&'static str>) -> Membership {
    Membership {
        member_id: joined.member_id.clone(),
        instance_id: instance.map(StrBytes::from_static_str),
        generation: joined.generation,
    }
}

#[test]
fn members_of_one_generation_get_the_leaders_assignment() {
    let mut f = Fixture::new();
    let (a, b) = f.two_stable();
    assert_eq!(a.generation, b.generation);
    assert_eq!(a.members.len(), 2);
    assert!(b.members.is_empty());
    assert_eq!(f.group.heartbeat(f.now, &membership(&a, None)), Ok(()));
    assert_eq!(f.group.check_commit(f.now, &membership(&b, None)), Ok(()));
}

#[test]
fn a_new_member_makes_the_others_join_again() {
    let mut f = Fixture::new();
    let (a, b) = f.two_stable();
    let (_, mut third) = f.ask_join_anew();
    assert!(third.try_recv().is_err());
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&a, None)),
        Err(ResponseError::RebalanceInProgress)
    );
    let mut a_again = f.ask_join(join(&a.member_id, None));
    let mut b_again = f.ask_join(join(&b.member_id, None));
    assert_eq!(a_again.try_recv().unwrap().unwrap().members.len(), 3);
    b_again.try_recv().unwrap().unwrap();
    assert_eq!(
        third.try_recv().unwrap().unwrap().generation,
        a.generation + 1
    );
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&a, None)),
        Err(ResponseError::IllegalGeneration)
    );
}

#[test]
fn a_member_that_does_not_rejoin_in_time_is_removed() {
    let mut f = Fixture::new();
    let (a, b) = f.two_stable();
    let (_, mut third) = f.ask_join_anew();
    let mut a_again = f.ask_join(join(&a.member_id, None));
    for _ in 0..3 {
        f.pass(SESSION / 2);
        let _ = f.group.heartbeat(f.now, &membership(&b, None));
        assert!(third.try_recv().is_err(), "it waits for b, which is alive");
    }
    f.now += REBALANCE;
    let _ = f.group.heartbeat(f.now, &membership(&b, None));
    f.pass(Duration::ZERO);
    assert_eq!(a_again.try_recv().unwrap().unwrap().members.len(), 2);
    third.try_recv().unwrap().unwrap();
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&b, None)),
        Err(ResponseError::UnknownMemberId)
    );
}

#[test]
fn a_silent_member_loses_its_session_and_the_rest_rebalance() {
    let mut f = Fixture::new();
    let (a, b) = f.two_stable();
    f.pass(SESSION / 2);
    assert_eq!(f.group.heartbeat(f.now, &membership(&a, None)), Ok(()));
    assert_eq!(f.group.next_deadline(), Some(f.now + SESSION / 2));
    f.pass(SESSION / 2);
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&a, None)),
        Err(ResponseError::RebalanceInProgress)
    );
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&b, None)),
        Err(ResponseError::UnknownMemberId)
    );
    let mut again = f.ask_join(join(&a.member_id, None));
    assert_eq!(again.try_recv().unwrap().unwrap().members.len(), 1);
}

#[test]
fn the_group_does_not_wait_for_a_member_that_left() {
    let mut f = Fixture::new();
    let (a, b) = f.two_stable();
    let leaver = Leaver {
        member_id: b.member_id,
        instance_id: None,
    };
    assert_eq!(f.group.leave(f.now, &leaver), Ok(()));
    assert_eq!(
        f.group.leave(f.now, &leaver),
        Err(ResponseError::UnknownMemberId)
    );
    let mut again = f.ask_join(join(&a.member_id, None));
    assert_eq!(again.try_recv().unwrap().unwrap().members.len(), 1);
    let leaver = Leaver {
        member_id: a.member_id,
        instance_id: None,
    };
    assert_eq!(f.group.leave(f.now, &leaver), Ok(()));
    assert!(f.group.is_empty());
}

#[test]
fn a_leader_that_never_sends_the_assignment_is_removed() {
    let mut f = Fixture::new();
    let (_, mut first) = f.ask_join_anew();
    let a = first.try_recv().unwrap().unwrap();
    let (b, mut second) = f.ask_join_anew();
    let _a_again = f.ask_join(join(&a.member_id, None));
    let b_joined = second.try_recv().unwrap().unwrap();
    let mut b_sync = f.ask_sync(&b_joined, None, &[]);
    f.pass(SESSION);
    assert_eq!(
        b_sync.try_recv().unwrap(),
        Err(ResponseError::RebalanceInProgress)
    );
    let mut b_again = f.ask_join(join(&b, None));
    assert_eq!(b_again.try_recv().unwrap().unwrap().leader, b);
}

#[test]
fn a_static_member_takes_over_immediately_and_its_predecessor_is_fenced() {
    let mut f = Fixture::new();
    let mut first = f.ask_join(join(&StrBytes::new(), Some("one")));
    let old = first.try_recv().unwrap().unwrap();
    let assigned = f
        .ask_sync(&old, Some("one"), &[(&old.member_id, b"all")])
        .try_recv()
        .unwrap()
        .unwrap();

    let mut second = f.ask_join(join(&StrBytes::new(), Some("one")));
    let new = second.try_recv().unwrap().unwrap();
    assert_ne!(new.member_id, old.member_id);
    assert_eq!(new.generation, old.generation, "no other member rejoins");
    assert!(new.skip_assignment);
    let taken_over = f
        .ask_sync(&new, Some("one"), &[])
        .try_recv()
        .unwrap()
        .unwrap();
    assert_eq!(taken_over, assigned);
    assert_eq!(
        f.group.heartbeat(f.now, &membership(&old, Some("one"))),
        Err(ResponseError::FencedInstanceId)
    );
    let mut fenced = f.ask_join(join(&old.member_id, Some("one")));
    assert!(matches!(
        fenced.try_recv().unwrap(),
        Err((ResponseError::FencedInstanceId, _))
    ));
}

#[test]
fn a_static_leader_of_an_old_client_is_not_asked_to_lead() {
    let mut f = Fixture::new();
    let old = f
        .ask_join(join(&StrBytes::new(), Some("one")))
        .try_recv()
        .unwrap()
        .unwrap();
    f.ask_sync(&old, Some("one"), &[])
        .try_recv()
        .unwrap()
        .unwrap();
    let mut again = join(&StrBytes::new(), Some("one"));
    again.can_skip_assignment = false;
    let new = f.ask_join(again).try_recv().unwrap().unwrap();
    assert_ne!(new.leader, new.member_id);
    assert!(new.members.is_empty());
}

#[test]
fn a_static_member_with_another_subscription_causes_a_rebalance() {
    let mut f = Fixture::new();
    let old = f
        .ask_join(join(&StrBytes::new(), Some("one")))
        .try_recv()
        .unwrap()
        .unwrap();
    f.ask_sync(&old, Some("one"), &[])
        .try_recv()
        .unwrap()
        .unwrap();
    let mut other = join(&StrBytes::new(), Some("one"));
    other.protocols[0].1 = Bytes::from_static(b"other topics");
    let new = f.ask_join(other).try_recv().unwrap().unwrap();
    assert_eq!(new.generation, old.generation + 1);
}

#[test]
fn consumers_that_assign_their_own_partitions_commit_without_being_members() {
    let mut f = Fixture::new();
    let nobody = Membership {
        member_id: StrBytes::new(),
        instance_id: None,
        generation: -1,
    };
    assert_eq!(f.group.check_commit(f.now, &nobody), Ok(()));
    f.two_stable();
    assert_eq!(
        f.group.check_commit(f.now, &nobody),
        Err(ResponseError::UnknownMemberId)
    );
}

#[test]
fn members_without_a_common_protocol_are_refused() {
    let mut f = Fixture::new();
    f.two_stable();
    let mut other = join(&StrBytes::new(), None);
    other.protocols[0].0 = StrBytes::from_static_str("sticky");
    let answer = f.ask_join(other).try_recv().unwrap();
    assert!(matches!(
        answer,
        Err((ResponseError::InconsistentGroupProtocol, _))
    ));
}

#[test]
fn a_full_group_accepts_no_other_member() {
    let mut f = Fixture::new();
    f.group = Group::new(1);
    f.ask_join(join(&StrBytes::new(), Some("one")))
        .try_recv()
        .unwrap()
        .unwrap();
    let answer = f.ask_join(join(&StrBytes::new(), None)).try_recv().unwrap();
    assert!(matches!(
        answer,
        Err((ResponseError::GroupMaxSizeReached, _))
    ));
}

#[test]
fn members_that_start_together_share_the_first_generation() {
    let mut f = Fixture::new();
    let delay = Duration::from_millis(100);
    let (answer, mut first) = oneshot::channel();
    f.group
        .join(f.now, delay, join(&StrBytes::new(), Some("one")), answer);
    assert!(first.try_recv().is_err());
    let mut second = f.ask_join(join(&StrBytes::new(), Some("two")));
    assert!(second.try_recv().is_err());
    assert_eq!(f.group.next_deadline(), Some(f.now + delay));
    f.pass(delay);
    assert_eq!(first.try_recv().unwrap().unwrap().members.len(), 2);
    assert_eq!(second.try_recv().unwrap().unwrap().generation, 1);
}

#[test]
fn an_unused_promised_id_does_not_block_the_group() {
    let mut f = Fixture::new();
    f.ask_join(join(&StrBytes::new(), None))
        .try_recv()
        .unwrap()
        .unwrap_err();
    let mut waiting = f.ask_join(join(&StrBytes::new(), Some("one")));
    assert!(waiting.try_recv().is_err());
    f.pass(SESSION);
    waiting.try_recv().unwrap().unwrap();
}
