//! The decisions about one request, in their order.

use std::time::Duration;

use waybill_engine::{IdOrigin, Offset, OperationId, OperationRow, PartitionId, RequestHash};

use crate::accepted::{Accepted, Failed, Settled};
use crate::claims::{Claimed, Claims, Waiter};
use crate::flow::{Flow, Turn};

/// What the intake needs to know of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The hash of the request that created it.
    pub hash: RequestHash,
    /// Whether it only reserves the place of an operation that was cancelled before it was created.
    pub is_tombstone: bool,
}

impl From<&OperationRow> for Found {
    fn from(row: &OperationRow) -> Self {
        Self {
            hash: row.created.request_hash,
            is_tombstone: row.state.tombstone,
        }
    }
}

/// What a row says about a request with its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing: the request is new. With the row of an operation that was cancelled before it was
    /// created, it is accepted, and ends `Cancelled`.
    New,
    /// It is the row of an equal request.
    Repeated,
    /// It is the row of another request.
    Conflict,
}

/// What the row of a request's id says about it.
#[must_use]
pub fn known(row: Found, hash: RequestHash) -> Known {
    match row.hash == hash {
        _ if row.is_tombstone => Known::New,
        true => Known::Repeated,
        false => Known::Conflict,
    }
}

/// A request that has no row.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The id of its operation.
    pub id: OperationId,
    /// Where the id is from. Only a caller's can be repeated.
    pub origin: IdOrigin,
    /// Distinguishes a repeat from a conflict.
    pub hash: RequestHash,
}

/// A request that was admitted: its record is produced, and then [`settle`]d.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "its claim ends only when it is settled or abandoned"]
pub struct Ticket {
    id: OperationId,
    /// Whether the id is claimed.
    is_claimed: bool,
}

impl Ticket {
    /// The id of the operation.
    #[must_use]
    pub fn id(&self) -> OperationId {
        self.id
    }
}

/// A decision about a request.
#[derive(Debug)]
pub enum Admitted<W> {
    /// Its record is to be produced. The waiter is returned if nothing is claimed for it: the
    /// driver keeps it until the record is settled.
    Produce(Ticket, Option<W>),
    /// It gets the outcome of an equal request that is in flight.
    Shares,
    /// An equal request was accepted.
    Before(Accepted),
}

/// Why a request is not admitted.
#[derive(PartialEq, Eq, Debug)]
pub enum NotAdmitted<R> {
    /// Another request has the id.
    Conflict,
    /// A reason of the driver's.
    Refused(R),
    /// The broker has acknowledged nothing for a while. Contains the change, if it is one.
    Unavailable(Option<Turn>),
}

/// Decides about a request without a row. `refused` is why a new request may not be produced, if
/// so: what is known already is answered nevertheless.
///
/// # Errors
///
/// If the request must be refused. Nothing of it is in the log, and nothing is claimed.
pub fn admit<W: Waiter, R>(
    claims: &mut Claims<W>,
    flow: &Flow,
    now: Duration,
    candidate: Candidate,
    refused: Option<R>,
    waiter: W,
) -> Result<Admitted<W>, NotAdmitted<R>> {
    let Candidate { id, origin, hash } = candidate;
    let is_claimed = origin == IdOrigin::Caller;
    if is_claimed {
        match claims.look_up(id, hash) {
            Claimed::New => {}
            Claimed::Shared => {
                claims.share(id, waiter);
                return Ok(Admitted::Shares);
            }
            Claimed::Accepted(accepted) => return Ok(Admitted::Before(accepted)),
            Claimed::Conflict => return Err(NotAdmitted::Conflict),
        }
    }
    if let Some(refused) = refused {
        return Err(NotAdmitted::Refused(refused));
    }
    flow.begin(now).map_err(NotAdmitted::Unavailable)?;
    let ticket = Ticket { id, is_claimed };
    let mut own = Some(waiter);
    if is_claimed && let Some(first) = own.take() {
        claims.claim(id, hash, first);
    }
    Ok(Admitted::Produce(ticket, own))
}

/// The position of an acknowledged record.
pub type Position = (PartitionId, Option<Offset>);

/// The end of a request that was produced.
#[derive(Debug)]
pub struct Ended<W> {
    /// Its outcome.
    pub settled: Settled,
    /// All that claimed or share it, and get the outcome.
    pub waiters: Vec<W>,
    /// A change of the flow.
    pub turn: Option<Turn>,
}

/// Passes on the outcome of a record. `accepted` describes the request at an acknowledged position.
pub fn settle<W: Waiter>(
    claims: &mut Claims<W>,
    flow: &Flow,
    now: Duration,
    ticket: Ticket,
    produced: Result<Position, Failed>,
    accepted: impl FnOnce(Position) -> Accepted,
) -> Ended<W> {
    let turn = flow.end(produced.err(), now);
    let settled = produced.map(accepted);
    let waiters = match (ticket.is_claimed, &settled) {
        (true, settled) => claims.settle(ticket.id, settled),
        (false, Ok(accepted)) => {
            claims.remember(ticket.id, accepted);
            Vec::new()
        }
        (false, Err(_)) => Vec::new(),
    };
    Ended {
        settled,
        waiters,
        turn,
    }
}

/// Ends a request whose outcome will never be known. All that share it learn that.
pub fn abandon<W: Waiter>(
    claims: &mut Claims<W>,
    flow: &Flow,
    now: Duration,
    ticket: Ticket,
) -> Vec<W> {
    flow.end(Some(Failed::Unknown), now);
    match ticket.is_claimed {
        true => claims.abandon(ticket.id),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use waybill_engine::{Priority, Timestamp};

    use super::*;
    use crate::accepted::Refusal;

    /// A client, by its number.
    #[derive(PartialEq, Eq, Debug)]
    struct Client(u32);

    impl Waiter for Client {
        fn is_gone(&self) -> bool {
            false
        }
    }

    struct Intake {
        claims: Claims<Client>,
        flow: Flow,
    }

    const NOW: Duration = Duration::ZERO;
    const AT: Position = (PartitionId(1), Some(Offset(5)));

    fn candidate(origin: IdOrigin, hash: u8) -> Candidate {
        Candidate {
            id: OperationId(Uuid::from_u128(1)),
            origin,
            hash: RequestHash([hash; 16]),
        }
    }

    fn accepted(hash: u8, (partition, offset): Position) -> Accepted {
        Accepted {
            priority: Priority::Normal,
            partition,
            offset,
            hash: RequestHash([hash; 16]),
            workflow: "w".into(),
            tenant: None,
            caller_id: None,
            requested_at: Timestamp(0),
        }
    }

    impl Intake {
        fn new() -> Self {
            Self {
                claims: Claims::new(10),
                flow: Flow::new(Duration::from_secs(10)),
            }
        }

        fn admit(
            &mut self,
            hash: u8,
            refused: Option<&'static str>,
            client: u32,
        ) -> Result<Admitted<Client>, NotAdmitted<&'static str>> {
            let candidate = candidate(IdOrigin::Caller, hash);
            let Self { claims, flow } = self;
            admit(claims, flow, NOW, candidate, refused, Client(client))
        }

        fn ticket(&mut self, hash: u8, client: u32) -> Ticket {
            match self.admit(hash, None, client) {
                Ok(Admitted::Produce(ticket, None)) => ticket,
                other => panic!("the id is free: {other:?}"),
            }
        }

        fn settle(&mut self, ticket: Ticket, produced: Result<Position, Failed>) -> Ended<Client> {
            settle(&mut self.claims, &self.flow, NOW, ticket, produced, |at| {
                accepted(1, at)
            })
        }
    }

    #[test]
    fn equal_requests_share_an_outcome_and_a_different_one_conflicts_immediately() {
        let mut intake = Intake::new();
        let first = intake.ticket(1, 1);
        assert!(matches!(intake.admit(1, None, 2), Ok(Admitted::Shares)));
        assert!(matches!(
            intake.admit(2, None, 3),
            Err(NotAdmitted::Conflict)
        ));
        let ended = intake.settle(first, Ok(AT));
        assert_eq!(ended.settled, Ok(accepted(1, AT)));
        assert_eq!(ended.waiters, [Client(2), Client(1)]);
        assert!(
            matches!(intake.admit(1, None, 4), Ok(Admitted::Before(it)) if it == accepted(1, AT))
        );
        assert!(matches!(
            intake.admit(2, None, 5),
            Err(NotAdmitted::Conflict)
        ));
    }

    #[test]
    fn the_id_of_a_failed_request_can_be_claimed_again() {
        let mut intake = Intake::new();
        let refused = Failed::Refused(Refusal::QueueFull);
        for failed in [refused, Failed::Unknown] {
            let first = intake.ticket(1, 1);
            assert!(matches!(intake.admit(1, None, 2), Ok(Admitted::Shares)));
            let ended = intake.settle(first, Err(failed));
            assert_eq!(ended.settled, Err(failed));
            assert_eq!(ended.waiters, [Client(2), Client(1)]);
        }
        let first = intake.ticket(2, 1);
        let waiting = abandon(&mut intake.claims, &intake.flow, NOW, first);
        assert_eq!(waiting, [Client(1)]);
        _ = intake.ticket(3, 1);
    }

    #[test]
    fn what_is_known_is_answered_also_where_a_new_request_is_refused() {
        let mut intake = Intake::new();
        let late = Some("its deadline is over");
        assert!(matches!(
            intake.admit(1, late, 1),
            Err(NotAdmitted::Refused(_))
        ));
        let first = intake.ticket(1, 1);
        assert!(matches!(intake.admit(1, late, 2), Ok(Admitted::Shares)));
        intake.settle(first, Ok(AT));
        assert!(matches!(intake.admit(1, late, 3), Ok(Admitted::Before(_))));
    }

    #[test]
    fn a_request_that_is_refused_at_once_claims_nothing() {
        let mut intake = Intake::new();
        // One that waits for too long.
        intake.flow.begin(NOW).unwrap();
        let later = Flow::STALL_MAX + Duration::from_millis(1);
        let candidate = candidate(IdOrigin::Caller, 1);
        let Intake { claims, flow } = &mut intake;
        let refused = admit::<_, ()>(claims, flow, later, candidate, None, Client(1));
        assert!(matches!(
            refused,
            Err(NotAdmitted::Unavailable(Some(Turn::Unavailable)))
        ));
        assert_eq!(intake.claims.in_flight(), 0);
        intake.flow.end(None, NOW);
        _ = intake.ticket(2, 1);
    }

    #[test]
    fn an_id_of_the_server_is_not_claimed_and_is_remembered() {
        let mut intake = Intake::new();
        let candidate = candidate(IdOrigin::Server, 1);
        let Intake { claims, flow } = &mut intake;
        let admitted = admit::<_, ()>(claims, flow, NOW, candidate, None, Client(1));
        let Ok(Admitted::Produce(ticket, Some(Client(1)))) = admitted else {
            panic!("{admitted:?}")
        };
        assert_eq!(intake.claims.in_flight(), 0);
        let ended = intake.settle(ticket, Ok(AT));
        assert_eq!(ended.waiters, []);
        assert_eq!(intake.claims.accepted(candidate.id), Some(&accepted(1, AT)));
    }
}
