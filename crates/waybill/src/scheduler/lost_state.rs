//! Telling a partition that nobody ever ran from one whose state lies elsewhere.
//!
//! A store without a word of a partition may be a new one, or the wrong one: a mistyped keyspace, a data
//! directory that was lost. Beginning there would run every request of the log again. So whoever would
//! be the first owner of all looks for signs that another one was: the copy of the checkpoint that lag
//! tools see, and a log whose beginning is gone. They are signs and nothing more: no position is ever
//! taken from them.

use waybill_engine::{Epoch, Lane, Offset, ReaderId};
use waybill_store::{Layout, LayoutGeneration, Store};

use super::inlet::EndsReader;
use super::input::AcquireError;
use crate::readers;

/// Refuses a reader of a partition that the store knows nothing of, though its log says that it was run.
///
/// # Errors
///
/// [`AcquireError::StateElsewhere`] if it was; the others if store or broker cannot be asked.
pub(super) async fn refuse(
    store: &dyn Store,
    logs: &EndsReader,
    layout: &Layout,
    generation: LayoutGeneration,
    reader: ReaderId,
) -> Result<(), AcquireError> {
    let lease = readers::standing(store, layout, generation, reader).await?;
    // Somebody owned it before, or those whom it follows, and said so here.
    if lease.epoch > Epoch(0) {
        return Ok(());
    }
    let partition = lease.partition;
    let ends = logs.read(partition).await?;
    for lane in Lane::ALL {
        let source = lane.source();
        let committed = logs.committed(source, partition).await?;
        if let Some(sign) = sign(ends.first.on(source), ends.next.on(source), committed) {
            return Err(AcquireError::StateElsewhere { sign });
        }
    }
    Ok(())
}

/// What says that a log of requests was run before. A copy that lies beyond the end was made of another
/// topic of this name.
fn sign(first: Offset, end: Offset, committed: Option<Offset>) -> Option<String> {
    match committed {
        Some(done) if Offset(0) < done && done <= end => {
            return Some(format!("requests were done up to offset {done}"));
        }
        Some(_) | None => {}
    }
    (first > Offset(0)).then(|| format!("the log begins at offset {first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_run_is_known_by_its_committed_copy_or_by_its_missing_beginning() {
        let sign = |first, end, committed: Option<i64>| {
            sign(Offset(first), Offset(end), committed.map(Offset)).is_some()
        };
        assert!(!sign(0, 0, None), "a new log");
        assert!(!sign(0, 900, None), "requests wait in it");
        assert!(!sign(0, 900, Some(0)), "nothing of it was done");
        assert!(sign(0, 900, Some(1)));
        assert!(sign(0, 900, Some(900)));
        assert!(!sign(0, 5, Some(900)), "the topic was made anew");
        assert!(sign(7, 900, None));
    }
}
