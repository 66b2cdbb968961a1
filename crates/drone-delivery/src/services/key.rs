//! The idempotency key of a request, which names the operation and the step.

use std::fmt;

/// The maximum length of a key, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// A key, `operation/step`: printable ASCII that needs no escape in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IdempotencyKey<'a> {
    text: &'a str,
    slash: usize,
}

/// The text is not `operation/step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "must be `operation/step` in at most {KEY_BYTES_MAX} printable ASCII characters without quotes and backslashes"
)]
pub(super) struct KeyError;

impl<'a> IdempotencyKey<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, KeyError> {
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let slash = text.rfind('/').ok_or(KeyError)?;
        let has_parts = slash > 0 && slash + 1 < text.len();
        if has_parts && text.len() <= KEY_BYTES_MAX && text.bytes().all(printable) {
            Ok(Self { text, slash })
        } else {
            Err(KeyError)
        }
    }

    pub(super) const fn as_str(self) -> &'a str {
        self.text
    }

    pub(super) fn operation(self) -> &'a str {
        &self.text[..self.slash]
    }

    pub(super) fn step(self) -> &'a str {
        &self.text[self.slash + 1..]
    }

    /// A number that depends on the key alone, on every machine and in every version: FNV-1a with a
    /// final mix, so that all its bits are usable.
    pub(super) fn number(self) -> u64 {
        stable_number(self.text)
    }
}

impl fmt::Display for IdempotencyKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// See [`IdempotencyKey::number`].
pub(super) fn stable_number(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

/// The finalizer of splitmix64.
pub(super) const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_operation_and_a_step() {
        let key = IdempotencyKey::parse("tenant/operation/package").expect("a good key");
        assert_eq!(key.operation(), "tenant/operation");
        assert_eq!(key.step(), "package");
    }

    #[test]
    fn keys_without_both_parts_or_with_characters_to_escape_are_refused() {
        let long = format!("{}/step", "x".repeat(KEY_BYTES_MAX));
        for text in [
            "",
            "/",
            "operation",
            "operation/",
            "/step",
            "a\"b/c",
            "a\\b/c",
            "a b/c",
            "ä/b",
            &long,
        ] {
            assert_eq!(IdempotencyKey::parse(text), Err(KeyError), "{text:?}");
        }
    }

    #[test]
    fn the_number_of_a_key_never_changes() {
        let key = IdempotencyKey::parse("operation/step").expect("a good key");
        assert_eq!(key.number(), 0x6c5e_a0d7_9331_28bb);
    }
}
