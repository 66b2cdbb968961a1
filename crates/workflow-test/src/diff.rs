//! The difference of two lists, line by line.

/// A line of a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line<'a, E, A> {
    /// Expected, and missing.
    Missing(&'a E),
    /// Not expected.
    Unexpected(&'a A),
    /// As expected.
    Same(&'a A),
}

/// Lists that are longer are shown one after the other: comparing them takes the product of their
/// lengths.
const CELLS_MAX: usize = 1_000_000;

/// A shortest difference of two lists.
pub(crate) fn diff<'a, E, A>(
    expected: &'a [E],
    actual: &'a [A],
    same: impl Fn(&E, &A) -> bool,
) -> Vec<Line<'a, E, A>> {
    let (rows, columns) = (expected.len() + 1, actual.len() + 1);
    if rows.saturating_mul(columns) > CELLS_MAX {
        let missing = expected.iter().map(Line::Missing);
        return missing.chain(actual.iter().map(Line::Unexpected)).collect();
    }
    // The length of the longest common part of the rests from (row, column) on.
    let mut common = vec![0_usize; rows * columns];
    for row in (0..expected.len()).rev() {
        for column in (0..actual.len()).rev() {
            let below = common[(row + 1) * columns + column];
            let right = common[row * columns + column + 1];
            common[row * columns + column] = match same(&expected[row], &actual[column]) {
                true => 1 + common[(row + 1) * columns + column + 1],
                false => below.max(right),
            };
        }
    }
    let mut lines = Vec::with_capacity(rows + columns);
    let (mut row, mut column) = (0, 0);
    while row < expected.len() || column < actual.len() {
        match (expected.get(row), actual.get(column)) {
            (Some(wanted), Some(found)) if same(wanted, found) => {
                lines.push(Line::Same(found));
                row += 1;
                column += 1;
            }
            (Some(wanted), found)
                if found.is_none()
                    || common[(row + 1) * columns + column]
                        >= common[row * columns + column + 1] =>
            {
                lines.push(Line::Missing(wanted));
                row += 1;
            }
            (_, Some(found)) => {
                lines.push(Line::Unexpected(found));
                column += 1;
            }
            (Some(_), None) | (None, None) => break,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(expected: &str, actual: &str) -> String {
        let list = |text: &str| text.chars().collect::<Vec<_>>();
        let (expected, actual) = (list(expected), list(actual));
        let lines = diff(&expected, &actual, |a, b| a == b);
        let shown = lines.into_iter().map(|line| match line {
            Line::Missing(c) => format!("-{c}"),
            Line::Unexpected(c) => format!("+{c}"),
            Line::Same(c) => c.to_string(),
        });
        shown.collect()
    }

    #[test]
    fn a_difference_keeps_the_common_part_in_order() {
        for (expected, actual, lines) in [
            ("", "", ""),
            ("abc", "abc", "abc"),
            ("abc", "", "-a-b-c"),
            ("", "ab", "+a+b"),
            ("abcd", "axcd", "a-b+xcd"),
            ("abc", "bcd", "-abc+d"),
        ] {
            assert_eq!(shown(expected, actual), lines);
        }
    }
}
