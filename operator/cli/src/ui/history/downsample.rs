//! Reduces the points of a curve without changing how it looks. Pure.

/// Most points of a curve: about twice as many as a chart has pixels.
const MAX_POINTS: usize = 1_200;

/// At most [`MAX_POINTS`] points. Of each group of neighbours the lowest, the highest and the last
/// point remain, so every peak stays visible.
pub(super) fn points(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
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
    fn downsampling_keeps_order_peaks_and_last_point() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(super::points(&points[..MAX_POINTS]).len(), MAX_POINTS);
        points[41_234].1 = 9.0;
        points[73_000].1 = -9.0;
        let kept = super::points(&points);
        assert!(kept.len() <= MAX_POINTS, "{}", kept.len());
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        for point in [points[41_234], points[73_000], points[99_999]] {
            assert!(kept.contains(&point), "{point:?}");
        }
    }
}
