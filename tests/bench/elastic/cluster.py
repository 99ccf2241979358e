"""The local cluster, on which Roundhouse is installed: kubectl, and the pods' processes and logs on
this machine."""
import atexit
import json
import os
import pathlib
import shutil
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
STATE = REPOSITORY / "target/cluster/state"


def shared_directory(name):
    """Creates an empty directory that all nodes mount and any user may write to."""
    shared = STATE / "volumes" / name
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    os.chmod(shared, 0o777)
    return shared


# An image with Python and PyTorch would have 5 GB. The pods mount those of this machine instead.
SYSTEM = ["/usr", "/lib", "/lib64"]


def of_python(python):
    """The directories that an interpreter needs. A virtual environment links to the Python that
    created it."""
    return [*SYSTEM, str(python.parents[1]), str(python.resolve().parents[1])]


def mount(template, paths):
    """Mounts directories of the node at the same paths in the pod's only container. `paths`: (path,
    read-only)."""
    paths = list(dict(paths).items())
    template["volumes"] = [{"name": f"path-{number}", "hostPath": {"path": path}} for number, (path, _) in enumerate(paths)]
    template["containers"][0]["volumeMounts"] = [
        {"name": f"path-{number}", "mountPath": path, "readOnly": read_only} for number, (path, read_only) in enumerate(paths)
    ]


class Namespace:
    """A namespace for one run. It is deleted when the program ends."""

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
        """The ConfigMap of the digits, from examples/digits.yaml."""
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
        """The process id, on this machine, of a pod's main process."""
        command = [REPOSITORY / "tests/cluster/cluster", "pid", self.name, pod]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def logs(self):
        """The log files of the namespace's containers. The first node has another directory than
        the others."""
        below = f"podlogs/{self.name}_*/*/*.log"
        return [*STATE.glob(below), *STATE.glob(f"node*/{below}")]

    def describe(self, job):
        """The job and the pods, for an error message."""
        return self.kubectl("describe", "trainingjob", job) + self.kubectl("get", "pods", "--output=wide")

    def delete(self):
        atexit.unregister(self.delete)
        subprocess.run(["kubectl", "delete", "namespace", self.name, "--wait"], check=True, capture_output=True)


def strip(item):
    """The object with its name as the only metadata, so that it can be applied to another
    namespace."""
    item["metadata"] = {"name": item["metadata"]["name"]}
    return item
