//! Weights and inputs as a formula of a name and an index, as in `fixtures/make.py`.

use roundhouse_trainer::Parameters;
use tch::Tensor;

/// FNV-1a of the name, then for each index the finalizer of `MurmurHash3`.
fn hashes(name: &str, count: i64) -> impl Iterator<Item = u32> {
    let seed = name.bytes().fold(0x811C_9DC5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (0..u32::try_from(count).unwrap()).map(move |index| {
        let mut hash = index.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
        hash ^ (hash >> 16)
    })
}

/// Uniform values in offset ± scale / 2.
pub(crate) fn values(name: &str, shape: &[i64], scale: f64, offset: f64) -> Tensor {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the values are rounded to single precision"
    )]
    let value = |hash| ((f64::from(hash) / 4_294_967_296.0 - 0.5) * scale + offset) as f32;
    let values: Vec<f32> = hashes(name, shape.iter().product()).map(value).collect();
    Tensor::from_slice(&values).reshape(shape)
}

/// Tokens or classes below a bound.
pub(crate) fn tokens(name: &str, shape: &[i64], bound: i64) -> Tensor {
    let token = |hash: u32| i64::from(hash >> 8) % bound;
    let tokens: Vec<i64> = hashes(name, shape.iter().product()).map(token).collect();
    Tensor::from_slice(&tokens).reshape(shape)
}

/// The values of the tensor with this name.
pub(crate) fn weight(name: &str, shape: &[i64]) -> Tensor {
    if name.ends_with("running_mean") {
        return values(name, shape, 0.2, 0.0);
    }
    if name.ends_with("running_var") {
        return values(name, shape, 1.0, 1.0);
    }
    match shape {
        [_] if name.ends_with("bias") => values(name, shape, 0.2, 0.0),
        [_] => values(name, shape, 0.5, 1.0),
        _ => {
            let fan_in: i64 = shape.iter().skip(1).product();
            values(name, shape, 4.0 / (fan_in as f64).sqrt(), 0.0)
        }
    }
}

/// Sets all tensors to the formula's values.
pub(crate) fn fill(parameters: &mut Parameters) {
    let names: Vec<String> = parameters.iter().map(|(name, _)| name.to_owned()).collect();
    tch::no_grad(|| {
        for (name, tensor) in names.iter().zip(parameters.tensors_mut()) {
            let value = weight(name, &tensor.size());
            tensor.copy_(&value);
        }
    });
}
