//! The report as text, for standard output.

use std::fmt;

use waybill_engine::ProcessState;

use crate::model::{BreakingPoint, Goal, Part, Percentiles, Process, Run};

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

impl Run {
    /// The number of operations that ended as `Processed`.
    #[must_use]
    pub fn processed(&self) -> u64 {
        let name = ProcessState::Processed.as_str();
        self.states.get(name).copied().unwrap_or_default()
    }

    /// The number of operations that ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.states.values().sum()
    }

    /// Finished operations per second, from the first intended time to the last end.
    #[must_use]
    pub fn completed_per_second(&self) -> f64 {
        self.ended() as f64 / self.ending_seconds.max(1e-9)
    }

    /// CPU of the measured system, in microseconds per delivery; `None` if no process was watched.
    #[must_use]
    pub fn cpu_us(&self, part: Part) -> Option<f64> {
        let mut of_part = self
            .processes
            .iter()
            .filter(|process| process.part == part)
            .peekable();
        of_part.peek()?;
        Some(of_part.map(|process| process.cpu_us_per_delivery).sum())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.scenario.is_empty() {
            "load"
        } else {
            &self.scenario
        };
        writeln!(
            f,
            "{name} on {}, {}, seed {}",
            self.system, self.transport, self.seed
        )?;
        let seconds: f64 = self.phases.iter().map(|phase| phase.seconds).sum();
        writeln!(
            f,
            "accepted    {} of {} ({:.0}/s of {:.0}/s intended)",
            self.accepted,
            self.offered,
            self.accepted as f64 / self.accepting_seconds.max(1e-9),
            self.offered as f64 / seconds.max(1e-9)
        )?;
        for (status, count) in &self.refused {
            match status.as_str() {
                "none" => writeln!(f, "no answer   {count}")?,
                status => writeln!(f, "status {status}  {count}")?,
            }
            if let Some(example) = self
                .refused_examples
                .get(status)
                .filter(|it| !it.is_empty())
            {
                writeln!(f, "  such as: {}", example.trim_end())?;
            }
        }
        ms(f, "acceptance", self.acceptance_ms.as_ref())?;
        if self.ended() > 0 {
            let rate = self.processed() as f64 / self.ending_seconds.max(1e-9);
            writeln!(f, "completed   {} ({rate:.0}/s)", self.processed())?;
            for (state, count) in &self.states {
                if state != ProcessState::Processed.as_str() {
                    writeln!(f, "{state:<11} {count}")?;
                }
            }
            ms(f, "end to end", self.end_to_end_ms.as_ref())?;
        }
        // All operations are open if ends were not followed.
        if self.open > 0 {
            writeln!(f, "open        {}", self.open)?;
        }
        if self.phases.len() > 1 {
            self.write_phases(f)?;
        }
        for tenant in &self.tenants {
            writeln!(
                f,
                "tenant {}: accepted {} of {}",
                tenant.name, tenant.accepted, tenant.offered
            )?;
            ms(f, "  acceptance", tenant.acceptance_ms.as_ref())?;
            ms(f, "  end to end", tenant.end_to_end_ms.as_ref())?;
        }
        for kind in &self.kinds {
            writeln!(
                f,
                "{:<11} {} of {} ended as required",
                kind.name, kind.as_meant, kind.held_to
            )?;
            ms(f, "  end to end", kind.end_to_end_ms.as_ref())?;
        }
        if let Some(breaking_point) = &self.breaking_point {
            writeln!(f, "{breaking_point}")?;
        }
        for process in &self.processes {
            write!(f, "{process}")?;
        }
        match &self.verdict {
            Some(verdict) => write!(f, "{verdict}")?,
            None => {
                let why = self.not_judged.as_deref();
                writeln!(
                    f,
                    "NOT JUDGED  {}",
                    why.unwrap_or("no judge was configured")
                )?;
            }
        }
        for failure in &self.failures {
            writeln!(f, "FAILED      {failure}")?;
        }
        Ok(())
    }
}

impl Run {
    fn write_phases(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in &self.phases {
            let rate = match phase.rate_end {
                end if end == phase.rate => format!("{:.0}/s", phase.rate),
                end => format!("{:.0}/s to {end:.0}/s", phase.rate),
            };
            writeln!(
                f,
                "phase {}: {rate} for {:.1} s, accepted {} of {}",
                phase.name, phase.seconds, phase.accepted, phase.offered
            )?;
            ms(f, "  acceptance", phase.acceptance_ms.as_ref())?;
            ms(f, "  end to end", phase.end_to_end_ms.as_ref())?;
        }
        Ok(())
    }
}

fn ms(f: &mut fmt::Formatter<'_>, name: &str, times: Option<&Percentiles>) -> fmt::Result {
    match times {
        Some(times) => writeln!(f, "{name:<11} {times}"),
        None => Ok(()),
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Subject => "measured",
            Part::Server => "server",
            Part::Services => "services",
            Part::Load => "load",
        };
        writeln!(
            f,
            "CPU         {:.0} µs per delivery, memory {:.0} to {:.0} MiB: {} ({part})",
            self.cpu_us_per_delivery, self.resident_mib_before, self.resident_mib_max, self.name
        )?;
        if self.part == Part::Subject {
            for (thread, micros) in &self.cpu_us_by_threads {
                if *micros >= 0.5 {
                    writeln!(f, "  {micros:7.1}  {thread}")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for BreakingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            0.0 => f.write_str("breaking point: no rate held")?,
            rate => write!(f, "breaking point: {rate:.0}/s held")?,
        }
        match (self.broke_at, &self.because) {
            (Some(rate), Some(because)) => write!(f, ", {rate:.0}/s did not: {because}"),
            _ => f.write_str(", the highest rate offered"),
        }
    }
}

/// The table of goals, as Markdown.
#[must_use]
pub fn goals(goals: &[Goal]) -> String {
    let mut table = "| work | goal | measured | ratio |\n|---|---|---|---|\n".to_owned();
    for goal in goals {
        let ratio = goal
            .ratio
            .map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        table += &format!(
            "| {} | {} | {} | {ratio} |\n",
            goal.work, goal.goal, goal.measured
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn a_run_without_a_judge_says_so_and_failures_come_last() {
        let mut run = testing::run();
        run.failures.push("no delivery was accepted".to_owned());
        let text = run.to_string();
        assert!(text.contains("NOT JUDGED"), "{text}");
        assert!(
            text.ends_with("FAILED      no delivery was accepted\n"),
            "{text}"
        );
    }

    #[test]
    fn the_table_of_goals_shows_what_was_not_measured() {
        let goal = |measured: &str, ratio| Goal {
            work: "w".to_owned(),
            goal: "≥ 2".to_owned(),
            measured: measured.to_owned(),
            ratio,
        };
        let table = goals(&[goal("3", Some(1.5)), goal("not measured: too long", None)]);
        assert!(
            table.ends_with("| w | ≥ 2 | 3 | 1.50 |\n| w | ≥ 2 | not measured: too long | – |\n")
        );
    }
}
