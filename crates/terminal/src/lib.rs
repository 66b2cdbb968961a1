//! The output of commands: tables and colors for people, JSON for programs.
//!
//! What must hold: no control character of a record, an operation or an error reaches a terminal,
//! and output that is not read by a terminal has neither colors nor cut cells.

mod color;
mod output;
mod table;

pub use color::{ColorArgs, Tone};
pub use output::{Bytes, NOTHING, Output, OutputArgs, ShownHeader, time};
pub use table::{Column, Table, report_left_out, terminal_width};
