//! What the partition engine promises, sentence by sentence.

mod creating;
mod direct;
mod fixture;
mod keeping;
mod limits;
mod owners;
mod passing;
mod settling;
mod table;
mod undoing;
mod waiting;
