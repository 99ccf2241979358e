"""Adapters of PEFT, with the Trainer of transformers and with TRL's SFTTrainer: two workers of
which one is killed train the weights of one process, and save an adapter that PEFT loads."""

import peft
import pytest
import torch
import transformers
from libraries import ROUNDING, difference
from test_features import with_newcomer

CASES = [("sgd", 0, ROUNDING), ("adamw", 1, ROUNDING), ("sft exact sgd", 0, ROUNDING), ("sft adamw evaluate", 1, 1e-6)]


@pytest.mark.parametrize(("uses", "killed", "tolerance"), CASES)
def test_killed_worker_leaves_the_adapter_of_one_process(job, plain_of, uses, killed, tolerance):
    uses = uses.split()
    with job("adapter.py", *uses) as world:
        result = with_newcomer(world, killed, ROUNDHOUSE_FAULT=f"{killed}:5:Backward")
    wanted = plain_of("adapter.py", *uses)
    assert difference(wanted, result) <= tolerance
    names = ["loss", *(["eval_loss", "eval_mean_token_accuracy"] if "evaluate" in uses else [])]
    for name in names:
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    loaded = adapted(world.dir / "out")
    for name, weight in result.weights.items():
        assert torch.equal(loaded[name], weight), name


def adapted(directory):
    """The weights of the base model with the saved adapter."""
    files = sorted(path.name for path in (directory / "adapter").iterdir())
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=17, n_positions=11)
    model = transformers.GPT2LMHeadModel(config).to(torch.float64)
    model.load_state_dict(torch.load(directory / "base.pt"))
    model = peft.PeftModel.from_pretrained(model, str(directory / "adapter"), is_trainable=True)
    return dict(model.named_parameters())
