//! Sizes that only a `llama` or a `switch` has.

use super::super::super::{ConfigInvalid, invalid};
use super::super::Model;

/// Refuses experts that cannot be balanced, or that take no token.
pub(super) fn experts(model: &Model) -> Result<(), ConfigInvalid> {
    if model.layers() < 2 {
        return invalid(
            "model.layers",
            "must be at least 2 for a switch: every second block has experts",
        );
    }
    if model.num_experts() < 2 {
        return invalid(
            "model.numExperts",
            "must be at least 2; a gpt2 has one perceptron in each block",
        );
    }
    if !(0.1..=512.0).contains(&model.capacity_factor()) {
        return invalid(
            "model.capacityFactor",
            "must be at least 0.1 and at most 512",
        );
    }
    if !(0.0..=10.0).contains(&model.router_aux_loss_coef()) {
        return invalid(
            "model.routerAuxLossCoef",
            "must be at least 0 and at most 10",
        );
    }
    Ok(())
}

/// Refuses heads that a `llama` cannot rotate or share, and numbers that make its values infinite.
pub(super) fn rotary_heads(model: &Model) -> Result<(), ConfigInvalid> {
    let (heads, num_key_value_heads) = (model.heads(), model.num_key_value_heads());
    let head_size = model.width() / heads;
    if !head_size.is_multiple_of(2) {
        return invalid(
            "model.heads",
            format!(
                "must leave each head of a llama an even part of width; width / heads is {head_size}"
            ),
        );
    }
    if !heads.is_multiple_of(num_key_value_heads) {
        return invalid(
            "model.numKeyValueHeads",
            format!(
                "must divide heads; {num_key_value_heads} heads of keys and values do not divide {heads}"
            ),
        );
    }
    if !(1.0..=1e9).contains(&model.rope_theta()) {
        return invalid(
            "model.ropeTheta",
            "must be at least 1 and at most 1000000000",
        );
    }
    if !(1e-12..=0.1).contains(&model.norm_epsilon()) {
        return invalid(
            "model.normEpsilon",
            "must be at least 0.000000000001 and at most 0.1",
        );
    }
    Ok(())
}
