//! Formats figures for people, with as many digits as are meaningful.

/// The text instead of a missing figure.
pub const NONE: &str = "–";

/// A count, in groups of three digits.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A measure with three significant digits, and with all digits before the point.
pub fn measure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        NONE.to_owned()
    } else if size == 0.0 {
        "0".to_owned()
    } else if size < 0.01 {
        format!("{value:.4}")
    } else if size < 9.995 {
        format!("{value:.2}")
    } else if size < 99.95 {
        format!("{value:.1}")
    } else {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", count(size.round() as u64))
    }
}

/// An optional measure.
pub fn measure_of(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), measure)
}

/// The rate per second; `None` if no time passed.
pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_three() {
        let texts = [0, 999, 1_000, 123_456, 1_234_567].map(count);
        assert_eq!(texts, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn measures_have_three_significant_digits() {
        let values = [
            0.0,
            0.0004,
            0.42,
            9.996,
            42.13,
            99.96,
            1_234.5,
            -1_234.5,
            f64::NAN,
        ];
        assert_eq!(
            values.map(measure),
            [
                "0", "0.0004", "0.42", "10.0", "42.1", "100", "1,235", "-1,235", NONE
            ]
        );
    }

    #[test]
    fn a_rate_over_no_time_is_unknown() {
        assert_eq!(per_second(10, 0.0), None);
        assert_eq!(per_second(10, 4.0), Some(2.5));
    }
}
