//! The report, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;
use waybill_engine::ProcessState;

use crate::Arguments;
use crate::completion::Finished;
use crate::cpu::Usage;
use crate::judge::Verdict;
use crate::run::Run;

/// What a run measured. Times are in milliseconds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    transport: String,
    rate_intended: f64,
    rate_accepted: f64,
    rate_completed: f64,
    accepted: usize,
    refused: BTreeMap<u16, usize>,
    completed: usize,
    states: BTreeMap<&'static str, usize>,
    open: usize,
    acceptance_ms: Percentiles,
    end_to_end_ms: Percentiles,
    cpu_us_per_delivery: Option<f64>,
    cpu_us_per_delivery_by_thread: BTreeMap<String, f64>,
    resident_mib: Option<f64>,
    verdict: Option<Verdict>,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Percentiles {
    fn of(micros: &Histogram<u64>) -> Self {
        let ms = |quantile| micros.value_at_quantile(quantile) as f64 / 1_000.0;
        Self {
            p50: ms(0.5),
            p90: ms(0.9),
            p99: ms(0.99),
            p999: ms(0.999),
            max: micros.max() as f64 / 1_000.0,
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            p50,
            p90,
            p99,
            p999,
            max,
        } = self;
        write!(
            f,
            "p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  p99.9 {p999:.1}  max {max:.1} ms"
        )
    }
}

impl Report {
    /// What the judge found, if one was asked for.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    pub fn new(
        arguments: &Arguments,
        run: &Run,
        finished: &Finished,
        usage: Option<&Usage>,
        verdict: Option<Verdict>,
    ) -> Self {
        let per_second = |count: usize, seconds: f64| count as f64 / seconds.max(1e-9);
        let elapsed = run.elapsed.as_secs_f64();
        let until_last = finished.last.map_or(elapsed, |last| {
            last.saturating_duration_since(run.began).as_secs_f64()
        });
        let deliveries = run.accepted.max(1) as f64;
        let micros = |seconds: f64| seconds * 1e6 / deliveries;
        Self {
            transport: format!("{:?}", arguments.transport).to_lowercase(),
            rate_intended: arguments.rate,
            rate_accepted: per_second(run.accepted, elapsed),
            rate_completed: per_second(finished.processed(), until_last),
            accepted: run.accepted,
            refused: run.refused.clone(),
            completed: finished.processed(),
            states: finished.states.clone(),
            open: finished.open,
            acceptance_ms: Percentiles::of(&run.acceptance_us),
            end_to_end_ms: Percentiles::of(&finished.end_to_end_us),
            cpu_us_per_delivery: usage.map(|usage| micros(usage.total())),
            cpu_us_per_delivery_by_thread: usage
                .map(|usage| {
                    usage
                        .threads
                        .iter()
                        .map(|(n, s)| (n.clone(), micros(*s)))
                        .collect()
                })
                .unwrap_or_default(),
            resident_mib: usage.map(|usage| usage.resident_mib),
            verdict,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "accepted    {} ({:.0}/s of {:.0}/s intended, {})",
            self.accepted, self.rate_accepted, self.rate_intended, self.transport
        )?;
        for (status, count) in &self.refused {
            match status {
                0 => writeln!(f, "no answer   {count}")?,
                status => writeln!(f, "status {status}  {count}")?,
            }
        }
        writeln!(f, "acceptance  {}", self.acceptance_ms)?;
        if !self.states.is_empty() {
            writeln!(
                f,
                "completed   {} ({:.0}/s)",
                self.completed, self.rate_completed
            )?;
            for (state, count) in &self.states {
                if *state != ProcessState::Processed.as_str() {
                    writeln!(f, "{state:<11} {count}")?;
                }
            }
            writeln!(f, "end to end  {}", self.end_to_end_ms)?;
        }
        if let Some(micros) = self.cpu_us_per_delivery {
            writeln!(f, "CPU         {micros:.0} µs per delivery")?;
            for (thread, micros) in &self.cpu_us_per_delivery_by_thread {
                if *micros >= 0.5 {
                    writeln!(f, "  {micros:7.1}  {thread}")?;
                }
            }
        }
        if let Some(mib) = self.resident_mib {
            writeln!(f, "memory      {mib:.0} MiB resident")?;
        }
        if let Some(verdict) = &self.verdict {
            write!(f, "{verdict}")?;
        }
        Ok(())
    }
}
