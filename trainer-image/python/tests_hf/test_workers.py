"""Scripts in a worker before they join: the agent's LOCAL_RANK, and errors."""

import pytest
from conftest import HERE
from world import World


def script(directory, *lines):
    path = directory / "script.py"
    path.write_text("\n".join(["import os", *lines]))
    return path


IMPORTS = ["import roundhouse.hf, transformers", "import roundhouse, transformers", "import transformers, accelerate.state, roundhouse"]


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("cpu", [True, False])
def test_training_arguments_of_a_worker_make_no_process_group(tmp_path, cpu, imports):
    lines = [
        f"{imports}, torch",
        f"args = transformers.TrainingArguments('out', use_cpu={cpu})",
        "assert args.world_size == 1 and not torch.distributed.is_initialized()",
        "assert os.environ['LOCAL_RANK'] == '3' and args.local_process_index == 3",
    ]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        world.ends([world.start(0, LOCAL_RANK="3")])


@pytest.mark.parametrize("imports", ["import roundhouse, accelerate", "import accelerate, roundhouse"])
def test_accelerator_of_a_worker_makes_no_process_group(tmp_path, monkeypatch, imports):
    # The starter has imported accelerate already.
    monkeypatch.setattr(World, "starter", None)
    lines = [
        f"{imports}, torch",
        "accelerator = accelerate.Accelerator()",
        "assert accelerator.num_processes == 1 and not torch.distributed.is_initialized()",
        "assert os.environ['LOCAL_RANK'] == '3' and accelerator.local_process_index == 3",
    ]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        world.ends([world.start(0, LOCAL_RANK="3")])


def test_process_group_of_another_library_is_explained(tmp_path):
    lines = ["import roundhouse, torch", "torch.distributed.init_process_group('gloo')"]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        worker = world.start(0)
        world.ends([worker], 64)
        assert "read LOCAL_RANK and delete it" in worker.words()["message"]


def test_refusal_before_the_job_is_joined_ends_the_job(tmp_path):
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(HERE)!r})",
        "from roundhouse.hf import Trainer",
        "from small_trainer import Tiny, arguments, samples",
        "args = arguments('out', gradient_accumulation_steps=8)",
        "Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=4)",
    ]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        worker = world.start(0)
        world.ends([worker], 64)
        assert "gradient_accumulation_steps='8'): the number of passes" in worker.words()["message"]


def test_second_training_of_a_job_is_explained(tmp_path):
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(HERE)!r})",
        "from roundhouse.hf import Trainer",
        "from small_trainer import Tiny, arguments, samples",
        "for _ in range(2):",
        "    Trainer(model=Tiny(), args=arguments('out'), train_dataset=samples(), global_batch_size=4).train()",
    ]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "a second train() or accelerator.prepare in this process: a job is one training" in workers[0].log.read_text()
