"""Jobs whose workers are replicas of several processes."""

from world import Worker, World, until


class Replica:
    """A worker of several processes, and the agent that ends all of them if one is gone."""

    def __init__(self, world, index, size, doomed):
        self.index = index
        world.lives += 1
        variables = {
            "LOCAL_WORLD_SIZE": str(size),
            "ROUNDHOUSE_SHARDED": "true",
            "ROUNDHOUSE_REPLICA_FILE": str(world.dir / f"replica-{world.lives}"),
        }
        self.processes = [Worker(world, index, variables | doomed.get(0, {}))]
        for rank in range(1, size):
            self.processes.append(Worker(world, index, variables | doomed.get(rank, {}), self.processes[0], rank))

    @property
    def address(self):
        return self.processes[0].address

    @property
    def port(self):
        return self.processes[0].port

    def has_lost_one(self):
        return any(process.is_gone() and process.process.returncode != 0 for process in self.processes)

    def kill(self):
        for process in self.processes:
            if not process.is_gone():
                process.kill()
        for process in self.processes:
            process.process.wait()


class ReplicaWorld(World):
    """A job of replicas."""

    def __init__(self, *arguments, size=2, **options):
        super().__init__(*arguments, **options)
        self.size = size
        self.lives = 0

    def start_replica(self, index, doomed=None):
        replica = Replica(self, index, self.size, doomed or {})
        self.all.extend(replica.processes)
        return replica

    def begin_replicas(self, number, fault=None, doomed=(0, 0)):
        """``fault``: for process ``doomed[1]`` of replica ``doomed[0]``."""
        faults = {doomed[1]: {"ROUNDHOUSE_FAULT": fault}} if fault else {}
        replicas = [self.start_replica(index, faults if index == doomed[0] else {}) for index in range(number)]
        self.form_replicas(replicas)
        return replicas

    def form_replicas(self, replicas):
        self.prepared([process for replica in replicas for process in replica.processes])
        self.publish(replicas)

    def publish(self, replicas):
        """Publishes the next generation of these replicas."""
        members = [process for replica in replicas for process in replica.processes]
        self.form(members, others_leave=False)

    def place_of(self, worker, members):
        return {
            "nodeRank": members.index(worker) // self.size,
            "nodes": len(members) // self.size,
            "procsPerWorker": self.size,
        }

    def lost(self, replica):
        """Waits until a process of the replica is gone, and ends the others, as the agent does."""
        until("a process is gone", replica.has_lost_one)
        replica.kill()

    def replace(self, replicas):
        """Waits until the first replica has lost a process. The others continue, and then a new
        replica joins them. Returns all of them, the new one last."""
        lost, *others = replicas
        self.lost(lost)
        again = [*others, self.start_replica(lost.index)]
        with self.steps_held():
            self.publish(others)
            self.form_replicas(again)
        return again

    def end_replicas(self, replicas):
        self.ends([process for replica in replicas for process in replica.processes])

    def reach_replicas(self, replicas, step):
        self.reach([process for replica in replicas for process in replica.processes], step)
