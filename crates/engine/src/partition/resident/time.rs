//! What becomes of an operation when time goes back: the wall clock was ahead, and was set right.

use crate::operation::StepState;
use crate::partition::resident::{OperationCx, ResidentOperation};
use crate::step::IllegalTransition;
use crate::time::Timestamp;

impl ResidentOperation {
    /// Time went back from `latest`. Each retry keeps its remaining waiting time; otherwise it would wait until the clock
    /// reaches the earlier reading again.
    ///
    /// An attempt under way keeps its complete-by, for its agent may work until then. It is asked for again, so that
    /// a reply that was lost comes again before that.
    pub(in crate::partition) fn time_went_back(
        &mut self,
        latest: Timestamp,
        cx: &mut OperationCx<'_>,
    ) -> Result<(), IllegalTransition> {
        if self.state.state.is_final() {
            return Ok(());
        }
        let now = cx.now;
        let by = latest.since(now);
        self.since = self.since.min(now);
        for step in &mut self.state.steps {
            // A late call may still take effect until then.
            let settles = step
                .unsettled_until
                .filter(|_| step.state == StepState::Compensating);
            let earliest = settles.map_or(now, |until| until.max(now));
            if let Some(at) = &mut step.retry_at {
                // One that was due by `latest` and has not been tried yet is due at once.
                *at = (*at).min(earliest.max(*at - by));
            }
        }
        if let Some(mut advance) = self.advance(cx) {
            advance.resume()?;
        }
        self.changed(cx);
        Ok(())
    }
}
