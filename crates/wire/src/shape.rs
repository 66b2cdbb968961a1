//! Checks the shape of a request before it is decoded.
//!
//! The decoder trusts the claimed number of elements of an array and reserves memory for all of
//! them immediately, so any client could end the process with four bytes. This check of the bytes
//! allocates no memory, and the requests that it accepts have as many elements as they claim. A
//! test compares its tables with the decoder: both must accept the same bytes.

/// The most array elements in one request: thirty topics of two thousand partitions.
const ELEMENTS_MAX: usize = 65_536;

/// The encoding of a field.
#[derive(Debug)]
pub(super) enum Shape {
    /// This many bytes.
    Fixed(usize),
    /// A string with a 16-bit length; nullable or not.
    Text,
    /// Bytes with a 32-bit length; nullable or not.
    Blob,
    /// An array of structures.
    Structs(&'static [Field]),
    /// An array of anything else.
    List(&'static Shape),
}

/// A field, and the versions of its message that have it.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) from: i16,
    pub(super) to: i16,
    pub(super) shape: Shape,
}

/// Why bytes are not a request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ShapeError {
    #[error("it ends too early")]
    Short,
    #[error("a length is negative")]
    Negative,
    #[error("it has too many elements")]
    Elements,
}

/// Checks that `bytes` begin with a structure of these `fields`. Bytes may follow it, as Kafka
/// allows: librdkafka leaves three of them behind a request for the metadata of all topics.
pub(super) fn check(
    fields: &[Field],
    bytes: &[u8],
    version: i16,
    flexible: bool,
) -> Result<(), ShapeError> {
    let mut walk = Walk {
        left: bytes,
        version,
        flexible,
        elements: 0,
    };
    walk.structure(fields)
}

struct Walk<'a> {
    left: &'a [u8],
    version: i16,
    /// Lengths are variable-length numbers, and structures end with tagged fields.
    flexible: bool,
    elements: usize,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &[Field]) -> Result<(), ShapeError> {
        for field in fields {
            if (field.from..=field.to).contains(&self.version) {
                self.value(&field.shape)?;
            }
        }
        if self.flexible {
            for _ in 0..self.number()? {
                self.number()?;
                let length = self.number()?;
                self.skip(length)?;
            }
        }
        Ok(())
    }

    fn value(&mut self, shape: &Shape) -> Result<(), ShapeError> {
        match shape {
            Shape::Fixed(length) => self.skip(*length),
            Shape::Text => {
                let length = if self.flexible {
                    self.number()?.saturating_sub(1)
                } else {
                    let (length, rest) = self.left.split_first_chunk().ok_or(ShapeError::Short)?;
                    self.left = rest;
                    counted(i32::from(i16::from_be_bytes(*length)))?
                };
                self.skip(length)
            }
            Shape::Blob => {
                let length = self.count()?;
                self.skip(length)
            }
            Shape::Structs(fields) => {
                for _ in 0..self.array()? {
                    self.structure(fields)?;
                }
                Ok(())
            }
            Shape::List(element) => {
                for _ in 0..self.array()? {
                    self.value(element)?;
                }
                Ok(())
            }
        }
    }

    fn array(&mut self) -> Result<usize, ShapeError> {
        let count = self.count()?;
        self.elements = self.elements.saturating_add(count);
        if self.elements > ELEMENTS_MAX {
            Err(ShapeError::Elements)
        } else {
            Ok(count)
        }
    }

    /// The length of an array or of bytes; null counts as empty.
    fn count(&mut self) -> Result<usize, ShapeError> {
        if self.flexible {
            return Ok(self.number()?.saturating_sub(1));
        }
        let (count, rest) = self.left.split_first_chunk().ok_or(ShapeError::Short)?;
        self.left = rest;
        counted(i32::from_be_bytes(*count))
    }

    /// An unsigned variable-length number of at most five bytes.
    fn number(&mut self) -> Result<usize, ShapeError> {
        let mut value = 0_u32;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.left.split_first().ok_or(ShapeError::Short)?;
            self.left = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        usize::try_from(value).map_err(|_| ShapeError::Short)
    }

    fn skip(&mut self, length: usize) -> Result<(), ShapeError> {
        self.left = self.left.get(length..).ok_or(ShapeError::Short)?;
        Ok(())
    }
}

/// A length; -1 means null.
fn counted(length: i32) -> Result<usize, ShapeError> {
    if length == -1 {
        Ok(0)
    } else {
        usize::try_from(length).map_err(|_| ShapeError::Negative)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small deterministic source of numbers (xorshift).
    pub(in super::super) struct Numbers(pub(in super::super) u64);

    impl Numbers {
        pub(in super::super) fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    /// Bytes of the shape of `fields`.
    pub(in super::super) fn sample(
        fields: &[Field],
        version: i16,
        flexible: bool,
        numbers: &mut Numbers,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_structure(&mut bytes, fields, version, flexible, numbers);
        bytes
    }

    fn put_structure(
        out: &mut Vec<u8>,
        fields: &[Field],
        version: i16,
        flexible: bool,
        numbers: &mut Numbers,
    ) {
        for field in fields {
            if (field.from..=field.to).contains(&version) {
                put_value(out, &field.shape, version, flexible, numbers);
            }
        }
        if flexible {
            // One unknown tagged field.
            out.extend([1, 100, 2, 7, 7]);
        }
    }

    fn put_value(
        out: &mut Vec<u8>,
        shape: &Shape,
        version: i16,
        flexible: bool,
        numbers: &mut Numbers,
    ) {
        let length = 1 + numbers.below(3) as usize;
        let prefix = |out: &mut Vec<u8>, wide: bool| match (flexible, wide) {
            (true, _) => out.push(length as u8 + 1),
            (false, true) => out.extend((length as i32).to_be_bytes()),
            (false, false) => out.extend((length as i16).to_be_bytes()),
        };
        match shape {
            // Small, so that it is a valid flag as well as a number.
            Shape::Fixed(length) => out.extend((0..*length).map(|_| numbers.below(2) as u8)),
            Shape::Text => {
                prefix(out, false);
                out.extend((0..length).map(|_| b'a'));
            }
            Shape::Blob => {
                prefix(out, true);
                out.extend((0..length).map(|_| b'b'));
            }
            Shape::Structs(fields) => {
                prefix(out, true);
                for _ in 0..length {
                    put_structure(out, fields, version, flexible, numbers);
                }
            }
            Shape::List(element) => {
                prefix(out, true);
                for _ in 0..length {
                    put_value(out, element, version, flexible, numbers);
                }
            }
        }
    }

    const LIST: &[Field] = &[Field {
        from: 0,
        to: 9,
        shape: Shape::List(&Shape::Fixed(4)),
    }];

    #[test]
    fn an_array_with_a_false_length_is_refused() {
        assert_eq!(
            check(LIST, &i32::MAX.to_be_bytes(), 0, false),
            Err(ShapeError::Elements)
        );
        assert_eq!(
            check(LIST, &100_i32.to_be_bytes(), 0, false),
            Err(ShapeError::Short)
        );
        assert_eq!(
            check(LIST, &(-2_i32).to_be_bytes(), 0, false),
            Err(ShapeError::Negative)
        );
        assert_eq!(check(LIST, &(-1_i32).to_be_bytes(), 0, false), Ok(()));
        assert_eq!(check(LIST, &[0xff; 5], 0, true), Err(ShapeError::Elements));
        assert_eq!(check(LIST, &[0, 0, 0], 0, true), Ok(()));
    }
}
