//! The intake of requests: all of its decisions, and none of its effects.
//!
//! Requests, acknowledgements of the broker and the time go in. Out come decisions: whether a
//! request is produced, shares the outcome of an equal one, or is answered; and who learns which
//! outcome. `crates/ingestion` is the driver: it locks, encodes, produces, and answers clients.
//!
//! * [`admit`] decides about a request, and [`settle`] passes on the outcome of its record. Between
//!   the two, a [`Ticket`] stands for the request.
//! * [`Claims`] are the requests in flight and those accepted last. The driver has several, each
//!   for a share of the ids and under its own lock.
//! * [`Flow`] knows whether the broker acknowledges records.
//!
//! What must hold here:
//!
//! * A request is accepted only if its record, or that of an equal request, was acknowledged.
//! * It is refused only if no record of it is in the log, now or later. Every other failure is an
//!   unknown outcome.
//! * Each process has at most one request with a caller's id in flight. Equal requests share its
//!   outcome, and different ones get a conflict.
//!
//! No guarantee depends on what is remembered: two processes may produce requests with the same id,
//! and the scheduler decides between them. The manifest cannot reach tokio, rdkafka or a database,
//! and `clippy.toml` bans the parts of `std` that would give access to clocks, threads and files.

mod accepted;
mod claims;
mod flow;
mod intake;

pub use accepted::{Accepted, Failed, Refusal, Settled};
pub use claims::{Claims, Waiter};
pub use flow::{Flow, Turn};
pub use intake::{
    Admitted, Candidate, Ended, Found, Known, NotAdmitted, Position, Ticket, abandon, admit, known,
    settle,
};
