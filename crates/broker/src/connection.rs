//! One client's connection: frames in, answers out, in order.
//!
//! A connection is one task. It handles requests as they arrive, so that later produce requests are
//! appended while earlier ones wait for their sync; their answers wait in line.
//!
//! What must hold: answers leave in the order of their requests. Memory is bounded: reading stops
//! while too many answers wait, large buffers count over all connections
//! ([`Buffers`](waybill_connections::Buffers); a control request counts with its answer), and an
//! idle connection holds no buffer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use waybill_connections::{ConnectionSlot, Permit, Reservation, SMALL_BUFFER_BYTES};

use crate::access::Login;
use crate::api::{self, LongPoll, Reply};
use crate::frame::{Frame, Pending};
use crate::server::{Ends, Server};
use crate::settings::CONTROL_GROWTH;
use crate::stats::add;
use waybill_wire::{self as wire, Malformed};

/// The maximum interval between checks of the time-outs.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// How much is read at a time if nothing larger is expected.
const READ_BYTES: usize = 16 << 10;
/// The largest request before the login.
const LOGIN_REQUEST_BYTES_MAX: usize = 32 << 10;
/// While this many answered bytes are unsent, no more requests are handled.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// The same for answers without a permit: a thousand connections may each keep this much.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;
/// The API, its version, the correlation id and the client's.
const HEAD_BYTES_MIN: usize = 8;
const SLICES_MAX: usize = 32;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the client closed the connection")]
    ByPeer,
    #[error("the broker is stopping")]
    Stopping,
    #[error("nothing was sent for too long")]
    Idle,
    #[error("the login timed out")]
    NoLogin,
    #[error("a request or a response took too long to transfer")]
    Stalled,
    #[error(
        "its transfer was among the slowest while memory for large requests and responses was short"
    )]
    Slow,
    #[error("the client sent {0}")]
    Malformed(#[from] Malformed),
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// A frame that is arriving.
#[derive(Clone, Copy)]
struct Expected {
    length: usize,
    key: i16,
    /// It needs memory, and waits until the connection owes no answer.
    waits_for_answers: bool,
}

impl Expected {
    /// The frame's size with its length prefix.
    fn bytes(self) -> usize {
        self.length + 4
    }
}

enum Queued {
    Answered(Frame),
    /// `exclusive`: later requests wait until this one is done.
    Waiting {
        answer: Pending,
        exclusive: bool,
        /// The request's, or a part of it: kept for an answer that has no allowance of its own.
        permit: Option<Permit>,
    },
}

pub(crate) struct Connection<'a> {
    slot: &'a ConnectionSlot,
    stream: TcpStream,
    ends: Ends,
    server: Arc<Server>,
    long_poll: Arc<LongPoll>,
    login: Login,
    opened: Instant,
    input: BytesMut,
    /// Bytes that were handled since a large frame was in the buffer of `input`; 0 if none was.
    passed_bytes: usize,
    /// The frame at the front of `input`, once its beginning is known.
    expected: Option<Expected>,
    permit: Option<Permit>,
    /// The memory that the connection waits for.
    permit_wait: Option<Reservation>,
    /// Cancelled if a transfer of the connection is too slow.
    slow: CancellationToken,
    queue: VecDeque<Queued>,
    exclusive: bool,
    output: VecDeque<Frame>,
    unsent_bytes: usize,
    /// Bytes of answers without a permit, in `queue` and `output`.
    uncounted_bytes: usize,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    stopped: bool,
    watch: Pin<Box<Sleep>>,
    watch_interval: Duration,
    last_traffic: Instant,
    /// Since when the frame at the front of `input` has been incomplete because of the client,
    /// without the time in which the connection did not receive.
    incomplete_since: Option<Instant>,
    /// When it was last seen not to receive.
    paused_since: Option<Instant>,
    /// Bytes that were received since the last report to `slot`.
    received_bytes: usize,
    last_written: Instant,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        stream: TcpStream,
        ends: Ends,
        server: Arc<Server>,
        slot: &'a ConnectionSlot,
    ) -> Self {
        let now = Instant::now();
        let watch_interval = WATCH_INTERVAL
            .min(server.config.idle_timeout / 2)
            .min(server.config.login_timeout);
        let login = Login::new(server.logins(ends));
        let stopping = Box::pin(server.stopping.clone().cancelled_owned());
        Self {
            slot,
            stream,
            ends,
            server,
            long_poll: Arc::default(),
            login,
            opened: now,
            input: BytesMut::new(),
            passed_bytes: 0,
            expected: None,
            permit: None,
            permit_wait: None,
            slow: CancellationToken::new(),
            queue: VecDeque::new(),
            exclusive: false,
            output: VecDeque::new(),
            unsent_bytes: 0,
            uncounted_bytes: 0,
            stopping,
            stopped: false,
            watch: Box::pin(tokio::time::sleep(watch_interval)),
            watch_interval,
            last_traffic: now,
            incomplete_since: None,
            paused_since: None,
            received_bytes: 0,
            last_written: now,
        }
    }

    /// Serves the client until the connection ends.
    pub(crate) async fn run(mut self) -> Closed {
        let slow = self.slow.clone();
        tokio::select! {
            closed = poll_fn(|cx| self.poll(cx)) => closed,
            () = slow.cancelled() => Closed::Slow,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        match self.advance(cx) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(closed)) | Err(closed) => Poll::Ready(closed),
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Result<Poll<Closed>, Closed> {
        if !self.stopped && self.stopping.as_mut().poll(cx).is_ready() {
            self.stopped = true;
        }
        if let Some(paused) = self.paused_since.take() {
            let pause = paused.elapsed();
            self.incomplete_since = self.incomplete_since.map(|since| since + pause);
        }
        loop {
            let mut progress = self.receive(cx)?;
            progress |= self.collect(cx)?;
            progress |= self.send(cx)?;
            if !progress {
                break;
            }
        }
        // No request stays incomplete for longer than `stall_timeout`.
        let arriving = usize::from(self.incomplete_since.is_some());
        let requests = self.unanswered().max(arriving);
        self.paused_since = (!self.is_receiving()).then(Instant::now);
        let is_awaited = arriving > 0 && self.is_receiving();
        let received = std::mem::take(&mut self.received_bytes);
        self.slot
            .report(self.last_traffic, requests, is_awaited, received);
        if self.stopped && !self.owes_answers() {
            return Ok(Poll::Ready(Closed::Stopping));
        }
        while self.watch.as_mut().poll(cx).is_ready() {
            self.check_time()?;
            self.watch
                .as_mut()
                .reset(Instant::now() + self.watch_interval);
        }
        Ok(Poll::Pending)
    }

    /// Whether another request may be handled.
    fn has_room(&self) -> bool {
        !self.stopped
            && !self.exclusive
            && self.unsent_bytes < UNSENT_BYTES_MAX
            && self.uncounted_bytes < UNCOUNTED_BYTES_MAX
            && self.unanswered() < self.server.config.requests_in_flight_max
    }

    /// Reads the bytes that have arrived and handles whole requests.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let mut progress = false;
        loop {
            progress |= self.handle_frames()?;
            // Even without room: a reservation that is not polled would block larger ones.
            if let Some(wait) = &mut self.permit_wait {
                let Poll::Ready(mut permit) = Pin::new(wait).poll(cx) else {
                    return Ok(progress);
                };
                if !permit.is_transferring() {
                    permit.begin_transfer(self.input.len(), &self.slow);
                }
                self.permit = Some(permit);
                self.permit_wait = None;
                // The whole frame may be there.
                continue;
            }
            if !self.has_room() || self.waits_for_answers() {
                return Ok(progress);
            }
            let Poll::Ready(ready) = self.stream.poll_read_ready(cx) else {
                return Ok(progress);
            };
            ready?;
            let whole = self.expected.map_or(0, Expected::bytes);
            let missing = whole.min(self.covered_bytes());
            let missing = missing.saturating_sub(self.input.len());
            self.input.reserve(missing.max(READ_BYTES));
            // Unlike `try_read_buf`, this remembers that a short read has emptied the socket, which
            // saves asking again.
            match pin!(self.stream.read_buf(&mut self.input)).poll(cx) {
                Poll::Ready(Ok(0)) => return Err(Closed::ByPeer),
                Poll::Ready(Ok(read)) => {
                    add(&self.server.counters.received_bytes, read);
                    self.received_bytes += read;
                    if let Some(permit) = &self.permit {
                        permit.note_moved(read);
                    }
                    self.last_traffic = Instant::now();
                    progress = true;
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(progress),
            }
        }
    }

    fn handle_frames(&mut self) -> Result<bool, Closed> {
        let mut progress = false;
        while self.has_room() {
            if self.expected.is_none() && !self.announce()? {
                if !self.input.is_empty() {
                    self.note_incomplete();
                }
                break;
            }
            let Some(expected) = self.expected else {
                break;
            };
            let length = expected.length;
            self.check_announced(expected)?;
            let is_whole = self.input.len() >= expected.bytes();
            if self.permit_wait.is_none() {
                self.reserve(expected, is_whole);
            }
            if !is_whole || self.permit_wait.is_some() || self.waits_for_answers() {
                self.note_incomplete();
                break;
            }
            self.input.advance(4);
            let frame = self.input.split_to(length).freeze();
            self.expected = None;
            self.incomplete_since = None;
            let permit = self.permit.take();
            // The permit of a control request is kept for its answer.
            let mut permit = permit.filter(|_| api::is_control(expected.key));
            if let Some(permit) = &mut permit {
                permit.end_transfer();
            }
            self.handle(frame, permit)?;
            if self.passed_bytes > 0 || length > SMALL_BUFFER_BYTES {
                self.passed_bytes += length + 4;
                self.leave_large_buffer();
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Copies the rest of `input` out of a large buffer, which is no longer counted. The rest is no
    /// longer than what was handled since the last copy: copies stay linear in what arrives, and
    /// otherwise most of the buffer is in use.
    fn leave_large_buffer(&mut self) {
        if self.input.len() <= self.passed_bytes {
            self.input = BytesMut::from(&self.input[..]);
            self.passed_bytes = 0;
        }
    }

    fn note_incomplete(&mut self) {
        if self.incomplete_since.is_none() {
            self.incomplete_since = Some(self.last_traffic);
        }
    }

    /// Reads a frame's length and API; `false` if they have not arrived.
    fn announce(&mut self) -> Result<bool, Closed> {
        let Some((length, frame)) = self.input.split_first_chunk() else {
            return Ok(false);
        };
        let length = i32::from_be_bytes(*length);
        let max = match self.login.is_awaited() {
            true => LOGIN_REQUEST_BYTES_MAX,
            false => self.server.config.request_bytes_max,
        };
        let valid = usize::try_from(length).ok().filter(|&length| length <= max);
        let Some(length) = valid else {
            return Err(Malformed::FrameSize {
                bytes: i64::from(length),
                max,
            }
            .into());
        };
        let Some((key, _)) = wire::peek(frame) else {
            return match length < HEAD_BYTES_MIN {
                true => Err(Malformed::Header.into()),
                false => Ok(false),
            };
        };
        self.expected = Some(Expected {
            length,
            key,
            waits_for_answers: false,
        });
        Ok(true)
    }

    /// How many bytes of the frame at the front the buffer may hold.
    fn covered_bytes(&self) -> usize {
        let permit = self.permit.as_ref().map_or(0, Permit::bytes);
        permit.max(SMALL_BUFFER_BYTES)
    }

    /// Requests the memory to receive more of the frame at the front, or to handle it. A control
    /// request keeps it until its answer is sent, so it waits until the connection owes no other
    /// answer. A fetch that waits for records keeps its own small part, or none.
    fn reserve(&mut self, mut expected: Expected, is_whole: bool) {
        let is_control = api::is_control(expected.key);
        let covered = self.covered_bytes();
        let needed = match is_whole {
            // Frames before the login are short.
            _ if self.login.is_awaited() => 0,
            true if is_control => expected.length.saturating_mul(1 + CONTROL_GROWTH),
            // The frame was read already.
            true => 0,
            false if self.input.len() < covered => 0,
            false => expected.bytes().min(2 * covered),
        };
        let buffers = match is_control {
            true => &self.server.control_buffers,
            false => &self.server.buffers,
        };
        let is_needed = needed > covered && buffers.bytes_max() > covered as u64;
        expected.waits_for_answers = is_needed && is_control && self.owes_answers();
        if is_needed && !expected.waits_for_answers {
            self.permit_wait = Some(buffers.grow(self.permit.take(), needed));
        }
        self.expected = Some(expected);
    }

    /// Whether the frame at the front waits until earlier requests are answered.
    fn waits_for_answers(&self) -> bool {
        self.expected
            .is_some_and(|expected| expected.waits_for_answers)
            && self.owes_answers()
    }

    fn unanswered(&self) -> usize {
        self.queue.len() + self.output.len()
    }

    fn owes_answers(&self) -> bool {
        self.unanswered() > 0
    }

    /// Only produce requests may be large.
    fn check_announced(&self, expected: Expected) -> Result<(), Malformed> {
        let max = self.server.config.control_request_bytes_max;
        match expected.length > max && expected.key != api::PRODUCE {
            true => Err(Malformed::FrameSize {
                bytes: expected.length as i64,
                max,
            }),
            false => Ok(()),
        }
    }

    fn handle(&mut self, frame: Bytes, permit: Option<Permit>) -> Result<(), Malformed> {
        add(&self.server.counters.requests, 1);
        let was_awaited = self.login.is_awaited();
        let (server, login) = (&self.server, &mut self.login);
        let reply = api::handle(server, self.ends, &self.long_poll, login, frame)?;
        if was_awaited && !self.login.is_awaited() {
            self.slot.set_logged_in();
        }
        match reply {
            Reply::None => {}
            Reply::Now(bytes) => {
                let frame = Frame { bytes, permit };
                self.uncounted_bytes += frame.uncounted(frame.bytes.len());
                self.queue.push_back(Queued::Answered(frame));
            }
            Reply::Later(answer) => {
                self.queue.push_back(Queued::Waiting {
                    answer,
                    exclusive: false,
                    permit,
                });
            }
            Reply::LaterKeeping { answer, kept_bytes } => {
                self.queue.push_back(Queued::Waiting {
                    answer,
                    exclusive: false,
                    permit: permit.and_then(|permit| permit.shrink(kept_bytes)),
                });
            }
            Reply::Exclusive(answer) => {
                self.exclusive = true;
                self.queue.push_back(Queued::Waiting {
                    answer,
                    exclusive: true,
                    permit,
                });
            }
        }
        Ok(())
    }

    /// Takes answers that are ready from the front of the queue.
    fn collect(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let mut progress = false;
        while self.unsent_bytes < UNSENT_BYTES_MAX {
            let mut frame = match self.queue.front_mut() {
                None => break,
                Some(Queued::Answered(frame)) => Frame {
                    bytes: std::mem::take(&mut frame.bytes),
                    permit: frame.permit.take(),
                },
                Some(Queued::Waiting {
                    answer,
                    exclusive,
                    permit,
                }) => {
                    let Poll::Ready(frame) = answer.as_mut().poll(cx) else {
                        break;
                    };
                    if *exclusive {
                        self.exclusive = false;
                    }
                    let mut frame = frame?;
                    frame.permit = frame.permit.or(permit.take());
                    self.uncounted_bytes += frame.uncounted(frame.bytes.len());
                    frame
                }
            };
            self.queue.pop_front();
            if self.output.is_empty() {
                self.last_written = Instant::now();
            }
            frame.begin(&self.slow);
            self.unsent_bytes += frame.bytes.len();
            self.output.push_back(frame);
            progress = true;
        }
        Ok(progress)
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let mut progress = false;
        while !self.output.is_empty() {
            let Poll::Ready(written) = self.poll_write(cx) else {
                break;
            };
            let mut written = written?;
            add(&self.server.counters.sent_bytes, written);
            self.unsent_bytes -= written;
            self.last_written = Instant::now();
            self.last_traffic = self.last_written;
            progress = true;
            while let Some(front) = self.output.front_mut() {
                let taken = written.min(front.bytes.len());
                self.uncounted_bytes -= front.uncounted(taken);
                if let Some(permit) = &front.permit {
                    permit.note_moved(taken);
                }
                front.bytes.advance(taken);
                written -= taken;
                if !front.bytes.is_empty() {
                    break;
                }
                self.output.pop_front();
                if let Some(next) = self.output.front_mut() {
                    next.begin(&self.slow);
                }
            }
        }
        Ok(progress)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let result = match self.output.len() {
                1 => self.stream.try_write(&self.output[0].bytes),
                _ => {
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    for (slice, frame) in slices.iter_mut().zip(&self.output) {
                        *slice = IoSlice::new(&frame.bytes);
                    }
                    self.stream
                        .try_write_vectored(&slices[..self.output.len().min(SLICES_MAX)])
                }
            };
            match result {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Whether an incomplete frame waits for its client, and not for answers or memory.
    fn is_receiving(&self) -> bool {
        self.has_room() && self.permit_wait.is_none() && !self.waits_for_answers()
    }

    fn check_time(&mut self) -> Result<(), Closed> {
        if self.login.is_awaited() && self.opened.elapsed() > self.server.config.login_timeout {
            return Err(Closed::NoLogin);
        }
        if self.input.is_empty() && self.last_traffic.elapsed() >= WATCH_INTERVAL {
            self.input = BytesMut::new();
        }
        let (idle, stall) = (
            self.server.config.idle_timeout,
            self.server.config.stall_timeout,
        );
        if self.is_receiving()
            && self
                .incomplete_since
                .is_some_and(|since| since.elapsed() > stall)
            || !self.output.is_empty() && self.last_written.elapsed() > stall
        {
            return Err(Closed::Stalled);
        }
        // A connection that has sent nothing yet gets no longer than a request.
        let has_begun = self.last_traffic > self.opened;
        let idle = if has_begun { idle } else { idle.min(stall) };
        if self.queue.is_empty() && self.last_traffic.elapsed() > idle {
            return Err(Closed::Idle);
        }
        Ok(())
    }
}
