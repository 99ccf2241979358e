//! `SplitMix64` (Steele, Lea and Flood, 2014): random bits that are a function of a number.

/// What the generator adds to its state for each value.
pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator's next value after `state`, a bijection of it.
#[must_use]
pub const fn next(state: u64) -> u64 {
    finalize(state.wrapping_add(INCREMENT))
}

/// The generator's finalizer: every bit of the input reaches every bit of the output.
#[must_use]
pub const fn finalize(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_is_the_one_published() {
        // Output of the reference implementation for the seed 1234567.
        assert_eq!(next(1_234_567), 6_457_827_717_110_365_317);
    }
}
