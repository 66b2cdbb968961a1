//! Splits a stream of parts into lines.

use bytes::{Buf as _, Bytes, BytesMut};

/// A line of a batch, without its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// A whole line.
    Whole(Bytes),
    /// A line that is longer than the limit; its bytes were discarded.
    TooLong,
}

/// Splits parts into lines. Lines end in LF or CR LF; the last one needs no end. Blank lines are
/// skipped, as most readers of NDJSON do.
#[derive(Debug)]
pub struct Lines {
    bytes_max: usize,
    part: Bytes,
    /// The beginning of a line whose end has not arrived.
    begun: BytesMut,
    /// The current line is longer than the limit.
    too_long: bool,
    ended: bool,
    /// How many lines were read whole, blank ones included.
    count: u64,
}

impl Lines {
    /// Lines of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            part: Bytes::new(),
            begun: BytesMut::new(),
            too_long: false,
            ended: false,
            count: 0,
        }
    }

    /// Adds the next part. All lines of the previous part must have been taken.
    pub fn push(&mut self, part: Bytes) {
        debug_assert!(self.part.is_empty(), "lines of the part before are left");
        self.part = part;
    }

    /// Ends the stream: the remaining bytes are the last line.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// How many lines were read, blank ones included: the number of the line that [`Self::next`]
    /// last returned.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next whole line that is not blank.
    pub fn next(&mut self) -> Option<Line> {
        loop {
            match self.next_of_any_kind()? {
                Line::Whole(text) if text.trim_ascii().is_empty() => {}
                line => return Some(line),
            }
        }
    }

    fn next_of_any_kind(&mut self) -> Option<Line> {
        match self.part.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line = self.part.split_to(end);
                self.part.advance(1);
                Some(self.finish(line))
            }
            None => {
                let rest = std::mem::take(&mut self.part);
                // A CR may still belong to the line's end.
                if self.begun.len() + rest.len() > self.bytes_max + 1 {
                    self.too_long = true;
                    self.begun.clear();
                } else if !self.too_long {
                    self.begun.extend_from_slice(&rest);
                }
                let is_last = self.ended && (self.too_long || !self.begun.is_empty());
                is_last.then(|| self.finish(Bytes::new()))
            }
        }
    }

    fn finish(&mut self, end: Bytes) -> Line {
        self.count += 1;
        let too_long = std::mem::take(&mut self.too_long);
        let mut line = match self.begun.is_empty() {
            true => end,
            false => {
                let mut line = std::mem::take(&mut self.begun);
                line.extend_from_slice(&end);
                line.freeze()
            }
        };
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if too_long || line.len() > self.bytes_max {
            Line::TooLong
        } else {
            Line::Whole(line)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, cut: usize) -> Vec<Option<String>> {
        let mut lines = Lines::new(5);
        let mut got = Vec::new();
        let mut take = |lines: &mut Lines| {
            while let Some(line) = lines.next() {
                got.push(match line {
                    Line::Whole(line) => Some(String::from_utf8(line.to_vec()).unwrap()),
                    Line::TooLong => None,
                });
            }
        };
        for part in text.as_bytes().chunks(cut) {
            lines.push(Bytes::copy_from_slice(part));
            take(&mut lines);
        }
        lines.end();
        take(&mut lines);
        got
    }

    #[test]
    fn lines_are_found_in_pieces_of_any_size() {
        let cases: [(&str, &[Option<&str>]); 12] = [
            ("", &[]),
            ("a", &[Some("a")]),
            ("a\n", &[Some("a")]),
            ("a\r\nb\r\n", &[Some("a"), Some("b")]),
            ("a\n\nb", &[Some("a"), Some("b")]),
            ("\n\r\n \t\r\na\n\n\n", &[Some("a")]),
            ("a\n  ", &[Some("a")]),
            ("\n      \nb", &[None, Some("b")]),
            ("12345\r\n12345", &[Some("12345"), Some("12345")]),
            ("123456\nb\n", &[None, Some("b")]),
            (
                "a\n123456789012345\r\nb\n1234567",
                &[Some("a"), None, Some("b"), None],
            ),
            ("\r\n", &[]),
        ];
        for (text, expected) in cases {
            for cut in 1..=text.len().max(1) {
                let got = split(text, cut);
                let got: Vec<_> = got.iter().map(Option::as_deref).collect();
                assert_eq!(got, expected, "{text:?} cut every {cut}");
            }
        }
    }

    #[test]
    fn blank_lines_are_counted() {
        let mut lines = Lines::new(5);
        lines.push(Bytes::from_static(b"\n\na\n \n123456\n\nb"));
        let mut numbers = Vec::new();
        while lines.next().is_some() {
            numbers.push(lines.count());
        }
        lines.end();
        assert!(lines.next().is_some());
        numbers.push(lines.count());
        assert_eq!(numbers, [3, 5, 7]);
    }

    #[test]
    fn a_line_that_is_too_long_takes_no_memory() {
        let mut lines = Lines::new(5);
        for _ in 0..1_000 {
            lines.push(Bytes::from_static(&[b'x'; 1_000]));
            assert_eq!(lines.next(), None);
            assert!(lines.begun.capacity() <= 16);
        }
        lines.push(Bytes::from_static(b"\nok\n"));
        assert_eq!(lines.next(), Some(Line::TooLong));
        assert_eq!(lines.next(), Some(Line::Whole(Bytes::from_static(b"ok"))));
    }
}
