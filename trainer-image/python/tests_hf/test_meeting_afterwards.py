"""The ranks connect with rank 0 after the training, and one of them is lost meanwhile."""

from test_afterwards import BEGIN, SAVE, check
from world import World, until

DIES = """
import os
import roundhouse.integration.lines as lines

if os.environ.get("DIES_BEFORE_IT_CONNECTS"):
    lines._dial = lambda _: os.kill(os.getpid(), 9)
"""


def test_rank_0_gives_up_a_rank_that_is_lost(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("\n".join([DIES, BEGIN, SAVE]))
    with World(tmp_path, file) as world:
        workers = [world.start(0), world.start(1), world.start(2, DIES_BEFORE_IT_CONNECTS="1")]
        world.prepared(workers)
        world.form(workers)
        until("rank 2 is killed", workers[2].is_gone)
        world.form(workers[:2])
        # Rank 0 would wait for 60 s.
        until("the others end", lambda: all(worker.is_gone() for worker in workers[:2]), seconds=50)
        world.ends(workers[:2])
    check(tmp_path)
