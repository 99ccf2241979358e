//! Fewer points that look the same. Pure.

/// Points that a chart of some hundred pixels needs, twice over.
const MAX_POINTS: usize = 1_200;

/// The points, or of so many neighbours the lowest, the highest and the last, so that no peak is lost.
pub(super) fn out(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let size = points.len().div_ceil(MAX_POINTS / 3);
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for group in points.chunks(size) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = group.iter().min_by(by_value);
        let high = group.iter().max_by(by_value);
        let mut chosen: Vec<(f64, f64)> = [low, high, group.last()]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        chosen.sort_by(|a, b| a.0.total_cmp(&b.0));
        chosen.dedup();
        kept.append(&mut chosen);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_points_become_few_and_keep_their_order_their_peaks_and_their_end() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(out(&points[..MAX_POINTS]).len(), MAX_POINTS);
        points[41_234].1 = 9.0;
        points[73_000].1 = -9.0;
        let kept = out(&points);
        assert!(kept.len() <= MAX_POINTS, "{}", kept.len());
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        for point in [points[41_234], points[73_000], points[99_999]] {
            assert!(kept.contains(&point), "{point:?}");
        }
    }
}
