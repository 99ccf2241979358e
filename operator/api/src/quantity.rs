//! Quantities of Kubernetes as numbers of bytes.

/// The bytes of a quantity, rounded up; `None` if it is none, or negative, or too large.
#[must_use]
pub fn bytes(quantity: &str) -> Option<u64> {
    let end = quantity
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .len();
    let (number, unit) = quantity.split_at(end);
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1_024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = (number * factor).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is neither negative nor too large"
    )]
    (0.0..1.8e19).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_numbers_of_bytes() {
        for (quantity, expected) in [
            ("7", Some(7)),
            ("3Ki", Some(3 << 10)),
            ("1.5Gi", Some(3 << 29)),
            ("2e9", Some(2_000_000_000)),
            ("2G", Some(2_000_000_000)),
            ("1500m", Some(2)),
            ("99999999999Ti", None),
            ("-1", None),
            ("4GB", None),
            ("Gi", None),
            ("", None),
        ] {
            assert_eq!(bytes(quantity), expected, "{quantity}");
        }
    }
}
