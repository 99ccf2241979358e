"""The norm of gradients, with and without a scaler."""

import math

import pytest
import torch
from roundhouse.updates import gradient_norm, unscaled_norm
from small_models import OPTIMIZERS, trained


@pytest.mark.parametrize("most", [None, 0.5])
@pytest.mark.parametrize("unscales", [False, True])
def test_norm_is_that_of_unscaled_gradients(unscales, most):
    model, opt, _ = trained(OPTIMIZERS["plain sgd"], 1)
    parameters = list(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    loss = model(torch.randn(9, 6)).square().sum()
    loss.backward(retain_graph=True)
    expected = float(gradient_norm(parameters, None))
    opt.zero_grad()
    scaler.scale(loss).backward()
    if unscales:
        scaler.unscale_(opt)
    norm = unscaled_norm([opt], parameters, most, scaler, float(gradient_norm(parameters, None)), 64.0)
    assert norm == pytest.approx(expected)
    if most is not None:
        assert float(gradient_norm(parameters, None)) == pytest.approx(most, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (300, 400), (0,)])
def test_norm_of_gradients_is_euclidean_for_any_type(dtype, shape):
    parameters = []
    for bad in (None, math.inf, math.nan):
        gradient = torch.full(shape, 100.0, dtype=dtype)
        parameters = [torch.zeros(shape, dtype=dtype), torch.zeros(2), torch.zeros(7), torch.zeros(1, dtype=torch.float64)]
        parameters[0].grad = gradient
        parameters[1].grad, parameters[3].grad = torch.ones(2), torch.ones(1, dtype=torch.float64)
        expected = math.sqrt(1e4 * gradient.numel() + 3)
        assert float(gradient_norm(parameters, None)) == pytest.approx(expected, rel=1e-3)
        if bad is not None and gradient.numel() > 0:
            gradient.view(-1)[-1] = bad
            assert not math.isfinite(float(gradient_norm(parameters, None)))
