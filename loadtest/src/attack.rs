//! `waybill-loadtest attack`: attacks of a hostile process on the network, all at the same time.
//!
//! It shows that honest clients are still served: run it alongside `waybill-loadtest run attacked`.
//! Attackers use their own loopback addresses, so that limits by address apply to them and not to
//! the load. They pause between steps, because a flood that takes all CPU is another test.
//!
//! Deliberately absent: attacks that need a token or the port of the roles' own listener, which is
//! not announced, and Kafka clients that forge requests or delete topics.

mod broker;
mod http;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use waybill_units::duration_from_text;

use crate::interrupt::Interrupt;

/// The number of loopback addresses of attackers.
const SOURCES: u8 = 4;
/// The pause of an attacker after each step.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum time for which an attacker holds a connection.
const HOLD: Duration = Duration::from_secs(30);

/// Its flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The API
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// The admin port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
    /// The embedded broker
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    broker: SocketAddr,
    /// The simulated services
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8082")]
    services: SocketAddr,
    /// The prefix of Waybill's topics
    #[arg(long, value_name = "PREFIX", default_value = "waybill")]
    topic_prefix: String,
    /// Duration of the attack
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = duration_from_text)]
    length: Duration,
    /// Number of attackers of each kind at each listener
    #[arg(long, value_name = "N", default_value_t = 100)]
    attackers: usize,
}

/// A listener under attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listener {
    Http,
    Admin,
    Broker,
    Services,
}

impl Arguments {
    fn address(&self, listener: Listener) -> SocketAddr {
        match listener {
            Listener::Http => self.http,
            Listener::Admin => self.admin,
            Listener::Broker => self.broker,
            Listener::Services => self.services,
        }
    }
}

/// Counts of one kind of attack.
#[derive(Default)]
pub struct Tally {
    steps: AtomicU64,
    unreached: AtomicU64,
}

/// One attacker, at one listener.
#[derive(Clone)]
pub struct Attacker {
    listener: Listener,
    address: SocketAddr,
    source: Ipv4Addr,
    number: usize,
    topic_prefix: Arc<str>,
    tally: Arc<Tally>,
}

impl Attacker {
    async fn connect(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        // Closed with a reset, a connection leaves no port in TIME-WAIT. With tens of thousands of
        // those, the kernel would need a whole core to find a free port, which Waybill would lack
        // on the same machine.
        socket.set_zero_linger()?;
        if self.address.ip().is_loopback() {
            socket.bind((self.source, 0).into())?;
        }
        socket.connect(self.address).await
    }

    /// Counts a step and pauses.
    async fn rest(&self) {
        self.tally.steps.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads and discards data until the peer closes the connection, for at most [`HOLD`].
async fn hold(stream: &mut TcpStream) {
    let mut dropped = [0; 4096];
    let read = async { while matches!(stream.read(&mut dropped).await, Ok(1..)) {} };
    let _ = tokio::time::timeout(HOLD, read).await;
}

/// A kind of attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attack {
    /// Opens connections and sends nothing.
    Silence,
    /// Sends half a head, and then a byte now and then.
    HalfHead,
    /// Sends a request, reads the answer and leaves the connection idle.
    IdleAfterAnswer,
    /// Sends a body byte by byte.
    DrippingBody,
    /// Requests large answers over HTTP/2 and reads none.
    UnreadAnswers,
    /// Leaves a large answer unread over HTTP/2, and reads small ones in the meantime.
    UnreadBesideReadAnswers,
    /// Sends heads with ambiguous framing.
    AmbiguousFraming,
    /// Requests operations that do not exist.
    MadeUpOperations,
    /// Sends a browser's requests for a page of another origin, also under a name that was rebound
    /// to this address.
    ForeignPage,
    /// Sends malformed frames.
    BadFrames,
    /// Sends small batches that expand to a large size.
    Bombs,
    /// Appends batches whose records no client can decode.
    Undecodable,
    /// Writes meaningless records to the topics that Waybill reads.
    Rubbish,
    /// The same with records of the maximum size.
    LargePoison,
    /// Writes replies that prove no request.
    ForgedReplies,
    /// Announces requests of the maximum size and sends nothing of them.
    AnnouncedRequests,
    /// Sends most of a request of the maximum size, and then a byte now and then.
    HalfRequests,
    /// Fetches much and reads none of it.
    UnreadFetches,
}

impl Attack {
    const ALL: [Self; 18] = [
        Self::Silence,
        Self::HalfHead,
        Self::IdleAfterAnswer,
        Self::DrippingBody,
        Self::UnreadAnswers,
        Self::UnreadBesideReadAnswers,
        Self::AmbiguousFraming,
        Self::MadeUpOperations,
        Self::ForeignPage,
        Self::BadFrames,
        Self::Bombs,
        Self::Undecodable,
        Self::Rubbish,
        Self::LargePoison,
        Self::ForgedReplies,
        Self::AnnouncedRequests,
        Self::HalfRequests,
        Self::UnreadFetches,
    ];

    fn listeners(self) -> &'static [Listener] {
        use Listener::{Admin, Broker, Http, Services};
        match self {
            Self::Silence => &[Http, Admin, Broker, Services],
            Self::HalfHead | Self::IdleAfterAnswer | Self::DrippingBody => &[Http, Admin, Services],
            Self::UnreadAnswers | Self::UnreadBesideReadAnswers | Self::AmbiguousFraming => {
                &[Http, Admin]
            }
            Self::MadeUpOperations => &[Http],
            Self::ForeignPage => &[Http, Admin],
            Self::BadFrames
            | Self::Bombs
            | Self::Undecodable
            | Self::Rubbish
            | Self::LargePoison
            | Self::ForgedReplies
            | Self::AnnouncedRequests
            | Self::HalfRequests
            | Self::UnreadFetches => &[Broker],
        }
    }

    /// The number of attackers at a listener. Few if an attack costs the attacker much.
    fn attackers(self, most: usize) -> usize {
        match self {
            Self::Bombs | Self::Undecodable | Self::Rubbish => 1,
            Self::LargePoison | Self::ForgedReplies => 1,
            Self::MadeUpOperations
            | Self::ForeignPage
            | Self::AmbiguousFraming
            | Self::BadFrames => most.div_ceil(20),
            Self::HalfRequests | Self::UnreadFetches => most.div_ceil(8),
            Self::Silence
            | Self::HalfHead
            | Self::IdleAfterAnswer
            | Self::DrippingBody
            | Self::UnreadAnswers
            | Self::UnreadBesideReadAnswers
            | Self::AnnouncedRequests => most,
        }
    }

    async fn step(self, attacker: &Attacker) -> io::Result<()> {
        match self {
            Self::Silence => {
                hold(&mut attacker.connect().await?).await;
                Ok(())
            }
            Self::HalfHead => http::half_head(attacker).await,
            Self::IdleAfterAnswer => http::idle_after_answer(attacker).await,
            Self::DrippingBody => http::dripping_body(attacker).await,
            Self::UnreadAnswers => http::unread_answers(attacker).await,
            Self::UnreadBesideReadAnswers => http::unread_beside_read_answers(attacker).await,
            Self::AmbiguousFraming => http::ambiguous_framing(attacker).await,
            Self::MadeUpOperations => http::made_up_operations(attacker).await,
            Self::ForeignPage => http::foreign_page(attacker).await,
            Self::BadFrames => broker::bad_frames(attacker).await,
            Self::Bombs => broker::bombs(attacker).await,
            Self::Undecodable => broker::undecodable(attacker).await,
            Self::Rubbish => broker::rubbish(attacker).await,
            Self::LargePoison => broker::large_poison(attacker).await,
            Self::ForgedReplies => broker::forged_replies(attacker).await,
            Self::AnnouncedRequests => broker::announced_requests(attacker).await,
            Self::HalfRequests => broker::half_requests(attacker).await,
            Self::UnreadFetches => broker::unread_fetches(attacker).await,
        }
    }

    async fn run_attacker(self, attacker: Attacker) {
        loop {
            if self.step(&attacker).await.is_err() {
                attacker.tally.unreached.fetch_add(1, Ordering::Relaxed);
            }
            attacker.rest().await;
        }
    }
}

/// Attacks until the time is over or the run is interrupted.
///
/// # Errors
///
/// If it is interrupted.
pub async fn act(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let mut tallies = Vec::new();
    let mut attackers = tokio::task::JoinSet::new();
    for attack in Attack::ALL {
        let tally = Arc::new(Tally::default());
        for &listener in attack.listeners() {
            for number in 0..attack.attackers(arguments.attackers) {
                // Always below 256.
                let last = (number % usize::from(SOURCES)) as u8 + 2;
                let attacker = Attacker {
                    listener,
                    address: arguments.address(listener),
                    source: Ipv4Addr::new(127, 0, 0, last),
                    number,
                    topic_prefix: arguments.topic_prefix.as_str().into(),
                    tally: tally.clone(),
                };
                attackers.spawn_local(attack.run_attacker(attacker));
            }
        }
        tallies.push((attack, tally));
    }
    println!("{} attackers", attackers.len());
    let ended = interrupt
        .unless(async {
            tokio::time::sleep(arguments.length).await;
            Ok(())
        })
        .await;
    attackers.shutdown().await;
    for (attack, tally) in tallies {
        println!("{}", Line(attack, &tally));
    }
    ended.map(|()| true)
}

/// The counts of one kind of attack, in one line.
struct Line<'a>(Attack, &'a Tally);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attack, tally) = self;
        let name = format!("{attack:?}");
        let steps = tally.steps.load(Ordering::Relaxed);
        let unreached = tally.unreached.load(Ordering::Relaxed);
        write!(
            f,
            "{name:<24} {steps:>8} steps, {unreached} cut off or refused"
        )
    }
}
