//! Sizes that more than one role must agree on.

/// The largest record that Waybill lets a topic take, in bytes: the largest value of
/// `waybill-messages`, with room for keys, headers and the batch around it. Everything that can be
/// encoded fits, so that no broker refuses by size what was accepted before.
pub const RECORD_BYTES_MAX: u32 = (1024 + 64) * 1024;

/// The same for dead-letter topics, which add headers to a record of their source.
pub const DEAD_LETTER_BYTES_MAX: u32 = RECORD_BYTES_MAX + 64 * 1024;
