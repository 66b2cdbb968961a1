//! What the partition engine promises, sentence by sentence.

mod creating;
mod fixture;
mod keeping;
mod limits;
mod table;
mod undoing;
