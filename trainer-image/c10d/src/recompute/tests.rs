use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tch::{Device, Kind};

use super::*;
use crate::{Autocast, ErrorKind, backward, zero_grad};

fn values(shape: &[i64], seed: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    let angles = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed;
    angles.sin().reshape(shape)
}

fn leaf(shape: &[i64], seed: i64) -> Tensor {
    values(shape, seed).set_requires_grad(true)
}

/// Two layers with a shortcut. The input is used three times.
fn net(x: &Tensor, parameters: &[Tensor]) -> std::result::Result<Tensor, TchError> {
    let [first, second] = parameters else {
        return Err(TchError::Torch("two parameters".to_owned()));
    };
    let left = x.f_matmul(first)?.f_relu()?;
    let right = x.f_matmul(second)?.f_tanh()?;
    left.f_mul(&right)?.f_add(x)
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = Vec::<f32>::try_from(tensor.contiguous().flatten(0, -1)).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// The loss, and the gradients of the input and of both parameters, of two such nets in sequence.
/// The first parameter is also used outside of the nets.
fn loss_and_gradients(recomputes: bool, precision: Kind) -> Vec<Vec<u32>> {
    let input = leaf(&[3, 4], 1);
    let mut leaves = [input, leaf(&[4, 4], 2), leaf(&[4, 4], 3)];
    zero_grad(&mut leaves).unwrap();
    let [input, parameters @ ..] = &leaves;
    let guard = Autocast::enter(Device::Cpu, precision).unwrap();
    let mut x = input * 2.0;
    for _ in 0..2 {
        x = if recomputes {
            recompute(&x, parameters, |x, parameters| net(x, &parameters)).unwrap()
        } else {
            net(&x, parameters).unwrap()
        };
    }
    let loss = x
        .matmul(&parameters[0])
        .to_kind(Kind::Float)
        .square()
        .sum(Kind::Float);
    drop(guard);
    backward(&loss).unwrap();
    let gradients = leaves.iter().map(|leaf| bits(&leaf.grad()));
    std::iter::once(bits(&loss.reshape([1])))
        .chain(gradients)
        .collect()
}

#[test]
fn recomputation_is_bit_identical() {
    for precision in [Kind::Float, Kind::BFloat16] {
        let plain = loss_and_gradients(false, precision);
        assert_eq!(loss_and_gradients(true, precision), plain, "{precision:?}");
        assert!(plain[2].iter().any(|gradient| *gradient != 0));
    }
}

/// Counts runs. The counter's reference count shows whether the segment is alive.
fn counted(
    runs: &Arc<AtomicUsize>,
    mut segment: impl FnMut(usize, &Tensor) -> std::result::Result<Tensor, TchError> + Send + 'static,
) -> impl FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send + 'static {
    let runs = Arc::clone(runs);
    move |x, _| segment(runs.fetch_add(1, Ordering::SeqCst), x)
}

#[test]
fn segment_runs_twice_and_is_dropped_after_backward() {
    let (runs, input) = (Arc::new(AtomicUsize::new(0)), leaf(&[3], 1));
    let output = recompute(&input, &[], counted(&runs, |_, x| x.f_exp())).unwrap();
    assert_eq!(
        (runs.load(Ordering::SeqCst), Arc::strong_count(&runs)),
        (1, 2)
    );
    let loss = output.sum(Kind::Float);
    backward(&loss).unwrap();
    assert_eq!(
        (runs.load(Ordering::SeqCst), Arc::strong_count(&runs)),
        (2, 1)
    );
    assert_eq!(bits(&input.grad()), bits(&output));
    let error = backward(&loss).unwrap_err();
    assert!(error.message.contains("second time"), "{error}");
}

#[test]
fn segment_is_dropped_with_a_graph_without_backward() {
    let (runs, input) = (Arc::new(AtomicUsize::new(0)), leaf(&[3], 1));
    let output = recompute(&input, &[], counted(&runs, |_, x| x.f_exp())).unwrap();
    drop(output);
    assert_eq!(
        (runs.load(Ordering::SeqCst), Arc::strong_count(&runs)),
        (1, 1)
    );
}

#[test]
fn segment_without_gradients_is_dropped_at_once() {
    let (runs, input) = (Arc::new(AtomicUsize::new(0)), leaf(&[3], 1));
    let exp = || counted(&runs, |_, x| x.f_exp());
    let evaluated = tch::no_grad(|| recompute(&input, &[], exp())).unwrap();
    let constant = recompute(&input.detach(), &[], exp()).unwrap();
    assert!(!evaluated.requires_grad() && !constant.requires_grad());
    assert_eq!(
        (runs.load(Ordering::SeqCst), Arc::strong_count(&runs)),
        (2, 1)
    );
}

#[test]
fn failure_of_the_first_run_is_an_error_of_the_call() {
    let (runs, input) = (Arc::new(AtomicUsize::new(0)), leaf(&[2, 3], 1));
    let fails = counted(&runs, |_, x| x.f_matmul(x));
    let error = recompute(&input, &[], fails).unwrap_err();
    assert!(
        error.message.contains("shapes cannot be multiplied"),
        "{error}"
    );
    let panics = counted(&runs, |_, _| panic!("no such layer"));
    let error = recompute(&input, &[], panics).unwrap_err();
    assert!(error.message.contains("no such layer"), "{error}");
    assert_eq!(Arc::strong_count(&runs), 1);
}

#[test]
fn failure_of_the_second_run_is_an_error_of_backward() {
    type Second = fn(&Tensor) -> std::result::Result<Tensor, TchError>;
    let cases: [(Second, &str, ErrorKind); 4] = [
        (
            |_| Err(TchError::Torch("lost".to_owned())),
            "lost",
            ErrorKind::Other,
        ),
        (|_| panic!("layer {}", 7), "layer 7", ErrorKind::Other),
        (
            |x| x.f_expand([1 << 50, 3], false)?.f_exp(),
            "memory",
            ErrorKind::OutOfMemory,
        ),
        (|x| x.f_sum(Kind::Float), "computed again", ErrorKind::Other),
    ];
    for (second, words, kind) in cases {
        let (runs, input) = (Arc::new(AtomicUsize::new(0)), leaf(&[3], 1));
        let segment = counted(
            &runs,
            move |run, x| if run == 0 { x.f_exp() } else { second(x) },
        );
        let loss = recompute(&input, &[], segment).unwrap().sum(Kind::Float);
        let error = backward(&loss).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(error.kind, kind, "{error}");
        assert!(!input.grad().defined());
        drop(loss);
        assert_eq!(Arc::strong_count(&runs), 1);
    }
}

#[test]
fn input_changed_in_place_is_an_error_of_backward() {
    for changes_input in [true, false] {
        let (input, parameter) = (leaf(&[3], 1), leaf(&[3], 2));
        let mut x = &input * 2.0;
        let output = recompute(&x, std::slice::from_ref(&parameter), |x, parameters| {
            x.f_mul(&parameters[0])
        })
        .unwrap();
        let mut changed = if changes_input {
            x.detach()
        } else {
            parameter.detach()
        };
        let _ = changed.fill_(1.0);
        let error = backward(&output.sum(Kind::Float)).unwrap_err();
        assert!(
            error.message.contains("modified by an inplace operation"),
            "{error}"
        );
        let _ = x.fill_(0.0);
    }
}

#[test]
fn segment_that_changes_its_input_is_an_error() {
    let x = leaf(&[3], 1) * 2.0;
    let output = recompute(&x, &[], |x, _| x.shallow_clone().f_exp_()).unwrap();
    let error = backward(&output.sum(Kind::Float)).unwrap_err();
    assert!(
        error.message.contains("modified by an inplace operation"),
        "{error}"
    );
}

#[test]
fn second_run_has_the_autocast_of_the_first() {
    let kind = |x: &Tensor| x.matmul(x).kind();
    let input = leaf(&[2, 2], 1);
    for (forward, expected) in [(Kind::BFloat16, Kind::BFloat16), (Kind::Float, Kind::Float)] {
        let (sender, kinds) = std::sync::mpsc::channel();
        let guard = Autocast::enter(Device::Cpu, forward).unwrap();
        let output = recompute(&input, &[], move |x, _| {
            sender.send(kind(x)).unwrap();
            x.f_exp()
        });
        drop(guard);
        // Use the other kind, so that the state of the backward pass differs from that of the
        // forward pass.
        let other = if forward == Kind::Float {
            Kind::BFloat16
        } else {
            Kind::Float
        };
        let guard = Autocast::enter(Device::Cpu, other).unwrap();
        backward(&output.unwrap().sum(Kind::Float)).unwrap();
        assert_eq!(kind(&input), other);
        drop(guard);
        assert_eq!(kinds.iter().collect::<Vec<_>>(), [expected, expected]);
    }
}

#[test]
fn unused_parameter_gets_no_gradient() {
    let (input, unused) = (leaf(&[3], 1), leaf(&[3], 2));
    let output = recompute(&input, std::slice::from_ref(&unused), |x, _| x.f_exp()).unwrap();
    backward(&output.sum(Kind::Float)).unwrap();
    assert!(input.grad().defined() && !unused.grad().defined());
}
