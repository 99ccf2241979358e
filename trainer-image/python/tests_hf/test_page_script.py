"""The script of docs/python.md that fine-tunes a model of Hugging Face, with two workers, one of
which is killed, and a new one."""

import re

import pytest
import torch
import transformers
from conftest import HERE
from page import script_of_page
from safetensors.torch import load_file
from world import World, until

ROMEO = HERE.parents[2] / "examples" / "data" / "romeo"


def begin(directory, model, data):
    directory.mkdir()
    script = script_of_page(directory, "Fine-tunes")
    text = script.read_text()
    for old, new in [('"out"', f'"{directory}/out"'), ("num_train_epochs=3", "num_train_epochs=2, use_cpu=True"), ("logging_steps=10", "logging_steps=2")]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)
    return World(directory, script, variables={"DATA": str(data), "MODEL": str(model)})


def evaluated(worker):
    """The losses of the evaluations in the log of a worker."""
    return [float(loss) for loss in re.findall(r"'eval_loss': '?([\d.]+)", worker.log.read_text())]


def test_fine_tuning_of_the_page_equals_one_process(tmp_path):
    torch.manual_seed(1)
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(ROMEO / "tokenizer.json"), eos_token=end)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 256, "vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0}
    # Dropout draws other numbers on each rank.
    config = transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    for part in (tokenizer, transformers.GPT2LMHeadModel(config)):
        part.save_pretrained(tmp_path / "model")
    data = tmp_path / "lines.txt"
    data.write_text("".join((ROMEO / "train.txt").read_text().splitlines(keepends=True)[:600]))
    with begin(tmp_path / "alone", tmp_path / "model", data) as world:
        alone = world.begin(1)
        world.ends(alone)
    with begin(tmp_path / "two", tmp_path / "model", data) as world:
        workers = world.begin(2, fault="0:5:Backward")
        until("rank 0 is killed", workers[0].is_gone)
        world.slow(200)
        world.form(workers[1:])
        world.reach(workers[1:], 7)
        with world.steps_held(then=200):
            again = world.start(0)
            world.prepared([again])
            world.form([workers[1], again])
        world.reach([again], 9)
        world.slow(0)
        world.ends([workers[1], again])
    one, other = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("alone", "two"))
    # 32 bits.
    assert max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one) < 1e-4
    # The worker that has stayed logs as rank 0.
    assert evaluated(workers[1]) == pytest.approx(evaluated(alone[0]), abs=2e-3) and len(evaluated(alone[0])) == 2
