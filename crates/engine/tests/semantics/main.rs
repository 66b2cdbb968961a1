//! The guarantees of the partition engine, one test per sentence.

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
