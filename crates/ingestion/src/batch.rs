//! Batches: many requests in one. NDJSON in, NDJSON out, one answer for each non-blank line, in
//! order.
//!
//! What must hold: a line that is wrong or too long harms no other line. Lines are not gathered
//! before the work begins, and not held after their answer is known. At most a configured number of
//! lines of a batch wait for the broker, and while the client does not read the answers, no further
//! lines are read. A line that did not arrive whole is not accepted.

mod lines;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::Body;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use waybill_api::request::{self, Envelope, Rules, Submission};
use waybill_api::view::BatchLine;
use waybill_clock::wall_clock;
use waybill_engine::{IdOrigin, OperationId};
use waybill_http::payload::{Parts, too_large};
use waybill_http::problem::{Kind, Problem};

use self::lines::{Line, Lines};
use super::intake::{Answer, InFlight, Intake, Sent, answer_of_row};
use super::measure::Measures;
use super::route::{OPERATIONS, location};
use super::settings::batch_bytes;
use super::tenant_semaphore::RevocablePermit;
use super::token::StatusToken;

/// How many pieces of answers wait for the client, each of at most [`ANSWER_BYTES`] and one line.
pub const ANSWERS_MAX: usize = 4;
const ANSWER_BYTES: usize = 8 * 1024;
/// The limit on problems that wait for earlier answers, in bytes.
const PROBLEMS_BYTES_MAX: usize = 64 * 1024;

/// How many lines are processed at a time. One read of the store gets the rows of all of them.
const GROUP_LINES_MAX: usize = 128;

/// The limits of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// The longest line.
    pub line_bytes_max: usize,
    /// How many lines may wait for the broker.
    pub lines_max: usize,
    /// How long a line waits for the broker.
    pub accept_timeout: Duration,
    /// How long the client may pause, sending or reading.
    pub pause_max: Duration,
    /// How long the client may take to send a line, even if it arrives steadily.
    pub line_max: Duration,
}

impl BatchLimits {
    /// How many bytes the lines of a batch may hold in memory at the same time.
    pub fn bytes_max(&self) -> usize {
        batch_bytes(self.line_bytes_max)
    }
}

/// One batch in progress.
pub struct Batch<B> {
    parts: Parts<B>,
    lines: Lines,
    /// The time limit for the next line to arrive whole.
    line_due: Instant,
    limits: BatchLimits,
    envelope: Envelope,
    intake: Arc<Intake>,
    rules: Arc<Rules>,
    measures: Arc<Measures>,
    stop: CancellationToken,
    permit: RevocablePermit,
    /// Lines whose answer has not been written, oldest first.
    waiting: VecDeque<Unanswered>,
    /// The size of the problems among them.
    problems_bytes: usize,
    answers: mpsc::Sender<Bytes>,
    written: Vec<u8>,
}

/// A line whose answer has not been written.
struct Unanswered {
    /// Its number, from 1.
    line: u64,
    waiting: Waiting,
    /// The size of its problem, if it was known immediately.
    problem_bytes: usize,
}

enum Waiting {
    Known(Result<Outcome, Problem>),
    InFlight(InFlight),
}

/// The outcome of an accepted line, without the row that proves it.
enum Outcome {
    Accepted(OperationId, Option<StatusToken>),
    Repeated(OperationId),
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Accepted(id, accepted) => {
                Self::Accepted(id, StatusToken::of_accepted(&accepted))
            }
            Answer::Repeated(row) => Self::Repeated(row.id),
        }
    }
}

/// The client has disconnected, or does not read.
struct Abandoned;

impl<B: Body<Data = Bytes> + Unpin> Batch<B> {
    /// A batch that reads `parts` and writes to `answers`.
    #[allow(
        clippy::too_many_arguments,
        reason = "made in one place, of parts that do not group"
    )]
    pub fn new(
        parts: Parts<B>,
        limits: BatchLimits,
        envelope: Envelope,
        intake: Arc<Intake>,
        rules: Arc<Rules>,
        measures: Arc<Measures>,
        stop: CancellationToken,
        permit: RevocablePermit,
        answers: mpsc::Sender<Bytes>,
    ) -> Self {
        Self {
            parts,
            lines: Lines::new(limits.line_bytes_max),
            line_due: Instant::now() + limits.line_max,
            limits,
            envelope,
            intake,
            rules,
            measures,
            stop,
            permit,
            waiting: VecDeque::new(),
            problems_bytes: 0,
            answers,
            written: Vec::new(),
        }
    }

    /// Runs the batch to its end.
    pub async fn run(mut self) {
        if self.all().await.is_err() {
            tracing::debug!(
                "the client of a batch disconnected; lines already read are still submitted"
            );
        }
    }

    async fn all(&mut self) -> Result<(), Abandoned> {
        let end = loop {
            match self.next_part().await? {
                Ok(Some(part)) => {
                    self.lines.push(part);
                    self.take_lines().await?;
                }
                Ok(None) => break None,
                Err(problem) => break Some(problem),
            }
        };
        match end {
            // The incomplete end of a batch that ended early is never treated as a line.
            Some(problem) => self.wait(self.lines.count() + 1, Waiting::Known(Err(problem))),
            None => {
                self.lines.end();
                self.take_lines().await?;
            }
        }
        while !self.waiting.is_empty() {
            self.answer_oldest().await?;
        }
        self.flush().await
    }

    /// The next part of the body. Meanwhile writes answers that become known.
    async fn next_part(&mut self) -> Result<Result<Option<Bytes>, Problem>, Abandoned> {
        loop {
            if Instant::now() < self.line_due
                && !self.permit.is_revoked()
                && let Some(now) = self.parts.next_now()
            {
                return Ok(now);
            }
            // Nothing more has arrived: send the known answers to the client.
            self.flush().await?;
            tokio::select! {
                part = self.parts.next() => return Ok(part),
                (line, answer) = settled(self.waiting.front_mut(), self.limits.accept_timeout) => {
                    self.next_waiting();
                    self.write(line, &answer).await?;
                }
                () = self.stop.cancelled() => {
                    let detail = "This server is shutting down; the rest of the batch was not read.";
                    return Ok(Err(Problem::new(Kind::Overloaded, detail)));
                }
                () = self.permit.revoked() => {
                    let detail = "Other requests need the memory that this batch uses; the rest of \
                                  the batch was not read.";
                    return Ok(Err(Problem::new(Kind::Overloaded, detail)));
                }
                () = tokio::time::sleep_until(self.line_due) => {
                    let seconds = self.limits.line_max.as_secs_f32();
                    let detail = format!("No complete line arrived for {seconds} seconds.");
                    return Ok(Err(Problem::new(Kind::RequestTimeout, detail)));
                }
                () = self.answers.closed() => return Err(Abandoned),
            }
        }
    }

    /// Processes the whole lines that have arrived, in groups. Each group needs one read of the
    /// store.
    async fn take_lines(&mut self) -> Result<(), Abandoned> {
        loop {
            let room = self
                .limits
                .lines_max
                .saturating_sub(self.waiting.len())
                .clamp(1, GROUP_LINES_MAX);
            let mut group = Vec::new();
            let mut problems_bytes = 0;
            while group.len() < room
                && problems_bytes < PROBLEMS_BYTES_MAX
                && let Some(line) = self.lines.next()
            {
                let submission = self.read_line(&line).and_then(|submission| {
                    self.rules.tenant_limits.take(&submission.record.tenant)?;
                    Ok(submission)
                });
                problems_bytes += submission.as_ref().err().map_or(0, Problem::bytes);
                group.push((self.lines.count(), submission));
            }
            if group.is_empty() {
                return Ok(());
            }
            self.submit(group).await;
            while self.waiting.len() >= self.limits.lines_max
                || self.problems_bytes >= PROBLEMS_BYTES_MAX
            {
                self.answer_oldest().await?;
            }
            self.line_due = Instant::now() + self.limits.line_max;
        }
    }

    fn read_line(&self, line: &Line) -> Result<Submission, Problem> {
        match line {
            Line::Whole(text) => {
                request::operation(text, &self.envelope, &self.rules, wall_clock())
            }
            Line::TooLong => Err(too_large(self.limits.line_bytes_max)),
        }
    }

    async fn submit(&mut self, group: Vec<(u64, Result<Submission, Problem>)>) {
        let is_callers = |submission: &&Submission| submission.record.id_origin == IdOrigin::Caller;
        let callers: Vec<_> = group
            .iter()
            .filter_map(|(_, submission)| submission.as_ref().ok())
            .filter(is_callers)
            .map(|submission| submission.record.operation)
            .collect();
        let mut rows = match callers.is_empty() {
            true => Ok(Vec::new().into_iter()),
            false => self.intake.rows(callers).await.map(Vec::into_iter),
        };
        for (line, submission) in group {
            let known = match &submission {
                Err(_) => None,
                Ok(submission) if is_callers(&submission) => match &mut rows {
                    Ok(rows) => rows
                        .next()
                        .and_then(Result::transpose)
                        .and_then(|row| match row {
                            Ok(row) => answer_of_row(submission, row),
                            Err(problem) => Some(Err(problem)),
                        }),
                    Err(problem) => Some(Err(problem.clone())),
                },
                Ok(_) => None,
            };
            let waiting = match (known, submission) {
                (Some(known), _) => Waiting::Known(known.map(Outcome::from)),
                (None, Ok(submission)) => {
                    let checked = self.intake.check_reply_topic(&submission).await;
                    match checked.and_then(|()| self.intake.send(&submission)) {
                        Ok(Sent::InFlight(in_flight)) => Waiting::InFlight(in_flight),
                        Ok(Sent::Before(answer)) => Waiting::Known(Ok(answer.into())),
                        Err(problem) => Waiting::Known(Err(problem)),
                    }
                }
                (None, Err(problem)) => Waiting::Known(Err(problem)),
            };
            self.wait(line, waiting);
        }
    }

    /// Reserves the place of a line among the answers.
    fn wait(&mut self, line: u64, waiting: Waiting) {
        let problem_bytes = match &waiting {
            Waiting::Known(Err(problem)) => problem.bytes(),
            Waiting::Known(Ok(_)) | Waiting::InFlight(_) => 0,
        };
        self.problems_bytes += problem_bytes;
        self.waiting.push_back(Unanswered {
            line,
            waiting,
            problem_bytes,
        });
    }

    fn next_waiting(&mut self) -> Option<Unanswered> {
        let oldest = self.waiting.pop_front()?;
        self.problems_bytes -= oldest.problem_bytes;
        Some(oldest)
    }

    async fn answer_oldest(&mut self) -> Result<(), Abandoned> {
        if let Some(mut oldest) = self.next_waiting() {
            let (line, answer) = settled(Some(&mut oldest), self.limits.accept_timeout).await;
            self.write(line, &answer).await?;
        }
        Ok(())
    }

    async fn write(
        &mut self,
        line: u64,
        answer: &Result<Outcome, Problem>,
    ) -> Result<(), Abandoned> {
        let (status, id, token) = match answer {
            Ok(Outcome::Accepted(id, token)) => (StatusCode::ACCEPTED, Some(*id), *token),
            Ok(Outcome::Repeated(id)) => (StatusCode::OK, Some(*id), None),
            Err(problem) => (problem.status(), None, None),
        };
        let location = id.map(|id| location(OPERATIONS, id, token));
        let line = BatchLine {
            status: status.as_u16(),
            id,
            location: location.as_deref(),
            problem: answer.as_ref().err().map(Problem::details),
            line,
        };
        serde_json::to_writer(&mut self.written, &line)
            .expect("numbers and strings always serialize, and a vector takes them");
        self.written.push(b'\n');
        self.measures.line(status, answer.as_ref().err());
        if self.written.len() >= ANSWER_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Abandoned> {
        if self.written.is_empty() {
            return Ok(());
        }
        let answers = Bytes::from(std::mem::take(&mut self.written));
        match tokio::time::timeout(self.limits.pause_max, self.answers.send(answers)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Abandoned),
        }
    }
}

/// The number of a line and its answer, once it is known. Never resolves if there is no line.
/// Dropping the future loses nothing.
async fn settled(
    unanswered: Option<&mut Unanswered>,
    accept_timeout: Duration,
) -> (u64, Result<Outcome, Problem>) {
    let Some(Unanswered { line, waiting, .. }) = unanswered else {
        return std::future::pending().await;
    };
    let answer = match waiting {
        Waiting::InFlight(in_flight) => {
            let answer = in_flight.outcome(accept_timeout).await;
            answer.map(Outcome::from)
        }
        Waiting::Known(known) => {
            let taken = Err(Problem::new(
                Kind::Internal,
                "This response was sent already.",
            ));
            std::mem::replace(known, taken)
        }
    };
    (*line, answer)
}
