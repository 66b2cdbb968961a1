//! Axes: the positions and labels of their ticks.

use super::number::{count, plain};

/// How values map to positions on an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Logarithmic. Values that are not above 0 are at the lower end.
    Log,
}

/// The unit of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Items per second.
    PerSecond,
    /// Items.
    Count,
    /// Milliseconds.
    Ms,
    /// Processor cores.
    Cores,
    /// MiB of memory.
    Mib,
}

impl Unit {
    /// The text after a value.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Count => "",
            Self::Ms => " ms",
            Self::Cores => " cores",
            Self::Mib => " MiB",
        }
    }
}

/// An axis with its ticks.
#[derive(PartialEq, Debug)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values and their labels, in ascending order.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis for these values. Values that are not finite numbers are ignored.
    pub fn of(scale: Scale, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite());
        match scale {
            Scale::Linear => Self::linear(unit, values.fold(0.0, f64::max)),
            Scale::Log => {
                let above = values.filter(|value| *value > 0.0);
                let (low, high) = above.fold((f64::INFINITY, 0.0), |(low, high), value| {
                    (value.min(low), value.max(high))
                });
                Self::log(unit, low.min(high.max(1.0)), high)
            }
        }
    }

    /// A time axis from 0 to `seconds`, which is its end.
    pub fn of_time(seconds: f64) -> Self {
        let high = if seconds > 0.0 { seconds } else { 1.0 };
        let long = [
            10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0,
        ];
        let step = long.into_iter().find(|step| high / step < 6.0);
        let step = step.filter(|_| high > 30.0).unwrap_or(round_up(high / 6.0));
        let ticks = multiples(step, high).map(|value| {
            let text = if value == 0.0 {
                "0".to_owned()
            } else if step >= 60.0 {
                format!("{} min", plain(value / 60.0))
            } else {
                format!("{} s", plain(value))
            };
            (value, text)
        });
        Self {
            scale: Scale::Linear,
            low: 0.0,
            high,
            ticks: ticks.collect(),
        }
    }

    /// The position of a value on the axis, from 0 to 1.
    pub fn position(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        part.clamp(0.0, 1.0)
    }

    fn linear(unit: Unit, most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = match unit {
            // Items are whole numbers.
            Unit::Count | Unit::PerSecond => round_up(most / 5.0).max(1.0),
            Unit::Ms | Unit::Cores | Unit::Mib => round_up(most / 5.0),
        };
        let high = (most / step - 1e-9).ceil() * step;
        let ticks = multiples(step, high).map(|value| (value, tick(unit, value)));
        Self {
            scale: Scale::Linear,
            low: 0.0,
            high,
            ticks: ticks.collect(),
        }
    }

    fn log(unit: Unit, least: f64, most: f64) -> Self {
        let most = most.max(least);
        // From two decades on, ticks at powers of ten are enough.
        let digits: &[f64] = if most / least >= 100.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let first = least.log10().floor() as i32;
        let last = most.log10().ceil() as i32;
        let rounds = (first..=last + 1)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
        let rounds: Vec<f64> = rounds.collect();
        let from = rounds.iter().rposition(|value| *value <= least * 1.000_001);
        let from = from.unwrap_or(0);
        let to = rounds
            .iter()
            .position(|value| *value >= most * 0.999_999)
            .unwrap_or(rounds.len() - 1)
            .max(from + 1);
        let each = (to - from) / 7 + 1;
        let ticks = rounds[from..=to].iter().step_by(each);
        Self {
            scale: Scale::Log,
            low: rounds[from],
            high: rounds[to],
            ticks: ticks.map(|value| (*value, tick(unit, *value))).collect(),
        }
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|digit| digit * power >= value * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

fn multiples(step: f64, high: f64) -> impl Iterator<Item = f64> {
    let last = (high / step + 1e-9).floor() as u32;
    (0..=last).map(move |times| f64::from(times) * step)
}

fn tick(unit: Unit, value: f64) -> String {
    match unit {
        Unit::PerSecond | Unit::Count if value >= 1e6 => format!("{}M", plain(value / 1e6)),
        Unit::PerSecond | Unit::Count if value >= 1e3 => format!("{}k", plain(value / 1e3)),
        Unit::PerSecond | Unit::Count | Unit::Cores => plain(value),
        Unit::Mib if value >= 1e3 => count(value.round() as u64),
        Unit::Mib => plain(value),
        Unit::Ms if value >= 1e3 => format!("{} s", plain(value / 1e3)),
        Unit::Ms if value >= 1e-2 => format!("{} ms", plain(value)),
        Unit::Ms => format!("{} µs", plain(value * 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| &**text).collect()
    }

    fn linear(unit: Unit, most: f64) -> Axis {
        Axis::of(Scale::Linear, unit, [0.5, most, f64::NAN].into_iter())
    }

    fn log(least: f64, most: f64) -> Axis {
        Axis::of(Scale::Log, Unit::Ms, [least, most].into_iter())
    }

    #[test]
    fn linear_ticks_are_round_and_the_last_is_not_below_the_greatest_value() {
        let axis = linear(Unit::PerSecond, 1_730.0);
        assert_eq!(texts(&axis), ["0", "500", "1k", "1.5k", "2k"]);
        assert_eq!(axis.position(2_000.0), 1.0);
        assert_eq!(axis.position(500.0), 0.25);
        assert_eq!(
            texts(&linear(Unit::Cores, 1.0)),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(
            texts(&linear(Unit::Mib, 2_100.0)),
            ["0", "500", "1,000", "1,500", "2,000", "2,500"]
        );
        assert_eq!(texts(&linear(Unit::Count, 2.0)), ["0", "1", "2"]);
    }

    #[test]
    fn an_empty_axis_still_has_ticks() {
        let nothing = || std::iter::empty();
        let axis = Axis::of(Scale::Linear, Unit::Count, nothing());
        assert_eq!(texts(&axis), ["0", "1"]);
        assert_eq!(axis.position(0.0), 0.0);
        let axis = Axis::of(Scale::Log, Unit::Ms, nothing());
        assert!(axis.ticks.len() >= 2, "{axis:?}");
        assert!(axis.position(0.0).is_finite());
    }

    #[test]
    fn a_wide_log_axis_has_powers_of_ten_and_a_narrow_one_steps_between() {
        assert_eq!(
            texts(&log(0.8, 12_000.0)),
            ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"]
        );
        assert_eq!(texts(&log(3.0, 18.0)), ["2 ms", "5 ms", "10 ms", "20 ms"]);
        assert_eq!(texts(&log(5.0, 5.0)), ["5 ms", "10 ms"]);
        assert!(texts(&log(1e-3, 1e9)).len() <= 7);
    }

    #[test]
    fn a_log_axis_lays_powers_of_ten_at_equal_distances() {
        let axis = log(1.0, 100.0);
        assert!((axis.position(10.0) - 0.5).abs() < 1e-9, "{axis:?}");
        assert_eq!(axis.position(0.0), 0.0);
    }

    #[test]
    fn time_ticks_are_few_and_in_the_unit_that_suits() {
        assert_eq!(
            texts(&Axis::of_time(130.0)),
            ["0", "30 s", "60 s", "90 s", "120 s"]
        );
        assert_eq!(
            texts(&Axis::of_time(600.0)),
            ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]
        );
        assert_eq!(
            texts(&Axis::of_time(1.2)),
            ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s", "1.2 s"]
        );
        assert_eq!(texts(&Axis::of_time(12.0)).len(), 7);
        assert_eq!(texts(&Axis::of_time(0.0)).len(), 6);
        assert!(Axis::of_time(86_400.0).ticks.len() < 8);
    }
}
