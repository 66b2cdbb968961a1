//! The ID of a topic, which distinguishes topics of the same name.

use std::fmt;

/// How many bits one character of an ID encodes.
const BITS: u32 = 6;
/// Its alphabet: URL-safe base64, as in Kafka.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The ID that a topic got when it was created. A topic that is deleted and recreated under the
/// same name gets another one.
///
/// Displayed as Kafka's own tools do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TopicId(pub u128);

impl TopicId {
    /// Its upper 64 bits.
    #[must_use]
    pub fn head(self) -> u64 {
        (self.0 >> u64::BITS) as u64
    }

    /// The characters that the upper 64 bits alone determine.
    #[must_use]
    pub fn shown_by_head(head: u64) -> String {
        let mut shown = Self(u128::from(head) << u64::BITS).to_string();
        shown.truncate((u64::BITS / BITS) as usize);
        shown
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for _ in 0..u128::BITS.div_ceil(BITS) {
            let index = (rest >> (u128::BITS - BITS)) as usize;
            write!(f, "{}", char::from(ALPHABET[index]))?;
            rest <<= BITS;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_kafka_shows_it() {
        let id = TopicId(0x9f31_5c5c_76e5_4c6a_bb5b_c5b3_6a1d_0fb2);
        assert_eq!(id.to_string(), "nzFcXHblTGq7W8Wzah0Psg");
        assert_eq!(TopicId(0).to_string(), "A".repeat(22));
        assert_eq!(
            TopicId(u128::MAX).to_string(),
            format!("{}w", "_".repeat(21))
        );
    }

    #[test]
    fn the_first_half_of_an_id_shows_its_first_characters() {
        let id = TopicId(0x9f31_5c5c_76e5_4c6a_bb5b_c5b3_6a1d_0fb2);
        assert_eq!(id.head(), 0x9f31_5c5c_76e5_4c6a);
        assert_eq!(TopicId::shown_by_head(id.head()), "nzFcXHblTG");
    }
}
