//! `SplitMix64` (Steele, Lea and Flood, 2014): pseudo-random bits as a function of a number.

/// Increment of the generator's state per value.
pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the generator's next value after `state`, a bijection of it.
#[must_use]
pub const fn next(state: u64) -> u64 {
    finalize(state.wrapping_add(INCREMENT))
}

/// The generator's finalizer: every bit of the input affects every bit of the output.
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
    fn first_value_equals_the_published_one() {
        // Output of the reference implementation for the seed 1234567.
        assert_eq!(next(1_234_567), 6_457_827_717_110_365_317);
    }
}
