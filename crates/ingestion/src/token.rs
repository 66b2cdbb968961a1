//! The token in a `Location`: the position of the request in the log, and the start of its hash.
//!
//! Without a row, the token distinguishes three cases: "not yet read", with the number of requests
//! ahead; "read, but another request has the id"; and "read, but expired since".

use std::fmt;
use std::str::FromStr;

use waybill_engine::{Offset, PartitionId, Position, Priority, RequestHash};
use waybill_ingestion_core::Accepted;

/// The value of `at` in a `Location`: `partition-offset-hash`, with a leading `x` for high
/// priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusToken {
    /// The position of the request.
    pub position: Position,
    /// The first bytes of its hash.
    pub hash_prefix: [u8; 4],
}

/// The prefix of the token of a high-priority request.
const HIGH_PRIORITY: &str = "x";

/// The text is not a status token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be the unchanged `at` of a Location")]
pub struct BadToken;

impl StatusToken {
    /// The token of the request with `hash` at `position`.
    pub fn new(position: Position, hash: RequestHash) -> Self {
        let [a, b, c, d, ..] = hash.0;
        Self {
            position,
            hash_prefix: [a, b, c, d],
        }
    }

    /// The token of an accepted request; `None` if its offset is unknown.
    pub fn of_accepted(accepted: &Accepted) -> Option<Self> {
        let position = Position {
            priority: accepted.priority,
            partition: accepted.partition,
            offset: accepted.offset?,
        };
        Some(Self::new(position, accepted.hash))
    }

    /// The token of a request that creates no operation, such as a cancel. It matches every
    /// operation with the id.
    pub fn of_any(position: Position) -> Self {
        Self {
            position,
            hash_prefix: Self::ANY,
        }
    }

    /// Whether it may be the token of a request with `hash`.
    pub fn is_of(&self, hash: RequestHash) -> bool {
        self.is_of_any() || hash.0.starts_with(&self.hash_prefix)
    }

    /// Whether this is the token of a request that creates no operation.
    pub fn is_of_any(&self) -> bool {
        self.hash_prefix == Self::ANY
    }

    /// One hash in 4 billion has this prefix. Its token then matches every request with the id.
    const ANY: [u8; 4] = [0; 4];
}

impl fmt::Display for StatusToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = u32::from_be_bytes(self.hash_prefix);
        if self.position.priority == Priority::High {
            f.write_str(HIGH_PRIORITY)?;
        }
        write!(
            f,
            "{}-{}-{prefix:08x}",
            self.position.partition, self.position.offset
        )
    }
}

impl FromStr for StatusToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let (priority, text) = match text.strip_prefix(HIGH_PRIORITY) {
            Some(rest) => (Priority::High, rest),
            None => (Priority::Normal, text),
        };
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let mut parts = text.split('-');
        let (Some(partition), Some(offset), Some(prefix), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadToken);
        };
        let is_hex = prefix.len() == 8 && prefix.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits(partition) || !digits(offset) || !is_hex {
            return Err(BadToken);
        }
        Ok(Self {
            position: Position {
                priority,
                partition: PartitionId(partition.parse().map_err(|_| BadToken)?),
                offset: Offset(offset.parse().map_err(|_| BadToken)?),
            },
            hash_prefix: u32::from_str_radix(prefix, 16)
                .map_err(|_| BadToken)?
                .to_be_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_as_it_was_written() {
        let position = Position {
            priority: Priority::Normal,
            partition: PartitionId(3),
            offset: Offset(1_234_567),
        };
        let hash = RequestHash([0, 0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let token = StatusToken::new(position, hash);
        assert_eq!(token.to_string(), "3-1234567-00ab0102");
        assert_eq!(token.to_string().parse(), Ok(token));
        assert!(token.is_of(hash));
        assert!(!token.is_of(RequestHash([1; 16])));

        let position = Position {
            priority: Priority::High,
            ..position
        };
        let token = StatusToken::new(position, hash);
        assert_eq!(token.to_string(), "x3-1234567-00ab0102");
        assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn the_token_of_a_cancel_matches_any_request() {
        let position = Position {
            priority: Priority::Normal,
            partition: PartitionId(3),
            offset: Offset(7),
        };
        let token = StatusToken::of_any(position);
        assert_eq!(token.to_string(), "3-7-00000000");
        assert!(token.is_of(RequestHash([1; 16])));
    }

    #[test]
    fn an_invalid_token_is_refused() {
        for bad in [
            "",
            "1-2",
            "1-2-3",
            "1-2-0000000g",
            "-1-2-00000000",
            "1--2-00000000",
            "xx1-2-00000000",
            "x-1-2-00000000",
            "+1-2-00000000",
            "1-2-00000000-",
            "4294967296-0-00000000",
            "1-9223372036854775808-00000000",
        ] {
            assert_eq!(bad.parse::<StatusToken>(), Err(BadToken), "{bad}");
        }
    }
}
