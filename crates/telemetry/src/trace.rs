//! OpenTelemetry spans: which work was done for an operation, where, and how long it took.
//!
//! Spans go to the [`Recorder`] of the process, if it installs one. Without a recorder nothing is
//! measured and no memory is used: [`begin`] is then one atomic read. The sampling decision is made
//! where a trace begins and travels with it, as the `sampled` flag of the W3C trace context
//! (<https://www.w3.org/TR/trace-context/>), so that a trace is recorded completely or not at all.

pub mod names;

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;

use uuid::Uuid;

static RECORDER: OnceLock<Box<dyn Recorder>> = OnceLock::new();

/// Receives spans.
pub trait Recorder: Send + Sync {
    /// Takes a span that has ended. Must not block.
    fn record(&self, span: Span);

    /// Whether to record a trace that begins here.
    fn samples(&self, trace: TraceId) -> bool;
}

/// A recorder is already installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a span recorder is already installed")]
pub struct AlreadyInstalled;

/// Installs the recorder of all spans of this process. Call it once per process.
///
/// # Errors
///
/// If a recorder is already installed.
pub fn install(recorder: Box<dyn Recorder>) -> Result<(), AlreadyInstalled> {
    RECORDER.set(recorder).map_err(|_| AlreadyInstalled)
}

/// Whether spans are recorded at all.
#[must_use]
pub fn is_on() -> bool {
    RECORDER.get().is_some()
}

/// The ID of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId(pub [u8; 16]);

/// The ID of a span within its trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// A new ID: a random UUID.
    #[must_use]
    pub fn random() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// The random part of the ID as a fraction of its range. Every process that samples by it makes
    /// the same decision (<https://www.w3.org/TR/trace-context-2/#random-trace-id-flag>).
    #[must_use]
    pub fn share(self) -> f64 {
        let low = u128::from_be_bytes(self.0) & ((1 << 56) - 1);
        low as f64 / (1_u64 << 56) as f64
    }
}

impl SpanId {
    /// A random ID.
    #[must_use]
    pub fn random() -> Self {
        Self::of(Uuid::new_v4())
    }

    /// The ID derived from the ID of an object that has exactly one span. Never zero, which means
    /// no span.
    #[must_use]
    pub fn of(id: Uuid) -> Self {
        let (high, low) = id.as_u64_pair();
        Self((high ^ low).max(1).to_be_bytes())
    }
}

/// A position in a trace: the W3C trace context, without vendor state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The parent of the next span.
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Parses the value of a `traceparent` header; `None` if it is malformed and must be ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        const FLAG_SAMPLED: u8 = 1;
        let mut parts = text.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = hex(version)?;
        let [flags] = hex(flags)?;
        let (trace, span) = (hex(trace)?, hex(span)?);
        // Later versions may have additional parts.
        let has_known_length = version != 0 || parts.next().is_none();
        let has_ids = trace != [0; 16] && span != [0; 8];
        (text.len() <= 64 && version != 0xff && has_known_length && has_ids).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & FLAG_SAMPLED != 0,
        })
    }

    /// A trace that begins with this span, recorded if the recorder samples it.
    #[must_use]
    pub fn beginning(trace: TraceId, span: SpanId) -> Self {
        let is_sampled = RECORDER
            .get()
            .is_some_and(|recorder| recorder.samples(trace));
        Self {
            trace,
            span,
            is_sampled,
        }
    }
}

/// Formats the value of a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = u128::from_be_bytes(self.trace.0);
        let span = u64::from_be_bytes(self.span.0);
        write!(
            f,
            "00-{trace:032x}-{span:016x}-{:02x}",
            u8::from(self.is_sampled)
        )
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The role of a span relative to its parent and its children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// It handles a remote request.
    Server,
    /// It sends a remote request, and waits for the answer.
    Client,
    /// It sends a message.
    Producer,
    /// It handles a message.
    Consumer,
    /// It is internal to a process, or spans several.
    Internal,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A string.
    Text(Cow<'static, str>),
    /// An integer.
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A span that has ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// The IDs of the span and of its trace.
    pub context: TraceContext,
    /// The parent span; `None` for the root of the trace.
    pub parent: Option<SpanId>,
    /// The component that it belongs to.
    pub scope: &'static str,
    /// Its role.
    pub kind: SpanKind,
    /// The kind of work. Low cardinality: details belong in the attributes.
    pub name: Cow<'static, str>,
    /// When it began.
    pub began: SystemTime,
    /// When it ended.
    pub ended: SystemTime,
    /// Further attributes, by names of OpenTelemetry's conventions or with the prefix `waybill.`.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub failure: Option<Cow<'static, str>>,
}

/// Begins a child span of `parent`, or the root of a new trace. Returns `None` without a recorder,
/// or if `parent` is malformed or not sampled. The root of an unsampled trace is returned, but not
/// recorded.
#[must_use]
pub fn begin(
    parent: Option<&str>,
    scope: &'static str,
    kind: SpanKind,
    name: impl FnOnce() -> Cow<'static, str>,
) -> Option<OpenSpan> {
    let recorder = &**RECORDER.get()?;
    let (context, parent) = match parent {
        Some(parent) => {
            let parent = TraceContext::parse(parent).filter(|parent| parent.is_sampled)?;
            let span = SpanId::random();
            (TraceContext { span, ..parent }, Some(parent.span))
        }
        None => (
            TraceContext::beginning(TraceId::random(), SpanId::random()),
            None,
        ),
    };
    let now = SystemTime::now();
    Some(OpenSpan {
        recorder,
        span: Some(Box::new(Span {
            context,
            parent,
            scope,
            kind,
            name: name(),
            began: now,
            ended: now,
            attributes: Vec::new(),
            failure: None,
        })),
        set_end: None,
    })
}

/// A span that has begun. Dropping it ends it, and records it if its trace is sampled.
pub struct OpenSpan {
    recorder: &'static dyn Recorder,
    /// Present until the drop takes it.
    span: Option<Box<Span>>,
    set_end: Option<SystemTime>,
}

impl OpenSpan {
    /// The context for its child spans.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.span().context
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.span_mut().attributes.push((name, value.into()));
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        self.span_mut().failure = Some(why.into());
    }

    /// Sets the ID, for an object that has exactly one span. If the parent has the same ID, the
    /// span becomes the root of its trace.
    pub fn set_id(&mut self, id: SpanId) {
        let span = self.span_mut();
        span.context.span = id;
        span.parent = span.parent.filter(|parent| *parent != id);
    }

    /// Sets the parent span.
    pub fn set_parent(&mut self, parent: SpanId) {
        self.span_mut().parent = Some(parent);
    }

    /// Overrides the start time, by default the time of creation.
    pub fn set_start(&mut self, at: SystemTime) {
        self.span_mut().began = at;
    }

    /// Overrides the end time, by default the time of the drop.
    pub fn set_end(&mut self, at: SystemTime) {
        self.set_end = Some(at);
    }

    fn span(&self) -> &Span {
        self.span.as_ref().expect("only drop takes the span")
    }

    fn span_mut(&mut self) -> &mut Span {
        self.span.as_mut().expect("only drop takes the span")
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take()
            && span.context.is_sampled
        {
            span.ended = self.set_end.unwrap_or_else(SystemTime::now).max(span.began);
            self.recorder.record(*span);
        }
    }
}

impl fmt::Debug for OpenSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenSpan").field(&self.span).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};
    use std::time::Duration;

    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn a_trace_context_round_trips() {
        for text in [SAMPLED, UNSAMPLED] {
            assert_eq!(TraceContext::parse(text).unwrap().to_string(), text);
        }
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-ff";
        let context = TraceContext::parse(later).unwrap();
        assert_eq!(context.to_string(), SAMPLED);
    }

    #[test]
    fn a_malformed_trace_context_is_refused() {
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-02",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        let long = format!(
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-{}",
            "f".repeat(20)
        );
        assert_eq!(TraceContext::parse(&long), None);
    }

    #[test]
    fn random_trace_ids_cover_all_sampling_ratios() {
        let mut shares: Vec<f64> = (0..1_000).map(|_| TraceId::random().share()).collect();
        shares.sort_by(f64::total_cmp);
        assert!((0.0..0.05).contains(&shares[0]), "{}", shares[0]);
        assert!((0.4..0.6).contains(&shares[500]), "{}", shares[500]);
        assert!((0.95..1.0).contains(&shares[999]), "{}", shares[999]);
    }

    /// Records every span; samples traces whose first byte is even.
    struct Memory;

    static RECORDED: Mutex<Vec<Span>> = Mutex::new(Vec::new());

    impl Recorder for Memory {
        fn record(&self, span: Span) {
            RECORDED.lock().unwrap().push(span);
        }

        fn samples(&self, trace: TraceId) -> bool {
            trace.0[0].is_multiple_of(2)
        }
    }

    /// The recorder is global to the process, so these tests run one at a time.
    fn recording() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap();
        _ = install(Box::new(Memory));
        RECORDED.lock().unwrap().clear();
        guard
    }

    fn recorded() -> Vec<Span> {
        std::mem::take(&mut RECORDED.lock().unwrap())
    }

    #[test]
    fn a_span_is_recorded_at_its_end_with_its_attributes() {
        let _guard = recording();
        let mut span = begin(Some(SAMPLED), "test", SpanKind::Client, || "GET".into()).unwrap();
        span.set("http.response.status_code", 503);
        span.fail("503");
        let context = span.context();
        assert_eq!(recorded(), []);
        drop(span);
        let [span] = &recorded()[..] else {
            panic!("one span")
        };
        let parent = TraceContext::parse(SAMPLED).unwrap();
        assert_eq!((span.context, span.parent), (context, Some(parent.span)));
        assert_eq!(span.context.trace, parent.trace);
        assert_ne!(span.context.span, parent.span);
        assert_eq!(
            span.attributes,
            [("http.response.status_code", Value::Number(503))]
        );
        assert_eq!(span.failure.as_deref(), Some("503"));
        assert!(span.ended >= span.began);
    }

    #[test]
    fn every_span_of_a_trace_is_recorded_or_none() {
        let _guard = recording();
        let internal =
            |parent: Option<&str>| begin(parent, "test", SpanKind::Internal, || "a".into());
        assert!(internal(Some(UNSAMPLED)).is_none());
        assert!(internal(Some("nonsense")).is_none());
        let mut seen = [false; 2];
        while seen != [true; 2] {
            let first = internal(None).unwrap();
            let context = first.context();
            let second = internal(Some(&context.to_string()));
            assert_eq!(second.is_some(), context.is_sampled);
            drop((first, second));
            assert_eq!(recorded().len(), if context.is_sampled { 2 } else { 0 });
            seen[usize::from(context.is_sampled)] = true;
        }
    }

    #[test]
    fn a_span_with_a_given_id_may_be_the_root() {
        let _guard = recording();
        let id = SpanId::of(Uuid::from_u128(7));
        let beginning = TraceContext::beginning(TraceId([2; 16]), id).to_string();
        for parent in [SAMPLED, &beginning] {
            let mut span = begin(Some(parent), "test", SpanKind::Consumer, || "a".into()).unwrap();
            span.set_id(id);
        }
        let [within, first] = &recorded()[..] else {
            panic!("two spans")
        };
        assert_eq!((within.context.span, within.parent.is_some()), (id, true));
        assert_eq!((first.context.span, first.parent), (id, None));
    }

    #[test]
    fn a_span_never_ends_before_it_began() {
        let _guard = recording();
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(10);
        for ends in [11, 9] {
            let mut span = begin(Some(SAMPLED), "test", SpanKind::Internal, || "a".into()).unwrap();
            span.set_start(began);
            span.set_end(SystemTime::UNIX_EPOCH + Duration::from_secs(ends));
        }
        let lasted: Vec<_> = recorded()
            .iter()
            .map(|span| span.ended.duration_since(span.began).unwrap())
            .collect();
        assert_eq!(lasted, [Duration::from_secs(1), Duration::ZERO]);
    }
}
