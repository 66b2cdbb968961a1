//! The ids of requests, by which a caller finds its request in the log.
//!
//! A caller may choose the id in `X-Request-Id`; otherwise the server generates one. The answer has
//! the id in the same header, a problem in `requestId`, and each log line of the request ends with
//! it.
//!
//! What must hold: an id that a caller chose cannot break a log line or a header, and costs no more
//! than its length.
//!
//! Deliberately absent: a span of `tracing`, which would cost every request more than the id does.

use std::fmt;
use std::str;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use uuid::Uuid;

/// The header with the id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most characters of an id.
pub const LENGTH_MAX: usize = 128;

/// The characters of an id besides letters and digits.
const MARKS: &[u8] = b"-_.:/+=@";

/// The length of a generated id: 64 random bits, then a mixed number, in hexadecimal.
const LENGTH_OF_FRESH: usize = 32;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    length: u8,
    bytes: [u8; LENGTH_MAX],
}

impl RequestId {
    /// The caller's id, if the request has exactly one and it is well-formed; otherwise a new one.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(X_REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(only), None) => Self::parse(only.as_bytes()).unwrap_or_else(Self::fresh),
            _ => Self::fresh(),
        }
    }

    /// A new id, unique among those that this process and others generate.
    #[must_use]
    pub fn fresh() -> Self {
        static PROCESS: LazyLock<(u64, u64)> = LazyLock::new(|| {
            let (process, key) = (Uuid::new_v4(), Uuid::new_v4());
            (process.as_u64_pair().0, key.as_u64_pair().0)
        });
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (process, key) = *PROCESS;
        let number = mixed(NEXT.fetch_add(1, Ordering::Relaxed) ^ key);
        let mut bytes = [0; LENGTH_MAX];
        let (of_process, of_request) = bytes[..LENGTH_OF_FRESH].split_at_mut(LENGTH_OF_FRESH / 2);
        write_hex(process, of_process);
        write_hex(number, of_request);
        Self {
            length: LENGTH_OF_FRESH as u8,
            bytes,
        }
    }

    /// The id of the request that the current task answers; `None` if it answers none.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|id| *id).ok()
    }

    /// Runs a future as a part of answering the request.
    pub fn scope<F: Future>(self, part: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, part)
    }

    /// Runs a task of the current request, if there is one.
    pub async fn scope_current<F: Future>(current: Option<Self>, task: F) -> F::Output {
        match current {
            Some(id) => id.scope(task).await,
            None => task.await,
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = str::from_utf8(&self.bytes[..usize::from(self.length)]);
        text.expect("only ASCII characters are accepted")
    }

    /// The id as the value of a header.
    pub(crate) fn to_header(self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).expect("only visible characters are accepted")
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || MARKS.contains(byte);
        if text.is_empty() || text.len() > LENGTH_MAX || !text.iter().all(is_good) {
            return None;
        }
        let mut bytes = [0; LENGTH_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self {
            length: u8::try_from(text.len()).ok()?,
            bytes,
        })
    }
}

/// Spreads numbers without giving two of them the same result (SplitMix64), so that an id does not
/// reveal how many requests came before it.
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn write_hex(number: u64, digits: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestId").field(&self.as_str()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> RequestId {
        let header = |value: &&str| (X_REQUEST_ID, value.parse().unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in values.iter().map(header) {
            headers.append(name, value);
        }
        RequestId::of(&headers)
    }

    #[test]
    fn a_well_formed_id_of_the_caller_is_kept() {
        let longest = "a".repeat(LENGTH_MAX);
        for id in [
            "0192f0c1-2345-7abc-8def-0123456789ab",
            "Root=1-67891233/abc+def@host:7_8.9",
            &longest,
            "x",
        ] {
            assert_eq!(of(&[id]).as_str(), id);
        }
    }

    #[test]
    fn an_absent_repeated_or_malformed_id_is_replaced() {
        let overlong = "a".repeat(LENGTH_MAX + 1);
        for given in [
            &[][..],
            &["a", "b"],
            &["a", "a"],
            &[""],
            &[" "],
            &["a b"],
            &["a\"b"],
            &["a,b"],
            &["a\tb"],
            &["<script>"],
            &["é"],
            &[&overlong],
        ] {
            let id = of(given);
            assert!(!given.contains(&id.as_str()), "{given:?}");
            assert_eq!(id.as_str().len(), LENGTH_OF_FRESH, "{given:?}");
        }
    }

    #[test]
    fn ids_of_one_process_differ_and_begin_alike() {
        let ids = [(); 3].map(|()| RequestId::fresh().to_string());
        assert_ne!(ids[0], ids[1]);
        assert_ne!(ids[1], ids[2]);
        assert_eq!(ids[0][..16], ids[2][..16]);
    }

    #[tokio::test]
    async fn a_request_has_its_id_while_it_is_answered_and_its_tasks_may_have_it() {
        assert_eq!(RequestId::current(), None);
        let id = RequestId::fresh();
        let answered = id.scope(async {
            tokio::task::yield_now().await;
            let current = RequestId::current();
            let task = tokio::spawn(RequestId::scope_current(current, async {
                RequestId::current()
            }));
            (current, task.await.unwrap())
        });
        assert_eq!(answered.await, (Some(id), Some(id)));
        assert_eq!(RequestId::current(), None);
    }
}
