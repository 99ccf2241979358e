"""What a pass of an evaluation returns, as bytes that the ranks exchange."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from roundhouse.hf.outcomes import packed, unpacked
from roundhouse.hf.predictions import Predictions
from roundhouse.integration import rows

KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int16, torch.uint8, torch.bool]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one is other


def test_nested_tensors_of_any_kind_arrive_as_they_were():
    tensors = [(torch.arange(12).view(3, 4) % 5).to(kind) for kind in KINDS]
    wide = torch.randn(6, 5)
    logits = {"a": (*tensors, [wide.T, wide[:, ::2]]), "b": {"empty": torch.zeros(0, 3), "none": None}, "tensor": ()}
    outcome = torch.tensor(float("-inf"), dtype=torch.float64), logits, None
    assert same(unpacked(packed(outcome)), outcome)
    assert len(packed(torch.zeros(1000)[:2])) < 100


NESTED = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
OTHERS = ["a word", {1: torch.zeros(1)}, torch.nn.Parameter(torch.zeros(1)), object()]
OTHERS += [torch.eye(2).to_sparse(), NESTED, torch.zeros(2, device="meta")]


@pytest.mark.parametrize("other", OTHERS)
def test_outcome_that_no_rank_can_send_stays_unknown(other):
    found = Predictions(2)
    found.add(1, (torch.zeros(()), [other], None))
    assert not found.fits and found.missing() == [0, 1]
    found.share(list)
    assert not found.is_shared


@pytest.mark.parametrize("chunk", [1, 5, 6, 100, 1 << 20])
def test_ranks_exchange_the_same_bytes_in_chunks_of_any_size(monkeypatch, chunk):
    monkeypatch.setattr(rows, "CHUNK_BYTES", chunk)
    outcomes = [(torch.tensor(float(index)), torch.randint(0, 256, (index, 3), dtype=torch.uint8), None) for index in range(5)]
    ranks = [Predictions(5), Predictions(5)]
    for index, outcome in enumerate(outcomes):
        ranks[index % 2].add(index, outcome)
    given, meets = {}, threading.Barrier(2, timeout=60)

    def share(rank):
        def summed(values):
            given[rank] = values
            meets.wait()
            sums = [one + other for one, other in zip(given[0], given[1], strict=True)]
            meets.wait()
            return sums

        ranks[rank].share(summed)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(share, range(2)))
    for found in ranks:
        assert found.is_shared and not found.missing()
        assert all(same(found.take(index), outcome) for index, outcome in enumerate(outcomes))
