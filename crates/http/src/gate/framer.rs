//! Finds where one request ends and the next begins in the bytes of one connection.
//!
//! Pure: the caller puts bytes into [`Framer::buffer`], [`Framer::advance`] decides how many of
//! them may pass, and [`Framer::hand_over`] passes them on.

use bytes::{Buf as _, BytesMut};
use tokio::io::ReadBuf;

use super::head::{self, Framing, Refusal};

/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaiting {
    /// A request, of which no byte has arrived.
    Request,
    /// The rest of a head.
    RestOfHead,
    /// The rest of a body.
    RestOfBody,
    /// Anything: HTTP/2, which the gate does not frame.
    Anything,
}

#[derive(Debug)]
pub struct Framer {
    buffer: BytesMut,
    /// How many bytes at the front of the buffer may pass.
    passed: usize,
    state: State,
    head_bytes_max: usize,
    headers_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing was read yet: the connection may become HTTP/2.
    Start,
    Head,
    Length(u64),
    Chunked(Chunked),
    Http2,
    /// A stand-in replaces a refused request. Nothing after it passes.
    Refused,
    /// A chunk was malformed. The body passes up to that byte, and the gate then ends the input.
    Lost,
}

impl Framer {
    pub fn new(head_bytes_max: usize, headers_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            passed: 0,
            state: State::Start,
            head_bytes_max,
            headers_max,
        }
    }

    /// The buffer to read into.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Decides how many of the read bytes may pass.
    pub fn advance(&mut self) {
        while self.passed < self.buffer.len() {
            let rest = &self.buffer[self.passed..];
            match self.state {
                State::Start if rest.starts_with(HTTP2_PREFACE) => self.state = State::Http2,
                State::Start if HTTP2_PREFACE.starts_with(rest) => return,
                State::Start => self.state = State::Head,
                State::Head => match head::read(rest, self.head_bytes_max, self.headers_max) {
                    Ok(None) => return,
                    Ok(Some(head)) => {
                        self.passed += head.bytes;
                        self.state = match head.framing {
                            Framing::Length(0) => State::Head,
                            Framing::Length(length) => State::Length(length),
                            Framing::Chunked => State::Chunked(Chunked::START),
                        };
                    }
                    Err(refusal) => return self.refuse(refusal),
                },
                State::Length(left) => {
                    let here =
                        usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
                    self.passed += here;
                    self.state = match left - here as u64 {
                        0 => State::Head,
                        left => State::Length(left),
                    };
                }
                State::Chunked(mut chunked) => {
                    let (bytes, progress) = chunked.advance(rest);
                    self.passed += bytes;
                    self.state = match progress {
                        Progress::Inside => State::Chunked(chunked),
                        Progress::Done => State::Head,
                        Progress::Malformed => State::Lost,
                    };
                }
                State::Http2 => self.passed = self.buffer.len(),
                State::Refused | State::Lost => return self.buffer.truncate(self.passed),
            }
        }
    }

    /// Replaces everything that has not passed with the stand-in.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.buffer.truncate(self.passed);
        self.buffer.extend_from_slice(refusal.stand_in().as_bytes());
        self.passed = self.buffer.len();
        self.state = State::Refused;
    }

    /// Passes on as many bytes as fit. Returns whether it passed any.
    pub fn hand_over(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let bytes = self.passed.min(into.remaining());
        if bytes == 0 {
            return false;
        }
        into.put_slice(&self.buffer[..bytes]);
        self.buffer.advance(bytes);
        self.passed -= bytes;
        true
    }

    pub fn awaiting(&self) -> Awaiting {
        match self.state {
            State::Start | State::Head if self.buffer.len() == self.passed => Awaiting::Request,
            State::Start | State::Head => Awaiting::RestOfHead,
            State::Length(_) | State::Chunked(_) => Awaiting::RestOfBody,
            State::Http2 | State::Refused | State::Lost => Awaiting::Anything,
        }
    }

    /// Whether a request was refused: only the requests before it still pass.
    pub fn has_refused(&self) -> bool {
        self.state == State::Refused
    }

    /// Whether the end of a body can no longer be found.
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Whether the client may still be sending input that will not be read.
    pub fn is_owed_input(&self) -> bool {
        !matches!(self.awaiting(), Awaiting::Request) && self.state != State::Http2
    }
}

/// The progress in a chunked body (RFC 9112, section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Chunked {
    /// In a chunk's size, of which this many digits were read.
    Size { size: u64, digits: u8 },
    /// In white space after a chunk's size. Only an extension may follow (RFC 9112, section 7.1.1),
    /// because a proxy in front may read a size with trailing white space differently than the
    /// parser.
    SizeSpace { size: u64 },
    /// Between a chunk's size and its line's end.
    Extension { size: u64 },
    /// Before the line feed that ends a chunk's size line.
    SizeLineFeed { size: u64 },
    /// In a chunk's data.
    Data { left: u64 },
    /// Before the carriage return after a chunk's data.
    DataReturn,
    /// Before the line feed after a chunk's data.
    DataLineFeed,
    /// At the start of a line of the trailer.
    Trailer,
    /// In a line of the trailer.
    TrailerField,
    /// Before the line feed that ends a line of the trailer.
    TrailerLineFeed,
    /// Before the last line feed.
    EndLineFeed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Inside,
    Done,
    Malformed,
}

impl Chunked {
    const START: Self = Self::Size { size: 0, digits: 0 };
    /// The number of hexadecimal digits that fit in 64 bits.
    const SIZE_DIGITS_MAX: u8 = 16;

    /// Advances over `input` to the end of the body at most; returns how many bytes that is.
    fn advance(&mut self, input: &[u8]) -> (usize, Progress) {
        let mut at = 0;
        while at < input.len() {
            if let Self::Data { left } = self {
                let rest = (input.len() - at) as u64;
                let here = rest.min(*left);
                *left -= here;
                // `here` is no more than the length of a slice.
                at += here as usize;
                if *left == 0 {
                    *self = Self::DataReturn;
                }
                continue;
            }
            let byte = input[at];
            at += 1;
            *self = match (*self, byte) {
                (Self::EndLineFeed, b'\n') => return (at, Progress::Done),
                (Self::Size { size, digits }, _)
                    if byte.is_ascii_hexdigit() && digits < Self::SIZE_DIGITS_MAX =>
                {
                    let digit = char::from(byte).to_digit(16).unwrap_or(0);
                    Self::Size {
                        size: size << 4 | u64::from(digit),
                        digits: digits + 1,
                    }
                }
                (Self::Size { size, digits: 1.. }, b'\r') => Self::SizeLineFeed { size },
                (Self::Size { size, digits: 1.. } | Self::SizeSpace { size }, b' ' | b'\t') => {
                    Self::SizeSpace { size }
                }
                (Self::Size { size, digits: 1.. } | Self::SizeSpace { size }, b';') => {
                    Self::Extension { size }
                }
                (Self::Extension { size }, b'\r') => Self::SizeLineFeed { size },
                (Self::Extension { size }, byte) if byte != b'\n' => Self::Extension { size },
                (Self::SizeLineFeed { size: 0 }, b'\n') => Self::Trailer,
                (Self::SizeLineFeed { size }, b'\n') => Self::Data { left: size },
                (Self::DataReturn, b'\r') => Self::DataLineFeed,
                (Self::DataLineFeed, b'\n') => Self::START,
                (Self::Trailer, b'\r') => Self::EndLineFeed,
                (Self::TrailerField, b'\r') => Self::TrailerLineFeed,
                (Self::Trailer | Self::TrailerField, byte) if byte != b'\n' => Self::TrailerField,
                (Self::TrailerLineFeed, b'\n') => Self::Trailer,
                _ => return (at, Progress::Malformed),
            };
        }
        (at, Progress::Inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `input`, given in one piece, that pass.
    fn pass(input: &[u8]) -> (Vec<u8>, Framer) {
        let mut framer = Framer::new(512, 8);
        framer.buffer().extend_from_slice(input);
        framer.advance();
        let mut space = vec![0; 8192];
        let mut into = ReadBuf::new(&mut space);
        framer.hand_over(&mut into);
        (into.filled().to_vec(), framer)
    }

    const GOOD: &str = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    const SMUGGLED: &str = "POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n";

    #[test]
    fn a_refused_request_is_replaced_and_those_before_it_pass() {
        let (passed, framer) = pass(format!("{GOOD}{GOOD}{SMUGGLED}{GOOD}").as_bytes());
        let expected = format!("{GOOD}{GOOD}{}", Refusal::TwoFramings.stand_in());
        assert_eq!(String::from_utf8(passed).unwrap(), expected);
        assert!(framer.has_refused());
        assert!(framer.is_owed_input());
    }

    #[test]
    fn nothing_passes_after_a_refusal() {
        let (_, mut framer) = pass(SMUGGLED.as_bytes());
        framer.buffer().extend_from_slice(GOOD.as_bytes());
        framer.advance();
        let mut space = [0; 64];
        assert!(!framer.hand_over(&mut ReadBuf::new(&mut space)));
    }

    #[test]
    fn a_head_after_each_kind_of_body_is_recognized() {
        let chunked = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        for before in [
            GOOD.to_owned(),
            format!("{chunked}0\r\n\r\n"),
            format!("{chunked}00\r\n\r\n"),
            format!("{chunked}a\r\n0123456789\r\n0\r\n\r\n"),
            format!("{chunked}A ;x=\"y\"\r\n0\r\n\r\n0\r\n\r\n\r\n0\r\nt: u\r\nv: w\r\n\r\n"),
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        ] {
            let (passed, _) = pass(format!("{before}{SMUGGLED}").as_bytes());
            let expected = format!("{before}{}", Refusal::TwoFramings.stand_in());
            assert_eq!(String::from_utf8(passed).unwrap(), expected);
        }
    }

    #[test]
    fn nothing_passes_after_a_malformed_chunk() {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        for body in [
            "x",
            "\r\n",
            ";\r\n",
            "3\n",
            "3\rx",
            "3\r\nabcd",
            "3\r\nabc\n",
            "0\r\n\n",
            "11112222333344445\r\n",
            "1;x\n",
            "3 \r\nabc\r\n",
            "3\t\r\nabc\r\n",
            "3 3\r\nabc\r\n",
            "0 \r\n\r\n",
            "0\r\nt: u\n",
            "-1\r\n",
        ] {
            let (passed, mut framer) = pass(format!("{head}{body}{GOOD}").as_bytes());
            assert!(framer.is_lost(), "{body:?}");
            let passed = String::from_utf8(passed).unwrap();
            assert!(format!("{head}{body}").starts_with(&passed), "{passed:?}");
            assert!(framer.is_owed_input());
            framer.buffer().clear();
        }
    }

    #[test]
    fn http2_passes_only_at_the_start_of_a_connection() {
        let preface = HTTP2_PREFACE.to_vec();
        for cut in 1..preface.len() {
            let (passed, framer) = pass(&preface[..cut]);
            assert_eq!(passed, b"");
            assert_eq!(framer.awaiting(), Awaiting::RestOfHead);
        }
        let mut stream = preface.clone();
        stream.extend_from_slice(b"\0\0\0\x04\0\0\0\0\0");
        assert_eq!(pass(&stream).0, stream);

        let mut later = GOOD.as_bytes().to_vec();
        later.extend_from_slice(&preface);
        assert!(pass(&later).1.has_refused());
    }
}
