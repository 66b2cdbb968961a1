//! Adapts an operation when time goes back: the wall clock was ahead, and was corrected.

use crate::operation::StepState;
use crate::partition::resident::{OperationCx, ResidentOperation};
use crate::step::IllegalTransition;
use crate::time::Timestamp;

impl ResidentOperation {
    /// Time went back from `latest`. Each retry keeps its remaining waiting time; otherwise it
    /// would wait until the clock reaches the earlier reading again.
    ///
    /// An attempt in progress keeps its complete-by, because its agent may work until then. It is
    /// requested again, so that a lost reply is repeated before that.
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
                // A retry that was due by `latest` is due immediately.
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
