"""Workers that are killed, hang, leave and come back. The final weights are the same."""
import signal
import time

from setting import apart, config_of, results, same_bits, trained

AT, STEPS = 20, 60
# The allowed difference as a fraction of the largest weight of a tensor. Process groups of other
# sizes sum 32-bit numbers in another order.
TOLERANCE = 1e-5
POINTS = ["Forward", "Backward", "Agree", "Update", "Commit"]


def same(found, expected):
    """Checks that a training run with faults has the weights of one without."""
    difference = apart(found.weights, expected.weights)
    assert difference <= TOLERANCE, f"weights differ by {difference:.1e}"
    assert len(found.losses) == len(expected.losses), f"{len(found.losses)} steps"
    return f"weights within {difference:.0e} of an undisturbed run"


def ends_by_itself(world, node):
    world.until(f"the end of worker {node}", lambda: world.processes[node].poll() is not None)
    assert world.processes[node].returncode == -signal.SIGKILL, world.processes[node].returncode


def points(setting, points=POINTS, victims=(0, 1)):
    """Rank 0 or another rank is killed at each point of a step, and the other ranks continue
    without it."""
    config = config_of("mlp", STEPS)
    expected = trained(setting, config, 1)

    def case(point, victim):
        def tried():
            faults = {victim: {"ROUNDHOUSE_FAULT": f"{victim}:{AT}:{point}"}}
            with setting.world(config, 3, extra=faults, trainer=setting.faulty) as world:
                world.prepared(range(3))
                world.issue(1, range(3))
                ends_by_itself(world, victim)
                survivors = [node for node in range(3) if node != victim]
                started = time.monotonic()
                world.issue(2, survivors)
                world.until("steps", lambda: all(world.status(node)["generation"] == 2 and world.step(node) > AT for node in survivors))
                span = time.monotonic() - started
                world.complete(survivors)
                return f"{same(results(setting, world), expected)}; next step after {span:.1f} s"

        return f"rank {victim} of 3 is killed at {point} of step {AT}", tried

    return setting.each([case(point, victim) for point in points for victim in victims])


def histories(setting):
    """Other faults and changes: a lost sender, growth, suspension, evaluation, skipped steps."""
    config = config_of("mlp", STEPS)
    expected = trained(setting, config, 1)
    cases = {
        "the sender of the state is killed within the broadcast": lambda: sender(setting, config, expected),
        "1 worker becomes 2, then 4": lambda: paced(setting, 300, 4, growth),
        "all workers are suspended and resume": lambda: paced(setting, 200, 2, suspension),
        "evaluation of 2 workers compared with 1": lambda: evaluation(setting),
        "onNonFinite Skip: 2 of 40 steps are NaN, 2 workers compared with 1": lambda: skips(setting),
    }
    return setting.each(list(cases.items()))


def sender(setting, config, expected):
    """Rank 2 dies at step 20. Rank 0 sends its state to a new worker and dies after the first
    chunk. Rank 1 and the new worker continue."""
    chunks = {"ROUNDHOUSE_FAULT_CHUNK_BYTES": "1024"}
    faults = {node: dict(chunks) for node in range(4)}
    faults[0]["ROUNDHOUSE_FAULT"] = f"0:{AT}:State"
    faults[2]["ROUNDHOUSE_FAULT"] = f"2:{AT + 1}:Forward"
    with setting.world(config, 4, extra=faults, trainer=setting.faulty) as world:
        world.prepared(range(4))
        world.issue(1, [0, 1, 2])
        ends_by_itself(world, 2)
        world.issue(2, [0, 1, 3])
        ends_by_itself(world, 0)
        world.issue(3, [1, 3])
        world.complete([1, 3])
        return same(results(setting, world), expected)


def passes(world, generation, nodes, steps):
    """Issues a generation to workers, and waits until they have made some steps in it."""
    world.issue(generation, nodes)
    world.until("the generation", lambda: all(world.status(node)["generation"] == generation for node in nodes))
    before = world.step(nodes[0])
    world.until("steps", lambda: world.step(nodes[0]) >= before + steps)


def steps_of(world, generation, nodes):
    """Waits until each worker has made a step in a generation. A worker that joins starts with the
    step count of the others, so its count alone does not show that."""
    world.until("training", lambda: all((world.status(node)["generation"], world.status(node)["phase"]) == (generation, "Training") for node in nodes))
    before = {node: world.step(node) for node in nodes}
    world.until("steps", lambda: all(world.step(node) > before[node] for node in nodes))


def paced(setting, steps, nodes, history):
    """Trains with 20 ms longer steps, so that `history(world, end_delay)` can change the workers
    meanwhile. The history calls `end_delay` at its end. The result must be equal bit for bit to
    that of an undisturbed run, for every number of workers."""
    config = config_of("mlp", steps, slices=4, deterministic=True)
    expected = trained(setting, config, 1)
    pace = setting.place / f"pace-of-{history.__name__}"
    pace.write_text("20")
    faults = {node: {"ROUNDHOUSE_FAULT_STEP_FILE": str(pace)} for node in range(nodes)}
    with setting.world(config, nodes, extra=faults, trainer=setting.faulty) as world:
        world.prepared(range(nodes))
        history(world, lambda: pace.write_text("0"))
        world.complete(range(nodes))
        found = results(setting, world)
    return f"with 4 slices {same_bits(found, expected)} to an undisturbed run"


def growth(world, end_delay):
    passes(world, 1, [0], 10)
    passes(world, 2, [0, 1], 10)
    passes(world, 3, [0, 1, 2, 3], 10)
    end_delay()


def suspension(world, end_delay):
    passes(world, 1, [0, 1], 10)
    for node in (0, 1):
        world.kill(node, signal.SIGTERM)
    for node in (0, 1):
        world.until("the end", lambda: world.processes[node].poll() is not None)
        assert world.processes[node].returncode == 143, world.logs()
    end_delay()
    for node in (0, 1):
        world.start(node)
    world.prepared(range(2))
    world.issue(2, [0, 1])


def evaluation(setting):
    """Two epochs with an evaluation at the end of each."""
    config = config_of("mlp", 32)
    one, two = trained(setting, config, 1), trained(setting, config, 2)
    mine, theirs = two.metrics["eval_loss"], one.metrics["eval_loss"]
    assert abs(mine - theirs) <= TOLERANCE * theirs, f"test losses {mine} and {theirs}"
    assert two.metrics["eval_accuracy"] == one.metrics["eval_accuracy"], "the accuracies differ"
    return f"equal accuracy, test losses differ by {abs(mine - theirs) / theirs:.0e}"


def skips(setting):
    config = config_of("mlp", 40, onNonFinite="Skip")
    found = []
    for nodes in (1, 2):
        faults = {node: {"ROUNDHOUSE_FAULT_LOSS": "20,21"} for node in range(nodes)}
        found.append(trained(setting, config, nodes, extra=faults, trainer=setting.faulty))
        num = found[-1].metrics["skipped_steps"]
        assert num == 2, f"{num} steps were skipped"
    difference = apart(found[1].weights, found[0].weights)
    assert difference <= TOLERANCE, f"weights differ by {difference:.1e}"
    return f"2 steps skipped, weights within {difference:.0e}"


def kills(setting):
    """Measures the recovery when a worker is killed, hangs, leaves and comes back. The other
    workers keep their state."""
    rows = []
    with setting.world(config_of("mlp", 100_000_000), 4) as world:
        world.prepared(range(4))
        world.issue(1, range(4))
        world.until("steps", lambda: world.step() >= 20)
        before, started = world.step(), time.monotonic()
        world.kill(3)
        world.issue(2, [0, 1, 2])
        world.until("steps of three", lambda: world.status(0)["generation"] == 2 and world.step() > before)
        rows.append(("a worker of 4 is killed: until the others step again", f"{time.monotonic() - started:.1f} s"))
        world.start(3)
        world.prepared([3])
        before, started = world.step(), time.monotonic()
        world.issue(3, range(4))
        world.until("steps of four", lambda: world.status(3)["generation"] == 3 and world.step(3) > before)
        rows.append(("it comes back: until it steps", f"{time.monotonic() - started:.1f} s"))
        steps_of(world, 3, range(4))
        before, started = world.step(), time.monotonic()
        world.kill(2, signal.SIGSTOP)
        world.issue(4, [0, 1, 3])
        world.until("steps without it", lambda: world.status(0)["generation"] == 4 and world.step() > before)
        rows.append(("a worker hangs: until the others step again, by an abort", f"{time.monotonic() - started:.1f} s"))
        world.kill(2)
        steps_of(world, 4, [0, 1, 3])
        # Rank 0 hosts the store. It dies while the next generation forms.
        before = world.step(1)
        world.issue(5, [0, 1, 3])
        world.kill(0)
        started = time.monotonic()
        world.issue(6, [1, 3])
        world.until("steps of two", lambda: world.status(1)["generation"] == 6 and world.step(1) > before)
        rows.append(("rank 0 is killed while a generation forms: until steps", f"{time.monotonic() - started:.1f} s"))
        assert world.status(1)["step"] > before
        setting.audit(world)
    return rows
