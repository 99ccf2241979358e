"""Evaluations and results when ranks are lost or leave the loop."""

import re

import pytest
from conftest import ROUNDING, STEPS, difference, load
from world import World, until


def test_failed_evaluation_is_repeated_with_newcomers(tmp_path, undisturbed):
    variables = {"EVALUATE": "1"}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3, fault="2:17:Backward")
        until("the rank is killed", workers[2].is_gone)
        again = world.start(2)
        world.prepared([again])
        members = [*workers[:2], again]
        world.form(members)
        world.ends(members)
        progress = members[0].status()["progress"]
        assert progress["evalLoss"] > 0 and 0 < progress["evalAccuracy"] <= 1, progress
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_evaluations_by_steps_do_not_change_with_a_kill(tmp_path):
    def evaluations(workers, what):
        """The loss after each evaluated step, which is the same on all ranks."""
        found = {}
        for worker in workers:
            for step, loss in re.findall(rf"^{what}evaluated after (\d+): (\S+)", worker.log.read_text(), re.MULTILINE):
                found.setdefault(int(step), set()).add(float(loss))
        return found

    seen = []
    for num_workers in (1, 2):
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        with World(directory, "train.py", STEPS, directory / "weights", variables={"EVALUATE_EVERY": "7"}) as world:
            # The rank dies in the step that is evaluated next.
            workers = world.begin(num_workers, fault="1:21:Agree" if num_workers > 1 else None)
            if num_workers > 1:
                until("the rank is killed", workers[1].is_gone)
                workers[1] = world.start(1)
                world.prepared([workers[1]])
                world.form(workers)
            world.ends(workers)
            # The whole data set, and a data set of a single sample.
            seen.append([evaluations(workers, what) for what in ("", "part ")])
            reported = workers[0].status()["progress"]["evalLoss"]
            assert reported == pytest.approx(max(seen[-1][0][STEPS]), abs=1e-3)
    for alone, with_kill in zip(*seen):
        # Also after the last step.
        assert list(alone) == [*range(7, STEPS, 7), STEPS] and sorted(with_kill) == list(alone), seen
        for step, losses in with_kill.items():
            assert max(losses | alone[step]) - min(losses | alone[step]) <= 2e-4, (step, seen)


def test_result_is_written_by_the_next_rank_0(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"EXIT_AT_END": "0"}) as world:
        workers = world.begin(3)
        until("rank 0 is gone", workers[0].is_gone)
        world.form(workers[1:])
        world.ends(workers[1:])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_loop_left_by_all_ranks_has_a_result(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"STOP_AT": "31"}) as world:
        world.ends(world.begin(2))
    assert difference(undisturbed(30), load(tmp_path / "weights")) <= ROUNDING


def test_rank_that_leaves_the_loop_alone_is_a_lost_peer(tmp_path, undisturbed):
    variables = {"STOP_AT": "0:31", "ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS": "2"}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3)
        world.ends(workers[:1], 75)
        assert "left the loop after step 30, and another one has not" in workers[0].words()["message"]
        others = workers[1:]
        del world.variables["STOP_AT"]
        again = world.start(0)
        world.prepared([again])
        # The others are ranks 1 and 2 again, because rank 0 would leave again.
        world.form([again, *others])
        world.ends([again, *others])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING
