"""The wrapper of ``job.model``: options and modes."""

import pytest
import roundhouse as rh
import torch
from small_script import DATA, loss_of, train


def test_late_options_of_a_model_are_an_error(parts):
    def loss(job, x):
        options = {"find_unused_parameters": True} if job.steps_done else {}
        return job.model(parts.head)(job.model(parts.body, **options)(x))

    with pytest.raises(rh.ConfigError, match="job.model of the same Linear with other options than before: .* before the loop"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)
    with rh.join(state=parts.state()) as job:
        net = job.model(parts.body)
        options = {"find_unused_parameters": True}
        assert job.model(parts.body, **options) is net and net._options == options
        assert job.model(parts.body) is net and job.model(parts.body, **options)._options == options
        with pytest.raises(rh.ConfigError, match="other options than before"):
            job.model(parts.body, bucket_cap_mb=1)
        with pytest.raises(rh.ConfigError, match="job.model: delay_all_reduce_named_params, param_to_hook_all_reduce: the job"):
            job.model(parts.head, delay_all_reduce_named_params=[], param_to_hook_all_reduce=parts.head.bias)
        for batch in job.steps(DATA, job.sampler(40, 8, steps=1)):
            loss = loss_of(job.model(parts.head)(net(batch.x)), batch.y)
            loss.backward()
            job.commit(loss)


def test_static_graph_is_refused_in_no_sync(parts):
    def loss(job, x):
        net, head = job.model(parts.body, static_graph=True), job.model(parts.head)
        if job.steps_done == 1:
            # Passes of a model with gradients accumulate; passes without gradients do not.
            with head.no_sync(), torch.no_grad():
                net(x)
            with head.no_sync():
                return head(net(x))
        return head(net(x))

    with pytest.raises(rh.ConfigError, match="a pass of Linear in no_sync with .*static_graph=True.* leave out static_graph, or"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)


def test_mode_of_a_model_is_that_of_its_module(parts):
    def loss(job, x):
        net = job.model(parts.body).eval()
        # Like a library that evaluates: it sets the mode of the module that it got.
        parts.body.train()
        return job.model(parts.head)(net(x))

    train(parts, lambda job, value: job.commit(value, parts.both), loss=loss)
