"""The local cluster, on which Roundhouse is installed: kubectl, and what its nodes' host sees of pods."""
import atexit
import json
import os
import pathlib
import shutil
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
STATE = REPOSITORY / "target/cluster/state"


def shared_directory(name):
    """An empty directory that all nodes see, and into which any user may write."""
    shared = STATE / "volumes" / name
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    os.chmod(shared, 0o777)
    return shared


# An image would hold Python and PyTorch, 5 GB of them. The pods of this machine's cluster see its own instead.
SYSTEM = ["/usr", "/lib", "/lib64"]


def of_python(python):
    """What an interpreter needs. A virtual environment points at the Python that it was made with."""
    return [*SYSTEM, str(python.parents[1]), str(python.resolve().parents[1])]


def mount(template, paths):
    """Gives a pod's one container directories of its node, at the same places; `paths`: each, and whether it is only read."""
    paths = list(dict(paths).items())
    template["volumes"] = [{"name": f"path-{number}", "hostPath": {"path": path}} for number, (path, _) in enumerate(paths)]
    template["containers"][0]["volumeMounts"] = [
        {"name": f"path-{number}", "mountPath": path, "readOnly": read_only} for number, (path, read_only) in enumerate(paths)
    ]


class Namespace:
    """A namespace, gone again when it is deleted."""

    def __init__(self, name):
        self.name = name
        subprocess.run(["kubectl", "delete", "namespace", name, "--ignore-not-found"], check=True, capture_output=True)
        subprocess.run(["kubectl", "create", "namespace", name], check=True, capture_output=True)
        atexit.register(self.delete)

    def kubectl(self, *arguments, text=None):
        command = ["kubectl", "--namespace", self.name, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def example_data(self):
        """The ConfigMap of the digits."""
        example = REPOSITORY / "examples/digits.yaml"
        parsed = subprocess.run(
            ["kubectl", "create", "--dry-run=client", "--output=json", "-f", example], capture_output=True, text=True, check=True
        )
        decoder, text, found = json.JSONDecoder(), parsed.stdout.strip(), []
        while text:
            item, end = decoder.raw_decode(text)
            found, text = [*found, item], text[end:].strip()
        return [strip(item) for item in found if item["kind"] == "ConfigMap"]

    def process(self, pod):
        """A pod's first process as a pid of this machine."""
        command = [REPOSITORY / "tests/cluster/cluster", "pid", self.name, pod]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def logs(self):
        """Log files of the namespace's containers; the first node's are apart from the others'."""
        below = f"podlogs/{self.name}_*/*/*.log"
        return [*STATE.glob(below), *STATE.glob(f"node*/{below}")]

    def describe(self, job):
        """What a person would look at."""
        return self.kubectl("describe", "trainingjob", job) + self.kubectl("get", "pods", "--output=wide")

    def delete(self):
        atexit.unregister(self.delete)
        subprocess.run(["kubectl", "delete", "namespace", self.name, "--wait"], check=True, capture_output=True)


def strip(item):
    """An object for another namespace."""
    item["metadata"] = {"name": item["metadata"]["name"]}
    return item
