//! Durations in kubectl's style, with at most two units.

use jiff::{SignedDuration, Timestamp};

/// Time since `at`; `0s` if a node's clock has put `at` into the future.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    left(now.duration_since(at))
}

/// A duration such as `45s`, `3m10s`, `2h5m` or `3d4h`; a negative one is `0s`.
pub(crate) fn left(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let both = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..600 => both(minutes, "m", seconds % 60, "s"),
        600..3_600 => format!("{minutes}m"),
        3_600..86_400 => both(hours, "h", minutes % 60, "m"),
        _ => both(days, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_at_most_two_units() {
        for (seconds, expected) in [
            (-3, "0s"),
            (45, "45s"),
            (60, "1m"),
            (190, "3m10s"),
            (725, "12m"),
            (7_500, "2h5m"),
            (273_600, "3d4h"),
        ] {
            assert_eq!(left(SignedDuration::from_secs(seconds)), expected);
        }
    }
}
