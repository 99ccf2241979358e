"""Processes of one job that are killed, stopped, added and removed while they train."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import difference, load
from world import World, until

STEPS = 60
# Of sums in another order.
ROUNDING = 1e-6


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_ranks_trains_what_one_process_trains(tmp_path, undisturbed, workers):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.ends(world.begin(workers))
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("point", ["Forward", "Backward", "Agree", "Update", "Commit"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_is_killed_costs_no_step(tmp_path, undisturbed, rank, point):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(3, fault=f"{rank}:31:{point}")
        until("the rank is killed", workers[rank].is_gone)
        others = [worker for worker in workers if worker is not workers[rank]]
        world.form(others)
        world.ends(others)
        said = "".join(worker.log.read_text() for worker in others)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING
    assert "step 60 of 60" in said or "training is complete" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_of_two_ranks_trains_on(tmp_path, undisturbed, rank):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(2, fault=f"{rank}:31:Backward")
        until("the rank is killed", workers[rank].is_gone)
        world.form([workers[1 - rank]])
        world.ends([workers[1 - rank]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("delay", [0.005, 0.03])
def test_a_rank_that_is_killed_while_a_large_state_moves_holds_nobody(tmp_path, rank, delay):
    # The timeout of a collective is 120 s here.
    variables = {"LARGE": "128"}
    with World(tmp_path, "train.py", 100_000, tmp_path / "weights", variables=variables) as world:
        workers = [world.start(index) for index in range(3)]
        world.prepared(workers)
        world.form(workers[:2], others_leave=False)
        world.reach(workers[:2], 2)
        world.form(workers)
        until("the state moves", lambda: workers[2].status().get("volumeMoves", 0) > 0)
        time.sleep(delay)
        workers[rank].kill()
        others = [worker for worker in workers if worker is not workers[rank]]
        until("the others are free", lambda: all(worker.status().get("phase") in ("Stranded", "Training") for worker in others), 40)


@pytest.mark.parametrize(
    ("workers", "rank", "whose"),
    [(2, 1, "ranks 0 and 1 differ; there is no majority"), (3, 0, "rank 0 are not those of rank 1 and of most ranks")],
)
def test_gradients_that_differ_in_one_bit_after_their_sum_are_committed_by_no_rank(tmp_path, undisturbed, workers, rank, whose):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"CUT_OFF_AT": f"{rank}:1:31"}) as world:
        workers = world.begin(workers)
        for worker in workers:
            until("the generation is lost", lambda worker=worker: worker.status().get("phase") == "Stranded")
            assert world.step(worker) == 30
            words = f"after their sum the gradients of {whose}: a collective was cut off, or a device computes wrong"
            assert words in worker.log.read_text()
        world.form(workers)
        world.ends(workers)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_a_rank_whose_step_was_cut_short_after_its_commit_gets_the_state_of_one_whose_step_was_not(tmp_path):
    with World(tmp_path, "cut.py", STEPS, tmp_path / "bodies", variables={"CUT_AT": "31"}) as world:
        workers = world.begin(3)
        until("a rank is killed", workers[2].is_gone)
        world.form(workers[:2])
        world.ends(workers[:2])
    assert [(tmp_path / f"bodies-{rank}").read_text() for rank in (0, 1)] == [str(STEPS)] * 2


def test_a_rank_that_is_slower_than_the_others_is_told(tmp_path):
    own_pace = tmp_path / "own-pace"
    own_pace.write_text("60")
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = [world.start(0), world.start(1, ROUNDHOUSE_FAULT_STEP_FILE=str(own_pace))]
        world.prepared(workers)
        world.form(workers)

        def straggler():
            progress = workers[0].status().get("progress") or {}
            return progress.get("straggler")

        assert until("word of the straggler", straggler)["nodeRank"] == 1
        world.ends(workers)


def test_a_group_of_the_script_breaks_when_a_rank_is_killed(tmp_path):
    # PyTorch's own timeout for such a group is 30 minutes.
    with World(tmp_path, "parts.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(3, fault="1:31:Forward")
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


def test_a_rank_that_is_killed_while_the_script_makes_a_group_leaves_no_rank_waiting(tmp_path):
    # At the store: for 2 minutes in the part, and for 30 outside of it.
    with World(tmp_path, "parts.py", STEPS, tmp_path / "weights", variables={"DIES_AT_FIRST": "1:2"}) as world:
        world.slow(200)
        workers = world.begin(3)
        world.reach(workers, 5)
        world.form(workers)
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.reach(others, 10)
        assert all("leaving generation" in worker.log.read_text() for worker in others)
        world.slow(0)
        world.ends(others)


@pytest.mark.parametrize(
    ("how", "dies_at"),
    [("continue", "1:31"), ("with batch", "1:31"), ("in a step", "1:31"), ("in a callback", "1:0")],
)
def test_a_rank_that_is_killed_while_the_others_sum_numbers_costs_no_process(tmp_path, how, dies_at):
    variables = {"HOW": how, "DIES_AT": dies_at}
    with World(tmp_path, "sums.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3)
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


def test_numbers_may_be_summed_after_a_commit_that_has_failed(tmp_path):
    with World(tmp_path, "sums.py", STEPS, tmp_path / "weights", variables={"HOW": "continue"}) as world:
        workers = world.begin(3, fault="1:31:Agree")
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


def test_a_process_joins_a_job_once(tmp_path):
    with World(tmp_path, "train.py", 5, tmp_path / "weights", variables={"JOIN_AGAIN": "1"}) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "AlreadyJoined: rh.join was called twice" in workers[0].log.read_text()


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        # A request to leave waits a while for a boundary, and then ends the wait.
        (signal.SIGTERM, 143, "no checkpoint holds its state"),
        # Ctrl-C is raised in the script, also while it waits for its peer.
        (signal.SIGINT, 128 + signal.SIGINT, None),
    ],
)
def test_a_worker_whose_peer_does_not_answer_ends_when_it_is_asked_to(tmp_path, number, code, words):
    variables = {"ROUNDHOUSE_TERMINATION_GRACE_SECONDS": "6"}
    with World(tmp_path, "train.py", 100_000, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)

        def waits():
            before = world.step(workers[0])
            time.sleep(1)
            return world.step(workers[0]) == before

        until("rank 0 waits for its peer", waits)
        workers[0].kill(number)
        world.ends([workers[0]], code)
        if words:
            assert words in workers[0].words()["message"]
        else:
            assert "KeyboardInterrupt" in workers[0].log.read_text()


def test_ctrl_c_ends_a_worker_that_trains_and_its_peer_trains_on(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGINT)
        world.ends([workers[1]], 128 + signal.SIGINT)
        assert "KeyboardInterrupt" in workers[1].log.read_text()
        world.slow(0)
        world.form([workers[0]])
        world.ends([workers[0]])


def test_a_stream_has_each_sample_once_also_when_a_rank_is_killed(tmp_path):
    weights = []
    for num_workers in [1, 3]:
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        variables = {"STREAM": "1", "LOADERS": "1"}
        with World(directory, "train.py", STEPS, directory / "weights", variables=variables) as world:
            workers = world.begin(num_workers, fault="2:31:Agree" if num_workers > 1 else None)
            if num_workers > 1:
                until("the rank is killed", workers[2].is_gone)
                workers = workers[:2]
                world.form(workers)
            world.ends(workers)
        weights.append(load(directory / "weights"))
    assert difference(*weights) <= ROUNDING


def test_workers_that_join_get_the_state_and_the_others_lose_no_step(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        more = [world.start(1), world.start(2)]
        world.prepared(more)
        world.slow(200)
        first = world.begin(1)
        world.reach(first, 5)
        world.form(first + more)
        world.reach(more, 10)
        world.form([first[0], more[1]])
        world.ends([more[0]], 143)
        world.slow(0)
        world.ends([first[0], more[1]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_a_rank_that_is_stopped_is_left_behind_and_the_others_lose_no_step(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(3)
        world.reach(workers, 5)
        stopped = workers[1]
        stopped.kill(signal.SIGSTOP)
        others = [workers[0], workers[2]]
        world.form(others)
        world.reach(others, 10)
        stopped.kill(signal.SIGCONT)
        # It hears of its generation's end, and of the one that it has no place in.
        world.ends([stopped], 143)
        world.slow(0)
        world.ends(others)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_a_stopped_rank_joins_a_later_generation_with_its_process(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        world.reach([workers[0]], 10)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.reach(workers, 15)
        world.slow(0)
        world.ends(workers)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_a_job_whose_ranks_were_all_killed_continues_from_its_checkpoint(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, "weights", checkpoints=True, every_steps=10) as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 25)
        for worker in workers:
            worker.kill()
        until("both are gone", lambda: all(worker.is_gone() for worker in workers))
        world.slow(0)
        later = [world.start(index) for index in range(3)]
        world.prepared(later)
        world.form(later)
        world.ends(later)
        assert "step 20 of generation 1" in later[0].log.read_text()
    assert difference(undisturbed(STEPS), load(world.state / "weights")) <= ROUNDING


def test_an_error_of_the_scripts_own_in_rh_join_is_in_the_last_words(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"NO_STATE": "1"}) as world:
        worker = world.start(0)
        world.ends([worker], 1)
        words = worker.words()
        assert words["reason"] == "Crashed" and "ValueError: invalid literal" in words["message"], words


def test_a_step_that_fails_on_all_ranks_in_each_generation_ends_them(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"FAIL_AT": "7"}) as world:
        workers = world.begin(2)
        for _ in range(4):
            for worker in workers:
                def is_lost(worker=worker):
                    status = worker.status()
                    return (status.get("phase"), status.get("generation")) == ("Stranded", world.generation)

                until("the generation is lost", is_lost)
            world.form(workers)
        world.ends(workers, 1)
        message = workers[0].words()["message"]
        assert "step 7 fails with the same error in each generation: RuntimeError: a type that the group" in message, message


def test_a_bug_of_the_script_on_one_rank_ends_that_rank_alone_and_is_named(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"RAISE_AT": "1:31"}) as world:
        workers = world.begin(2)
        world.ends([workers[1]], 1)
        words = workers[1].words()
        assert words["reason"] == "Crashed" and words["step"] == 30, words
        lines = (pathlib.Path(__file__).parent / "scripts" / "train.py").read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if "a bug of the script" in text)
        assert words["message"] == f"ValueError: a bug of the script (train.py:{line})", words
        log = workers[1].log.read_text()
        assert "Traceback (most recent call last)" in log and "\nValueError: a bug of the script" in log, log
        world.form([workers[0]])
        world.ends([workers[0]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SAMPLES", "400", "rank 1 has other samples of the data set than rank 0: 400, not 500"),
        ("WIDTH", "16", "rank 1 has other tensors than rank 0: model.0.weight [16, 8] of F32, not model.0.weight [32, 8] of F32"),
    ],
)
def test_ranks_that_differ_do_not_train_together_and_say_what_differs(tmp_path, variable, value, words):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = [world.start(0), world.start(1, **{variable: value})]
        world.prepared(workers)
        world.form(workers)
        world.ends([workers[1]], 64)
        assert words in workers[1].words()["message"]
        assert not workers[0].is_gone()


def test_buffers_are_those_of_rank_0_and_of_the_last_committed_step(tmp_path):
    found = []
    for fault in (None, "1:31:Agree"):
        directory = tmp_path / str(fault)
        directory.mkdir()
        with World(directory, "train.py", STEPS, directory / "weights", variables={"NORM": "1"}) as world:
            workers = world.begin(2, fault=fault)
            if fault is not None:
                until("the rank is killed", workers[1].is_gone)
                again = world.start(1)
                world.prepared([again])
                workers[1] = again
                world.form(workers)
            world.ends(workers)
        found.append(load(directory / "weights"))
    assert difference(*found) <= ROUNDING


@pytest.mark.parametrize("loaders", [0, 2])
def test_the_workers_of_a_loader_survive_a_generation(tmp_path, undisturbed, loaders):
    variables = {"LOADERS": str(loaders)}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3, fault="2:31:Backward")
        until("the rank is killed", workers[2].is_gone)
        world.form(workers[:2])
        world.ends(workers[:2])
        for worker in workers[:2]:
            started = [line for line in worker.log.read_text().splitlines() if line.startswith("process that loads: ")]
            assert len(started) == len(set(started)) == loaders, started
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("how", ["in place", "in parts", "beside"])
def test_a_generation_does_not_compile_a_model_again(tmp_path, how):
    def compiled(worker):
        """How often it had compiled at the end of each generation."""
        lines = re.findall(r"of generation (\d+): compiled (\d+) times", worker.log.read_text())
        return {int(generation): int(number) for generation, number in lines}

    with World(tmp_path, "compiled.py", STEPS, tmp_path / "weights", variables={"HOW": how}) as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 3)
        # The same ranks; one of them, with twice the samples; and both again.
        world.form(workers)
        world.reach(workers, 8)
        workers[1].kill()
        until("the rank is killed", workers[1].is_gone)
        world.form(workers[:1])
        world.reach(workers[:1], 13)
        workers[1] = world.start(1)
        world.prepared([workers[1]])
        world.form(workers)
        world.reach(workers, 18)
        world.slow(0)
        world.ends(workers)
        first, second, third, fourth = (compiled(workers[0])[generation] for generation in (1, 2, 3, 4))
    assert first == second > 0 and third == fourth > second, (first, second, third, fourth)


def test_an_evaluation_that_breaks_is_done_again_and_newcomers_take_part(tmp_path, undisturbed):
    variables = {"EVALUATE": "1"}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3, fault="2:17:Backward")
        until("the rank is killed", workers[2].is_gone)
        again = world.start(2)
        world.prepared([again])
        members = [*workers[:2], again]
        world.form(members)
        world.ends(members)
        told = members[0].status()["progress"]
        assert told["evalLoss"] > 0 and 0 < told["evalAccuracy"] <= 1, told
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_evaluations_every_so_many_steps_are_those_of_one_process_when_a_rank_is_killed(tmp_path):
    def evaluations(workers, what):
        """The loss after each step that was evaluated, which is the same on all ranks."""
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
            # It dies in the step that is evaluated next.
            workers = world.begin(num_workers, fault="1:21:Agree" if num_workers > 1 else None)
            if num_workers > 1:
                until("the rank is killed", workers[1].is_gone)
                workers[1] = world.start(1)
                world.prepared([workers[1]])
                world.form(workers)
            world.ends(workers)
            # The whole data set, and the only sample of another one.
            seen.append([evaluations(workers, what) for what in ("", "part ")])
            reported = workers[0].status()["progress"]["evalLoss"]
            assert reported == pytest.approx(max(seen[-1][0][STEPS]), abs=1e-3)
    for alone, with_kill in zip(*seen):
        # After the last step, too.
        assert list(alone) == [*range(7, STEPS, 7), STEPS] and sorted(with_kill) == list(alone), seen
        for step, losses in with_kill.items():
            assert max(losses | alone[step]) - min(losses | alone[step]) <= 2e-4, (step, seen)


def test_a_rank_that_ends_before_the_result_is_written_leaves_it_to_the_next_rank_0(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"EXIT_AT_END": "0"}) as world:
        workers = world.begin(3)
        until("rank 0 is gone", workers[0].is_gone)
        world.form(workers[1:])
        world.ends(workers[1:])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_a_loop_that_all_ranks_leave_at_the_same_step_has_a_result(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"STOP_AT": "31"}) as world:
        world.ends(world.begin(2))
    assert difference(undisturbed(30), load(tmp_path / "weights")) <= ROUNDING


def test_a_rank_that_leaves_the_loop_alone_is_a_lost_peer_to_the_others(tmp_path, undisturbed):
    variables = {"STOP_AT": "0:31", "ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS": "2"}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3)
        world.ends(workers[:1], 75)
        assert "left the loop after step 30, and another one has not" in workers[0].words()["message"]
        others = workers[1:]
        del world.variables["STOP_AT"]
        again = world.start(0)
        world.prepared([again])
        # The others are ranks 1 and 2 again: rank 0 alone would leave.
        world.form([again, *others])
        world.ends([again, *others])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_sys_exit_before_the_last_step_is_a_failure(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"EXIT_AT": "0:7"}) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "sys.exit() before its last step" in workers[0].words()["message"]


@pytest.mark.parametrize(
    ("uses", "workers", "killed", "at"),
    [
        # In the second step of a generation the first pass tells the ranks how gradients are packed.
        ("accumulate-clip", 3, 0, "2:Forward"),
        ("sum-accumulate", 2, 1, "31:Backward"),
        ("scaler-unscale-collective", 3, 1, "31:Collective"),
        ("scaler-clip-alternate-apart", 2, 1, "31:Agree"),
        ("small-frozen", 3, 1, "31:Backward"),
        # One of two optimizers has no gradients.
        ("scaler-frozen-clip", 2, 1, "31:Backward"),
        ("manual-clip", 2, 1, "31:Collective"),
        # A layer that every third step leaves out, such as the one in which the rank is killed, and the one after.
        ("unused", 3, 1, "33:Backward"),
        ("unused-accumulate", 2, 0, "32:Agree"),
        ("static-clip", 3, 1, "31:Backward"),
        ("rate", 2, 1, "31:Agree"),
        ("autocast-scaler-clip", 3, 2, "31:Backward"),
    ],
)
def test_what_a_script_uses_trains_what_one_process_trains_when_a_rank_is_killed(tmp_path, uses, workers, killed, at):
    step, point = at.split(":")
    fault = {"KILL_AT": step} if point == "Collective" else {"ROUNDHOUSE_FAULT": f"{killed}:{at}"}
    directories = [tmp_path / "single", tmp_path / "world"]
    for directory in directories:
        directory.mkdir()
    single, world = (World(directory, "exact.py", STEPS, directory / "weights", uses) for directory in directories)
    with single, world:
        alone = single.begin(1)
        ranks = [world.start(index, **(fault if index == killed else {})) for index in range(workers)]
        world.prepared(ranks)
        world.form(ranks)
        until("the rank is killed", ranks[killed].is_gone)
        others = [rank for rank in ranks if rank is not ranks[killed]]
        world.form(others)
        world.ends(alone + others)
    # Sums of half precision depend on which samples are summed first.
    tolerance = 0.01 if "autocast" in uses else ROUNDING
    assert difference(*(load(directory / "weights") for directory in directories)) <= tolerance


def test_ranks_whose_states_differ_write_no_checkpoint_and_name_the_tensor(tmp_path):
    # Rank 1 alone changes a weight after step 5; the next checkpoint is of step 8.
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", checkpoints=True, every_steps=4, variables={"FLIP_AT": "1:5"}) as world:
        world.slow(100)
        workers = world.begin(2)
        world.ends(workers, 64)
        said = [worker.words()["message"] for worker in workers]
        saved = [path.name for path in (world.state / "checkpoints").glob("gen-*-step-*")]
    # A save that is due while the one before is written is left out.
    found = [re.search(r"the replicas differ after step (\d+): model.0.weight of ranks 0 and 1 differ; there is no majority", words) for words in said]
    assert all(found) and int(found[0][1]) >= 8, said
    assert all(int(name.rpartition("-")[2]) < 8 for name in saved if not name.endswith("partial")), saved


@pytest.mark.parametrize("what", ["mesh", "part", "world"])
def test_a_process_group_of_an_earlier_generation_ends_the_job_with_what_to_change(tmp_path, what):
    with World(tmp_path, "kept.py", what, "caught") as world:
        world.slow(50)
        workers = world.begin(3)
        world.reach(workers, 5)
        world.slow(0)
        # The same ranks again: by its name PyTorch would find a group, and a group that is kept would still sum.
        world.form(workers)
        first = until("a worker ends", lambda: next((worker for worker in workers if worker.is_gone()), None))
        world.ends([first], 64)
        words = "uses a process group or a DeviceMesh of an earlier generation"
        assert words in first.words()["message"] and "job.on_generation(callback)" in first.words()["message"]


@pytest.mark.parametrize(("what", "code"), [("dropped caught", 0), ("dropped-part caught", 0), ("dropped bare", 75)])
def test_a_collective_after_a_commit_that_was_dropped_does_not_fail_the_job(tmp_path, what, code):
    with World(tmp_path, "kept.py", *what.split()) as world:
        workers = world.begin(3, fault="2:31:Agree")
        until("the rank is killed", workers[2].is_gone)
        if code == 0:
            world.form(workers[:2])
        world.ends(workers[:2], code)
        if code != 0:
            assert "called a collective after that, such as after a job.commit that returned False" in workers[0].words()["message"]


def with_limit(directory, cores):
    """A command that runs another one as under a limit of its cgroup: with files of the kernel's names in their place."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            place = directory / path.strip("/")
            limits = {"cgroup.controllers": "cpu", "cpu.max": f"{cores * 100000} 100000"}
        elif "cpu" in controllers.split(","):
            place = directory / "cpu" / path.strip("/")
            limits = {"cpu.cfs_quota_us": str(cores * 100000), "cpu.cfs_period_us": "100000"}
        else:
            continue
        place.mkdir(parents=True, exist_ok=True)
        for name, value in limits.items():
            (place / name).write_text(f"{value}\n")
    return ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"', str(directory)]


def test_a_worker_computes_with_as_many_threads_as_its_cgroup_has_cores(tmp_path):
    limit = with_limit(tmp_path / "cgroup", 1)
    if subprocess.run([*limit, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow namespaces")
    seen = []
    for command in ([], limit):
        directory = tmp_path / str(len(seen))
        directory.mkdir()
        with World(directory, "train.py", 2, directory / "weights", variables={"OMP_NUM_THREADS": ""}) as world:
            world.starter, world.command = None, [*command, *world.command]
            workers = world.begin(1)
            world.ends(workers)
            seen.append(int(re.search(r"threads that compute: (\d+)", workers[0].log.read_text())[1]))
    # The machine that runs the tests may have a limit, too.
    assert 1 <= seen[0] <= len(os.sched_getaffinity(0)) and seen[1] == 1, seen
