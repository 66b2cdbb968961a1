//! `waybill capacity`: estimates the resources for a load with the cost model of
//! `docs/capacity.md`.
//!
//! The model is proportional: an operation of `s` steps is `2s + 2` records and `s + 1` writes of
//! its row. Costs were measured under load on the machine that the documentation names;
//! `--core-speed` scales them to other cores.

use std::fmt::{self, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use waybill_telemetry::visible::to_json;
use waybill_terminal::Output;
use waybill_units::{duration_from_text, duration_to_text};

/// The CPU cost of each part on a core of the reference machine, in microseconds.
struct Costs {
    /// Ingestion, per request in a batch.
    ingestion_batch: f64,
    /// Ingestion, per single request.
    ingestion_single: f64,
    /// The scheduler's process, per transition; an operation has `s + 1` of them.
    scheduler: f64,
    /// The part of it on the single thread that runs all engines, per transition.
    scheduler_loop: f64,
    /// Agents over HTTP, per step.
    agents: f64,
    /// A broker, per record and copy.
    broker: f64,
    /// A node of the database, per write of a row and copy.
    database: f64,
}

/// Measured by `loadtest/compare-backends`.
const COSTS: Costs = Costs {
    ingestion_batch: 13.0,
    ingestion_single: 44.0,
    scheduler: 14.5,
    scheduler_loop: 6.0,
    agents: 22.9,
    broker: 10.1,
    database: 54.5,
};

/// Bytes of records and rows without an operation's input, measured with the built-in workflow.
struct Sizes {
    request: f64,
    step_request: f64,
    step_reply: f64,
    status: f64,
    row: f64,
}

const SIZES: Sizes = Sizes {
    request: 320.0,
    step_request: 370.0,
    step_reply: 117.0,
    status: 174.0,
    row: 700.0,
};

/// How callers send requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requests {
    /// In NDJSON batches
    Batch,
    /// One by one
    Single,
}

/// The load and the resources.
#[derive(Clone, Debug, Args)]
pub struct CapacityArgs {
    /// Operations per second
    #[arg(long, value_parser = positive)]
    rate: f64,
    /// Steps of each operation
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// How callers send requests
    #[arg(long, value_enum, default_value_t = Requests::Batch)]
    requests: Requests,
    /// Bytes of an operation's input
    #[arg(long, value_name = "BYTES", default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    input_bytes: u32,
    /// Copies of each record and row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    copies: u32,
    /// The retention of rows of final operations (store.retention)
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration_from_text)]
    retention: Duration,
    /// Cores of each of Waybill's processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    cores: u32,
    /// Cores of each broker and each node of the database
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    server_cores: u32,
    /// The maximum utilization of a core; the rest is for spikes and for catching up
    #[arg(long, value_name = "SHARE", default_value_t = 0.6, value_parser = share)]
    busy: f64,
    /// The speed of a core, as a multiple of one of the machine in docs/capacity.md
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = speed)]
    core_speed: f64,
    /// The format of the estimate
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// A part of the installation.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: &'static str,
    /// CPU per operation, in microseconds.
    cpu_us_per_operation: f64,
    /// Fully used cores.
    busy_cores: f64,
    /// The number of processes, brokers or nodes.
    count: u64,
    /// Operations per second of one of them with all its cores busy.
    one_takes: f64,
}

/// The resources for a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Need {
    rate: f64,
    steps: u32,
    parts: Vec<Part>,
    /// The number of partitions.
    partitions: u64,
    records_per_second: f64,
    /// Written to the brokers, all copies together.
    record_bytes_per_second: f64,
    row_writes_per_second: f64,
    /// Stored in the database, all copies together.
    row_bytes: f64,
    calls_per_second: f64,
}

impl CapacityArgs {
    /// Computes the estimate and returns it as text.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn run(&self) -> anyhow::Result<String> {
        let need = self.need();
        match self.output {
            Output::Json => Ok(to_json(&need)?),
            Output::Table => Ok(self.table(&need)),
        }
    }

    fn need(&self) -> Need {
        let (rate, copies) = (self.rate, f64::from(self.copies));
        let steps = f64::from(self.steps);
        let (transitions, records) = (steps + 1.0, 2.0 * steps + 2.0);
        let ingestion = match self.requests {
            Requests::Batch => COSTS.ingestion_batch,
            Requests::Single => COSTS.ingestion_single,
        };
        let own = f64::from(self.cores);
        let servers = f64::from(self.server_cores);
        let part = |name, micros: f64, cores: f64, thread_micros: f64, least: u64| {
            let micros = micros / self.core_speed;
            // A thread uses at most one core.
            let by_thread = self.core_speed / thread_micros;
            let one_takes = (cores / micros).min(by_thread) * 1e6;
            Part {
                name,
                cpu_us_per_operation: micros,
                busy_cores: rate * micros / 1e6,
                count: whole(rate / (one_takes * self.busy)).max(least),
                one_takes,
            }
        };
        let parts = vec![
            part("ingestion", ingestion, own, 0.0, 1),
            part(
                "scheduler",
                COSTS.scheduler * transitions,
                own,
                COSTS.scheduler_loop * transitions,
                1,
            ),
            part("agents", COSTS.agents * steps, own, 0.0, 1),
            part(
                "brokers",
                COSTS.broker * records * copies,
                servers,
                0.0,
                u64::from(self.copies),
            ),
            part(
                "database",
                COSTS.database * transitions * copies,
                servers,
                0.0,
                u64::from(self.copies),
            ),
        ];
        let input = f64::from(self.input_bytes);
        let record_bytes = SIZES.request
            + input
            + steps * (SIZES.step_request + input + SIZES.step_reply)
            + SIZES.status;
        let partitions = parts[1].count;
        Need {
            rate,
            steps: self.steps,
            parts,
            partitions,
            records_per_second: rate * records,
            record_bytes_per_second: rate * record_bytes * copies,
            row_writes_per_second: rate * transitions,
            row_bytes: rate * self.retention.as_secs_f64() * (SIZES.row + input) * copies,
            calls_per_second: rate * steps,
        }
    }

    fn table(&self, need: &Need) -> String {
        let mut text = String::new();
        // A write to a string cannot fail.
        let _ = self.write_table(need, &mut text);
        text.truncate(text.trim_end().len());
        text
    }

    fn write_table(&self, need: &Need, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "{} operations/s of {} steps, {} copies, cores {:.0} % busy:\n",
            grouped(need.rate),
            need.steps,
            self.copies,
            self.busy * 100.0
        )?;
        writeln!(
            out,
            "{:<10} {:>14} {:>12} {:>8}  maximum of one",
            "PART", "µs/OPERATION", "BUSY CORES", "COUNT"
        )?;
        for part in &need.parts {
            writeln!(
                out,
                "{:<10} {:>14.1} {:>12.1} {:>8}  {}/s",
                part.name,
                part.cpu_us_per_operation,
                part.busy_cores,
                part.count,
                grouped(part.one_takes)
            )?;
        }
        writeln!(
            out,
            "{:<10} {:>14} {:>12} {:>8}  one active, one standby",
            "supervisor", "-", "-", 2
        )?;
        let mib = 1024.0 * 1024.0;
        writeln!(
            out,
            "\npartitions  {}, one for each scheduler\nbrokers     {} records/s, {:.0} MiB/s written with all copies\n\
             database    {} row writes/s; {:.2} TiB with all copies, kept for {}\nservices    {} calls/s",
            need.partitions,
            grouped(need.records_per_second),
            need.record_bytes_per_second / mib,
            grouped(need.row_writes_per_second),
            need.row_bytes / mib / mib,
            duration_to_text(self.retention),
            grouped(need.calls_per_second)
        )?;
        let mut order: Vec<&Part> = need.parts.iter().collect();
        order.sort_by(|a, b| a.one_takes.total_cmp(&b.one_takes));
        let order: Vec<String> = order
            .iter()
            .map(|part| format!("{} at {}/s", part.name, grouped(part.one_takes)))
            .collect();
        writeln!(
            out,
            "\nWith one of each, all copies included, the first to reach its limit is the {}.",
            order.join(", then the ")
        )
    }
}

/// Rounds up, and ignores the error of floating-point arithmetic.
fn whole(number: f64) -> u64 {
    (number * (1.0 - 1e-9)).ceil() as u64
}

/// A number with thousands separators; two decimals if it is below ten.
fn grouped(number: f64) -> String {
    if number < 10.0 {
        let short = format!("{number:.2}");
        return short.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    (number.is_finite() && number > 0.0 && number <= 1e12)
        .then_some(number)
        .ok_or_else(|| "expected a number above 0 and up to 10^12".to_owned())
}

fn speed(text: &str) -> Result<f64, String> {
    let number = positive(text)?;
    (0.01..=100.0)
        .contains(&number)
        .then_some(number)
        .ok_or_else(|| "expected a number from 0.01 to 100".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = positive(text)?;
    (number <= 1.0)
        .then_some(number)
        .ok_or_else(|| "expected a share above 0 and up to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: CapacityArgs,
    }

    fn need(line: &str) -> Need {
        let words = std::iter::once("capacity").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().arguments.need()
    }

    fn count(need: &Need, name: &str) -> u64 {
        let part = need.parts.iter().find(|part| part.name == name);
        part.unwrap().count
    }

    #[test]
    fn records_rows_and_calls_follow_from_rate_and_steps() {
        let need = need("--rate 1000 --steps 3 --copies 1 --retention 1s --input-bytes 300");
        assert_eq!(need.records_per_second, 8_000.0);
        assert_eq!(need.row_writes_per_second, 4_000.0);
        assert_eq!(need.calls_per_second, 3_000.0);
        // One request, three step requests with their replies, and one status.
        let bytes = 620.0 + 3.0 * (670.0 + 117.0) + 174.0;
        assert_eq!(need.record_bytes_per_second, 1_000.0 * bytes);
        assert_eq!(need.row_bytes, 1_000_000.0);
    }

    #[test]
    fn the_documented_table_follows_from_the_formulas() {
        for (rate, counts) in [
            ("10000", [1, 1, 1, 3, 3]),
            ("50000", [1, 3, 3, 4, 11]),
            ("1000000", [6, 60, 48, 76, 205]),
        ] {
            let need = need(&format!("--rate {rate}"));
            let found: Vec<u64> = need.parts.iter().map(|part| part.count).collect();
            assert_eq!(found, counts, "{rate}");
        }
    }

    #[test]
    fn twice_the_rate_or_half_the_speed_takes_twice_as_much() {
        let [once, twice, slow] = [
            "--rate 100000",
            "--rate 200000",
            "--rate 100000 --core-speed 0.5",
        ]
        .map(need);
        for name in ["scheduler", "agents", "database"] {
            let [once, twice, slow] = [&once, &twice, &slow].map(|need| count(need, name));
            assert!((2 * once - 1..=2 * once).contains(&twice), "{name}");
            assert_eq!(twice, slow, "{name}");
        }
    }

    #[test]
    fn more_cores_do_not_help_a_scheduler_beyond_its_one_thread() {
        let [some, many] = ["--rate 1000000 --cores 64", "--rate 1000000 --cores 128"].map(need);
        assert_eq!(count(&some, "scheduler"), count(&many, "scheduler"));
        assert!(count(&some, "agents") > count(&many, "agents"));
        assert_eq!(many.partitions, count(&many, "scheduler"));
    }

    #[test]
    fn there_are_at_least_as_many_servers_as_replicas() {
        let need = need("--rate 1 --copies 5");
        assert_eq!([count(&need, "brokers"), count(&need, "database")], [5, 5]);
    }

    #[test]
    fn impossible_values_are_refused_with_their_reason() {
        for (line, problem) in [
            ("--rate 0", "a number above 0"),
            ("--rate many", "expected a number"),
            ("--rate 1 --busy 1.5", "above 0 and up to 1"),
            ("--rate 1 --core-speed 1e-320", "from 0.01 to 100"),
            ("--rate 1 --steps 0", "0 is not in 1..=1000"),
            ("--rate 1 --retention 7", "a duration with its unit"),
            ("--steps 5", "--rate <RATE>"),
        ] {
            let words = std::iter::once("capacity").chain(line.split_whitespace());
            let error = Line::try_parse_from(words).err().unwrap().to_string();
            assert!(error.contains(problem), "{line}: {error}");
        }
    }

    #[test]
    fn the_table_has_thousands_separators_and_names_the_first_bottleneck() {
        assert_eq!(grouped(1_234_567.2), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!([0.4, 2.0, 0.0].map(grouped), ["0.4", "2", "0"]);
        let words = ["capacity", "--rate", "50000"];
        let text = Line::try_parse_from(words)
            .unwrap()
            .arguments
            .run()
            .unwrap();
        assert!(text.starts_with("50,000 operations/s of 5 steps"), "{text}");
        let order = "the first to reach its limit is the database at 8,155/s, then the brokers at 22,002/s, \
                     then the scheduler at 27,778/s";
        assert!(text.contains(order), "{text}");
        let json = Line::try_parse_from(words.iter().chain(&["--output", "json"])).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json.arguments.run().unwrap()).unwrap();
        assert_eq!(json["recordsPerSecond"], 600_000.0);
    }
}
