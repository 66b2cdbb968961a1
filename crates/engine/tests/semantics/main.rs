//! What the partition engine promises, sentence by sentence.

mod fixture;
mod table;
