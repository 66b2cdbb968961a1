//! Measures how the cost of a delivery grows with the number of partitions, with operations in
//! flight, and with stored operations.
//!
//! What must hold: each installation is measured right after one with the defaults, and the report
//! has the ratio of the two. A machine that becomes slower in the meantime then does not look like
//! growth.

use std::fmt;
use std::path::Path;

use uuid::Uuid;
use waybill_engine::{OperationId, Stamp};
use waybill_messages::Topics;
use waybill_store::{RowWrite, StoreConfig, WriteBatch};

use super::{top_rate, warm_up};
use crate::installation::{Services, StartOptions, Up};
use crate::interrupt::Interrupt;
use crate::measure::{self, Options};
use crate::model::{Goal, Part, Run};
use waybill_baseline::delivery::Delivery;
use waybill_baseline::pattern::Patterns;

/// The scenario's name in reports.
const GROWTH: &str = "growth";
/// The name in reports of the reference installation.
const DEFAULTS: &str = "defaults";
/// The default number of partitions.
const PARTITIONS: u32 = 4;
/// The number of operations written at a time to fill a store.
const FILL_BATCH: u64 = 2_000;
/// The divisor of the number of deliveries in an installation with few operations in flight.
const SHARE_OF_FEW: u64 = 20;

/// The difference of an installation from the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum With {
    /// This number of partitions.
    Partitions(u32),
    /// This maximum number of operations in flight per partition, on average.
    UnderWay(u32),
    /// This number of final operations in the store before the first request.
    Stored(u64),
}

impl With {
    /// The environment variable for `waybill up`.
    fn env(self) -> Option<(&'static str, String)> {
        match self {
            Self::UnderWay(operations) => {
                let all = operations * PARTITIONS;
                Some(("WAYBILL_SCHEDULER__IN_FLIGHT_MAX", all.to_string()))
            }
            Self::Partitions(_) | Self::Stored(_) => None,
        }
    }

    /// The number of its partitions.
    fn partitions(self) -> u32 {
        match self {
            Self::Partitions(partitions) => partitions,
            Self::UnderWay(_) | Self::Stored(_) => PARTITIONS,
        }
    }

    /// The number of its deliveries, given the default one.
    fn count(self, of: u64) -> u64 {
        match self {
            Self::UnderWay(..100) => (of / SHARE_OF_FEW).max(1),
            _ => of,
        }
    }
}

impl fmt::Display for With {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitions(partitions) => write!(f, "{partitions} partitions"),
            Self::UnderWay(operations) => write!(f, "{operations} in progress per partition"),
            Self::Stored(operations) => write!(f, "{operations} operations in the store"),
        }
    }
}

/// The results so far.
#[derive(Default)]
pub struct Growth {
    /// The runs, each after one with the defaults.
    pub runs: Vec<Run>,
    /// The table of results.
    pub table: Vec<Goal>,
}

/// The settings of a measurement.
pub struct Plan {
    /// The start options of Waybill.
    pub start: StartOptions,
    /// The number of deliveries in each installation.
    pub count: u64,
    /// The maximum number of stored operations.
    pub stored_max: u64,
}

impl Plan {
    fn installations(&self) -> Vec<With> {
        let partitions = [1, 16, 64].map(With::Partitions);
        let under_way = [1, 10, 100].map(With::UnderWay);
        let stored = [100_000, 1_000_000, 10_000_000];
        let stored = stored
            .into_iter()
            .filter(|stored| *stored <= self.stored_max);
        let installations = partitions.into_iter().chain(under_way);
        installations.chain(stored.map(With::Stored)).collect()
    }

    /// Measures all installations. `growth` gets the results, even if a later installation fails.
    ///
    /// # Errors
    ///
    /// If a measurement is impossible, or the run was interrupted.
    pub async fn run(&self, growth: &mut Growth, interrupt: &Interrupt) -> anyhow::Result<()> {
        let services = interrupt.unless(Services::start(&self.start)).await?;
        let mut done = Ok(());
        for with in self.installations() {
            match self.pair(with, &services, interrupt).await {
                Ok([defaults, grown]) => {
                    growth.table.push(compared(with, &defaults, &grown));
                    growth.runs.extend([defaults, grown]);
                }
                Err(error) => {
                    done = Err(error.context(with.to_string()));
                    break;
                }
            }
        }
        done.and(services.stop().await)
    }

    async fn pair(
        &self,
        with: With,
        services: &Services,
        interrupt: &Interrupt,
    ) -> anyhow::Result<[Run; 2]> {
        let defaults = self.measure(None, services, interrupt).await?;
        let grown = self.measure(Some(with), services, interrupt).await?;
        Ok([defaults, grown])
    }

    async fn measure(
        &self,
        with: Option<With>,
        services: &Services,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Run> {
        let name = with.map_or_else(|| DEFAULTS.to_owned(), |with| with.to_string());
        let count = with.map_or(self.count, |with| with.count(self.count));
        eprintln!("growth: {count} deliveries with {name}");
        let mut start = self.start.clone();
        if let Some((key, value)) = with.and_then(With::env) {
            start.up_env.push((key.to_owned(), value));
        }
        // A flag, so that no other setting applies: a repeated flag is refused.
        let partitions = with.map_or(PARTITIONS, With::partitions);
        start.up_flags.push(format!("--partitions={partitions}"));
        let data = crate::installation::temporary_directory()?;
        if let Some(With::Stored(operations)) = with {
            let store = Up::store_in(data.path());
            interrupt.unless(fill(&store, operations)).await?;
        }
        let up = Up::start_in(data, &start, Some(services.address()));
        let up = interrupt.unless(up).await?;
        let options = Options {
            system: name,
            is_quiet: true,
            interrupt: interrupt.clone(),
            hold: None,
        };
        let done = async {
            warm_up(&up.installation(services), &options, count).await?;
            let mut scenario = top_rate(count);
            GROWTH.clone_into(&mut scenario.name);
            measure::run(&scenario, &up.installation(services), &options).await
        };
        let done = done.await;
        let stopped = up.stop().await;
        let run = done?;
        stopped?;
        print!("{run}");
        Ok(run)
    }
}

/// Fills a store with final operations, as Waybill would leave them.
async fn fill(path: &Path, operations: u64) -> anyhow::Result<()> {
    let opened = StoreConfig::default().backend(path).open().await?;
    let store = opened.store();
    let patterns = Patterns::new(Topics::default().framing())?;
    let mut written = 0;
    while written < operations {
        let until = operations.min(written + FILL_BATCH);
        let numbers = usize::try_from(written)?..usize::try_from(until)?;
        let rows = numbers.flat_map(|number| rows(&patterns, number));
        let batch = WriteBatch {
            rows: rows.collect(),
            ..WriteBatch::default()
        };
        store.write(batch).await?;
        written = until;
    }
    opened.close().await?;
    Ok(())
}

/// The first and the last row of a delivery.
fn rows(patterns: &Patterns, number: usize) -> [RowWrite; 2] {
    let id = OperationId(Uuid::now_v7());
    let pattern = patterns.of(Delivery::new(number));
    let created = pattern.created.write(id, Stamp(1));
    [created, pattern.last_row().write(id, Stamp(2))]
}

/// How much more a delivery cost than in the installation with the defaults.
fn compared(with: With, defaults: &Run, grown: &Run) -> Goal {
    let cost = |run: &Run| run.cpu_us(Part::Subject);
    let times = cost(grown).zip(cost(defaults)).map(|(a, b)| a / b);
    let rates = [grown, defaults].map(Run::completed_per_second);
    Goal {
        work: with.to_string(),
        goal: "the same cost as with the defaults".to_owned(),
        measured: match (times, cost(grown)) {
            (Some(times), Some(cost)) => format!(
                "{times:.2} times, {cost:.0} µs; {:.0} completed/s, {:.2} times",
                rates[0],
                rates[0] / rates[1]
            ),
            _ => "its CPU was not measured".to_owned(),
        },
        ratio: times.map(|times| 1.0 / times),
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::ProcessState;

    use super::*;
    use crate::model::Process;
    use crate::report::testing;

    #[test]
    fn no_store_is_filled_beyond_the_limit() {
        let plan = |stored_max| Plan {
            start: StartOptions {
                program: "waybill".into(),
                config: None,
                up_flags: Vec::new(),
                up_env: Vec::new(),
            },
            count: 1_000,
            stored_max,
        };
        let stored = |stored_max| {
            let installations = plan(stored_max).installations();
            let stored = installations
                .iter()
                .filter(|with| matches!(with, With::Stored(_)));
            stored.count()
        };
        assert_eq!([stored(99_999), stored(1_000_000)], [0, 2]);
    }

    #[test]
    fn an_installation_passes_its_settings_to_the_started_program() {
        let few = With::UnderWay(10);
        let key = "WAYBILL_SCHEDULER__IN_FLIGHT_MAX";
        assert_eq!(few.env(), Some((key, "40".to_owned())));
        assert_eq!([few, With::Partitions(64)].map(With::partitions), [4, 64]);
        assert_eq!(
            [few.count(20_000), With::Stored(9).count(20_000)],
            [1_000, 20_000]
        );
    }

    #[test]
    fn growth_is_the_ratio_of_costs_per_delivery() {
        let [defaults, grown] = [100.0, 200.0].map(|cpu_us_per_delivery| {
            let mut run = testing::run();
            run.processes = vec![Process {
                name: "waybill".to_owned(),
                part: Part::Subject,
                cpu_us_per_delivery,
                cpu_us_by_threads: Default::default(),
                resident_mib_before: 0.0,
                resident_mib_max: 0.0,
            }];
            run
        });
        let goal = compared(With::Partitions(64), &defaults, &grown);
        assert_eq!((&*goal.work, goal.ratio), ("64 partitions", Some(0.5)));
        assert!(goal.measured.starts_with("2.00 times"), "{}", goal.measured);
    }

    #[test]
    fn stores_are_filled_with_processed_operations() {
        let patterns = Patterns::new(Topics::default().framing()).unwrap();
        for number in [4, 5] {
            let [created, last] = rows(&patterns, number);
            assert_eq!(created.id, last.id);
            assert!(created.created.is_some() && last.keep_for.is_some());
            assert_eq!(last.state.state, ProcessState::Processed);
            assert!(created.stamp < last.stamp);
        }
    }
}
