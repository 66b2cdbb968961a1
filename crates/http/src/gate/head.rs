//! Checks a request head, and describes why it is refused.

use std::fmt;

/// Why a head was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It does not follow the strict grammar of HTTP/1.
    Malformed,
    /// One of its lines does not end in CR LF.
    BareLineFeed,
    /// It gives both `Content-Length` and `Transfer-Encoding`.
    TwoFramings,
    /// It has several values of `Content-Length`, or one that is not a number.
    BadContentLength,
    /// Its `Transfer-Encoding` is not exactly `chunked`, or it is not HTTP/1.1.
    BadTransferEncoding,
    /// It has no `Host`, or several.
    BadHost,
    /// It is too long, or has too many fields.
    TooLarge,
    /// It took too long to arrive.
    HeadTimeout,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::BareLineFeed,
        Self::TwoFramings,
        Self::BadContentLength,
        Self::BadTransferEncoding,
        Self::BadHost,
        Self::TooLarge,
        Self::HeadTimeout,
    ];

    /// The method of stand-ins. A client that sends it itself gets the answer of a refused request,
    /// which is true.
    pub const METHOD: &'static str = "REFUSED";

    /// The request that the parser reads instead of the refused one.
    pub fn stand_in(self) -> String {
        format!(
            "{} /{} HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n",
            Self::METHOD,
            self.name()
        )
    }

    /// The refusal that a stand-in's path names.
    pub fn of_path(path: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|refusal| path.strip_prefix('/') == Some(refusal.name()))
            .unwrap_or(Self::Malformed)
    }

    /// The detail of the problem.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Malformed => "The request does not conform to HTTP/1.1 (RFC 9112).",
            Self::BareLineFeed => "A line of the request head does not end in CR LF.",
            Self::TwoFramings => {
                "The request has both Content-Length and Transfer-Encoding: give one of them."
            }
            Self::BadContentLength => {
                "Content-Length must be given at most once, and be a decimal number."
            }
            Self::BadTransferEncoding => {
                "Transfer-Encoding must be chunked, given once, and only in HTTP/1.1."
            }
            Self::BadHost => "An HTTP/1.1 request must have exactly one Host.",
            Self::TooLarge => "The request head is too large, or has too many header fields.",
            Self::HeadTimeout => "The request head did not arrive in time.",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::BareLineFeed => "bare-line-feed",
            Self::TwoFramings => "two-framings",
            Self::BadContentLength => "bad-content-length",
            Self::BadTransferEncoding => "bad-transfer-encoding",
            Self::BadHost => "bad-host",
            Self::TooLarge => "too-large",
            Self::HeadTimeout => "head-timeout",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail())
    }
}

/// How the body after a head is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// A body of this many bytes.
    Length(u64),
    /// A chunked body.
    Chunked,
}

/// A head that may pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its length in bytes.
    pub bytes: usize,
    /// The framing of the body that follows.
    pub framing: Framing,
}

/// The largest number of fields that are parsed, whatever the limit.
pub const HEADERS_LIMIT_MAX: usize = 100;

/// Reads the head at the front of `input`; `None` if it is incomplete.
pub fn read(input: &[u8], bytes_max: usize, headers_max: usize) -> Result<Option<Head>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_LIMIT_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let bytes = match request.parse(input) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if input.len() <= bytes_max => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::TooLarge);
        }
        Err(_) => return Err(Refusal::Malformed),
    };
    if bytes > bytes_max || request.headers.len() > headers_max {
        return Err(Refusal::TooLarge);
    }
    if has_bare_line_feed(&input[..bytes]) {
        return Err(Refusal::BareLineFeed);
    }
    let is_1_1 = request.version == Some(1);
    Ok(Some(Head {
        bytes,
        framing: framing(request.headers, is_1_1)?,
    }))
}

fn framing(fields: &[httparse::Header<'_>], is_1_1: bool) -> Result<Framing, Refusal> {
    let mut length = None;
    let mut is_chunked = false;
    let mut hosts = 0;
    for field in fields {
        // The length rules out almost all fields before names are compared.
        match field.name.len() {
            4 if field.name.eq_ignore_ascii_case("host") => hosts += 1,
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                let value = content_length(field.value).ok_or(Refusal::BadContentLength)?;
                if length.replace(value).is_some() {
                    return Err(Refusal::BadContentLength);
                }
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                if is_chunked || !is_1_1 || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Refusal::BadTransferEncoding);
                }
                is_chunked = true;
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && is_1_1) {
        return Err(Refusal::BadHost);
    }
    match (length, is_chunked) {
        (Some(_), true) => Err(Refusal::TwoFramings),
        (None, true) => Ok(Framing::Chunked),
        (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn has_bare_line_feed(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter()
        .any(|&byte| std::mem::replace(&mut before, byte) != b'\r' && byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str) -> Result<Option<Framing>, Refusal> {
        read(head.as_bytes(), 512, 8).map(|head| head.map(|head| head.framing))
    }

    #[test]
    fn the_framing_of_a_valid_head_is_found() {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(
            read(format!("{head}body").as_bytes(), 512, 8),
            Ok(Some(Head {
                bytes: head.len(),
                framing: Framing::Length(12)
            }))
        );
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
        assert_eq!(check(chunked), Ok(Some(Framing::Chunked)));
        assert_eq!(
            check("GET / HTTP/1.0\r\n\r\n"),
            Ok(Some(Framing::Length(0)))
        );
        assert_eq!(check("GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
    }

    #[test]
    fn every_ambiguously_framed_request_is_refused() {
        let cases = [
            (
                "Content-Length: 4\r\nTransfer-Encoding: chunked",
                Refusal::TwoFramings,
            ),
            (
                "Transfer-Encoding: chunked\r\nContent-Length: 4",
                Refusal::TwoFramings,
            ),
            (
                "Content-Length: 4\r\nContent-Length: 5",
                Refusal::BadContentLength,
            ),
            (
                "Content-Length: 4\r\nContent-Length: 4",
                Refusal::BadContentLength,
            ),
            ("Content-Length: 4, 4", Refusal::BadContentLength),
            ("Content-Length: +4", Refusal::BadContentLength),
            ("Content-Length: -4", Refusal::BadContentLength),
            ("Content-Length: 0x4", Refusal::BadContentLength),
            ("Content-Length:", Refusal::BadContentLength),
            (
                "Content-Length: 18446744073709551616",
                Refusal::BadContentLength,
            ),
            ("Transfer-Encoding: xchunked", Refusal::BadTransferEncoding),
            (
                "Transfer-Encoding: gzip, chunked",
                Refusal::BadTransferEncoding,
            ),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                Refusal::BadTransferEncoding,
            ),
            ("Transfer-Encoding: identity", Refusal::BadTransferEncoding),
            ("Transfer-Encoding : chunked", Refusal::Malformed),
            ("Transfer-Encoding:\r\n chunked", Refusal::Malformed),
            ("X: a\r\n b", Refusal::Malformed),
            (" X: a", Refusal::Malformed),
            ("X: a\0b", Refusal::Malformed),
            ("X: a\rb", Refusal::Malformed),
            ("X\0: a", Refusal::Malformed),
            ("no colon", Refusal::Malformed),
            ("X: a\nY: b", Refusal::BareLineFeed),
            ("Host: b", Refusal::BadHost),
        ];
        for (fields, refusal) in cases {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
            assert_eq!(check(&head), Err(refusal), "{fields:?}");
        }
        assert_eq!(check("GET / HTTP/1.1\r\n\r\n"), Err(Refusal::BadHost));
        assert_eq!(
            check("GET / HTTP/1.1\nHost: a\n\n"),
            Err(Refusal::BareLineFeed)
        );
        assert_eq!(
            check("GET / HTTP/1.1\r\nHost: a\r\n\n"),
            Err(Refusal::BareLineFeed)
        );
        assert_eq!(
            check("GET / HTTP/9.9\r\nHost: a\r\n\r\n"),
            Err(Refusal::Malformed)
        );
        assert_eq!(
            check("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
            Err(Refusal::Malformed)
        );
        assert_eq!(
            check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Err(Refusal::BadTransferEncoding)
        );
        assert_eq!(check("\x16\x03\x01\x02\x00"), Err(Refusal::Malformed));
    }

    #[test]
    fn a_head_has_a_limit_in_bytes_and_in_fields() {
        let fields =
            |n: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(n));
        assert!(check(&fields(7)).is_ok());
        assert_eq!(check(&fields(8)), Err(Refusal::TooLarge));
        assert_eq!(
            read(fields(150).as_bytes(), 4096, 8),
            Err(Refusal::TooLarge)
        );
        let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(600));
        assert_eq!(check(&long), Err(Refusal::TooLarge));
        assert_eq!(check(&format!("{long}\r\n\r\n")), Err(Refusal::TooLarge));
    }

    #[test]
    fn a_replacement_request_passes_and_carries_its_refusal() {
        for refusal in Refusal::ALL {
            let stand_in = refusal.stand_in();
            assert_eq!(check(&stand_in), Ok(Some(Framing::Length(0))));
            let path = stand_in.split(' ').nth(1).unwrap();
            assert_eq!(Refusal::of_path(path), refusal);
        }
    }
}
