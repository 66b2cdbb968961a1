//! Samples the results and the processes every second, and shows the progress of the run.
//!
//! It has its own thread, so that a busy generator does not delay it.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use waybill_usage::Usage;

use super::processes::Watched;
use crate::model::{Percentiles, Sample};
use crate::results::{Interval, RunResults};
use crate::scenario::Scenario;
use crate::scenario::schedule::Schedule;

/// The length of a sample.
const PERIOD: Duration = Duration::from_secs(1);
/// How often a line is written without a terminal, in samples.
const LINE_EVERY: u32 = 10;
/// How often the end of the run is checked.
const PAUSE: Duration = Duration::from_millis(50);

/// A running sampler.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

struct Sampling {
    results: Arc<RunResults>,
    schedule: Schedule,
    phases: Vec<String>,
    processes: Vec<Watched>,
    began: Instant,
    progress: Option<Progress>,
    /// The number of requests offered so far.
    offered: u64,
    /// The end of the last sample, relative to the beginning.
    at: Duration,
    usages: Vec<Usage>,
    samples: Vec<Sample>,
}

/// The output of the progress.
struct Progress {
    is_terminal: bool,
    lines: u32,
}

impl Sampler {
    /// Starts to sample. `began` is the first intended time.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start(
        scenario: &Scenario,
        results: Arc<RunResults>,
        processes: Vec<Watched>,
        began: Instant,
        is_quiet: bool,
    ) -> std::io::Result<Self> {
        let sampling = Sampling {
            results,
            schedule: scenario.schedule(),
            phases: scenario
                .phases
                .iter()
                .map(|phase| phase.name.clone())
                .collect(),
            usages: processes.iter().map(totals).collect(),
            processes,
            began,
            progress: (!is_quiet).then(|| Progress {
                is_terminal: std::io::stderr().is_terminal(),
                lines: 0,
            }),
            offered: 0,
            at: Duration::ZERO,
            samples: Vec::new(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || sampling.until(&stopping))?;
        Ok(Self { stop, thread })
    }

    /// Takes the last sample and stops.
    pub fn stop(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl Sampling {
    fn until(mut self, stop: &AtomicBool) -> Vec<Sample> {
        let mut due = PERIOD;
        loop {
            let elapsed = self.began.elapsed();
            let is_over = stop.load(Ordering::Relaxed);
            if elapsed < due && !is_over {
                std::thread::sleep(PAUSE.min(due - elapsed));
                continue;
            }
            if elapsed > self.at {
                self.sample(elapsed);
            }
            if is_over {
                self.end_line();
                return self.samples;
            }
            while due <= elapsed {
                due += PERIOD;
            }
        }
    }

    fn sample(&mut self, elapsed: Duration) {
        let interval = self.results.take_interval();
        let seconds = (elapsed - self.at).as_secs_f64();
        let usages: Vec<Usage> = self.processes.iter().map(totals).collect();
        let used = usages.iter().zip(&self.usages);
        // A process that has ended counts as idle.
        let cores =
            used.map(|(now, before)| (now.cpu_seconds - before.cpu_seconds).max(0.0) / seconds);
        let offered = self.schedule.due_by(elapsed) - self.offered;
        self.offered += offered;
        let sample = Sample {
            at_seconds: elapsed.as_secs_f64(),
            seconds,
            offered,
            accepted: interval.tally.accepted,
            refused: interval.refused,
            ended: interval.tally.ended,
            open: interval.open,
            acceptance_ms: Percentiles::of(&interval.tally.acceptance_us),
            end_to_end_ms: Percentiles::of(&interval.tally.end_to_end_us),
            cpu_cores: cores.collect(),
            resident_mib: usages.iter().map(|usage| usage.resident_mib).collect(),
        };
        self.at = elapsed;
        self.usages = usages;
        self.print_progress(&sample, &interval);
        self.samples.push(sample);
    }

    fn print_progress(&mut self, sample: &Sample, interval: &Interval) {
        let phase = self.schedule.phase_at(self.at);
        let phase = phase.map_or("drain", |phase| self.phases[phase].as_str());
        let Some(progress) = &mut self.progress else {
            return;
        };
        progress.lines += 1;
        if !progress.is_terminal && !progress.lines.is_multiple_of(LINE_EVERY) {
            return;
        }
        let rate = |count: u64| (count as f64 / sample.seconds).round();
        let p99 =
            |ms: &Option<Percentiles>| ms.map_or("–".to_owned(), |ms| format!("{:.1}", ms.p99));
        let line = format!(
            "{:>4.0} s  {phase}  offered {}/s  accepted {}/s  refused {}/s  ended {}/s  open {}  p99 {} / {} ms  {} accepted",
            sample.at_seconds,
            rate(sample.offered),
            rate(sample.accepted),
            rate(sample.refused),
            rate(sample.ended),
            sample.open,
            p99(&sample.acceptance_ms),
            p99(&sample.end_to_end_ms),
            interval.accepted_in_all,
        );
        let mut out = std::io::stderr().lock();
        // A failed write of the progress does no harm.
        let _ = match progress.is_terminal {
            true => write!(out, "\r\x1b[K{line}").and_then(|()| out.flush()),
            false => writeln!(out, "{line}"),
        };
    }

    /// Ends the progress line, so that other output begins on a new line.
    fn end_line(&self) {
        let is_open = |progress: &Progress| progress.is_terminal && progress.lines > 0;
        if self.progress.as_ref().is_some_and(is_open) {
            eprintln!();
        }
    }
}

fn totals(process: &Watched) -> Usage {
    process.totals().unwrap_or_default()
}
