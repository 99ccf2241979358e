"""Failures: errors of the script and of the device are not lost peers."""

import pytest
import torch
from roundhouse import errors
from roundhouse.ending import explained
from roundhouse.failures import Failures
from roundhouse.generations import Generations
from roundhouse.gradients import Gradients


class Generation:
    """A fake of the native part and of the group, for a process with two ranks. Each loss starts
    the next generation."""

    number = 1

    def end_body(self):
        return None

    def advance(self):
        return True

    def place(self):
        return self.number, 0, 2, 0, 0

    def lose(self, _):
        self.number += 1

    def group(self):
        return self

    def become_default(self):
        pass

    def close(self):
        pass


def test_callback_error_that_repeats_is_the_scripts():
    def advance(*said):
        errors = list(said)
        native = Generation()
        generations = Generations(native, None, torch.device("cpu"))

        def callback():
            if errors:
                raise errors.pop(0)

        generations.callbacks.append(callback)
        assert generations.advance() and not errors
        return native.number

    lost, other = RuntimeError("closed by peer 1"), RuntimeError("closed by peer 2")
    assert advance() == 1
    assert advance(lost) == 2
    assert advance(lost, other, lost) == 4
    with pytest.raises(RuntimeError, match="closed by peer 1"):
        advance(lost, lost)
    with pytest.raises(torch.OutOfMemoryError):
        advance(torch.OutOfMemoryError())
    superseded = errors.PeerLost("a newer generation has written")
    superseded.newer = 7
    with pytest.raises(errors.PeerLost):
        advance(superseded)


def test_repeated_step_error_is_the_scripts():
    failures, gradients = Failures(), Gradients()

    def drop(words, step=1):
        gradients.broken = words
        failures.check_drop(step, gradients)

    for words in ("closed by peer 1", "closed by peer 1", "closed by peer 2", "timed out", "timed out", None, None, None):
        drop(words)
    for _ in range(4):
        drop("invalid type")
    with pytest.raises(RuntimeError, match="in each generation: invalid type") as raised:
        drop("invalid type")
    assert failures.is_of_script(raised.value, 0, True), "`with batch:` lets it pass"
    drop("invalid type", step=2)


def test_failed_device_is_not_a_lost_peer():
    broken = RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later")
    assertion = RuntimeError("CUDA error: device-side assert triggered")
    memory = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:46733")
    for error, is_own, code in ((broken, True, 77), (assertion, True, None), (memory, True, None), (lost, False, None)):
        assert errors.is_own(error) == is_own
        assert explained(error)[0] == code
        assert Failures().is_of_script(error, 0, True) == is_own
        # In a sum of DDP `commit` raises the error in this generation.
        gradients, failures = Gradients(), Failures()
        gradients.broke(error)
        if is_own:
            with pytest.raises(RuntimeError) as raised:
                failures.check_drop(1, gradients)
            assert raised.value is error
        else:
            failures.check_drop(1, gradients)


def test_nccl_exchange_without_lengths_is_named_at_once(parts):
    error = RuntimeError("NCCL Error 7: NCCL operation in progress")
    code, words = explained(error)
    assert code == 64 and words.endswith("takes an operation in progress for an error") and "input_split_sizes" in words
    # The error is not a lost peer, already in the first generation.
    assert Failures().is_of_script(error, 3, True)
    assert not Failures().is_of_script(RuntimeError("Connection closed by peer"), 3, True)
