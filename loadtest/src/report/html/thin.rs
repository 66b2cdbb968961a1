//! Reduces the points of a line to the number that a plot can show.

/// The maximum number of points of a line.
pub const POINTS_MAX: usize = 400;

/// The indices of the points to draw, in ascending order: all of them, or the minimum and the
/// maximum of each of equal pieces, so that no peak is lost. A point without a value is a gap. Gaps
/// that are shorter than a piece disappear.
pub fn kept(values: &[Option<f64>]) -> Vec<usize> {
    if values.len() <= POINTS_MAX {
        return (0..values.len()).collect();
    }
    let mut kept = Vec::with_capacity(POINTS_MAX);
    for piece in pieces(values.len(), POINTS_MAX / 2) {
        let of_piece = || piece.clone().filter_map(|at| Some((at, values[at]?)));
        let least = of_piece().min_by(|(_, one), (_, other)| one.total_cmp(other));
        let greatest = greatest(values, piece.clone());
        match (least, greatest) {
            (Some((least, _)), Some(greatest)) => {
                kept.push(least.min(greatest));
                if least != greatest {
                    kept.push(least.max(greatest));
                }
            }
            (None, _) | (_, None) => kept.push(piece.start),
        }
    }
    kept
}

/// The maximum of each piece of a line, for the values under the pointer; all values if they are
/// few.
pub fn greatest_each(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let pieces = pieces(values.len(), POINTS_MAX / 2);
    pieces
        .map(|piece| greatest(values, piece).and_then(|at| values[at]))
        .collect()
}

/// The pieces into which [`greatest_each`] divides this many points.
pub fn pieces(points: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let pieces = if points <= POINTS_MAX { points } else { most };
    (0..pieces).map(move |piece| piece * points / pieces..(piece + 1) * points / pieces)
}

fn greatest(values: &[Option<f64>], piece: std::ops::Range<usize>) -> Option<usize> {
    let of_piece = piece.filter_map(|at| Some((at, values[at]?)));
    let greatest = of_piece.max_by(|(_, one), (_, other)| one.total_cmp(other));
    greatest.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_are_all_kept() {
        let values = vec![Some(1.0); POINTS_MAX];
        assert_eq!(kept(&values), (0..POINTS_MAX).collect::<Vec<_>>());
        assert_eq!(greatest_each(&values).len(), POINTS_MAX);
        assert!(kept(&[]).is_empty() && greatest_each(&[]).is_empty());
    }

    #[test]
    fn peaks_and_dips_of_many_points_are_kept() {
        let mut values: Vec<Option<f64>> = (0..6_007).map(|at| Some(f64::from(at % 7))).collect();
        values[3_333] = Some(1_000.0);
        values[5_999] = Some(-5.0);
        let kept = kept(&values);
        assert!(kept.len() <= POINTS_MAX, "{}", kept.len());
        assert!(
            kept.is_sorted_by(|one, next| one < next),
            "not in ascending order"
        );
        assert!(kept.contains(&3_333) && kept.contains(&5_999), "{kept:?}");
        let greatest = greatest_each(&values);
        assert_eq!(greatest.len(), POINTS_MAX / 2);
        assert!(greatest.contains(&Some(1_000.0)));
    }

    #[test]
    fn a_long_gap_stays_a_gap() {
        let values: Vec<_> = (0..1_000)
            .map(|at| (!(300..600).contains(&at)).then_some(1.0))
            .collect();
        let gaps = kept(&values)
            .into_iter()
            .filter(|at| values[*at].is_none())
            .count();
        assert_eq!(gaps, 60);
        assert_eq!(
            greatest_each(&values)
                .iter()
                .filter(|v| v.is_none())
                .count(),
            60
        );
    }
}
