"""What the machine has: the GPU, and the libraries of the PyTorch that is installed."""
import dataclasses
import os
import pathlib
import subprocess
import sys


def settings(bundle):
    """What the agent gives to each process, as `roundhouse-agent environment` prints it: in this check there is no agent. Without
    it PyTorch's watchdog ends the survivors of a lost peer, a minute after it has seen the error."""
    lines = (bundle / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@dataclasses.dataclass
class Machine:
    device: str
    words: str
    """For the table."""
    library_path: str
    settings: dict = dataclasses.field(default_factory=dict)
    """What the agent gives to each process; the user's values count."""
    extra: dict = dataclasses.field(default_factory=dict)
    """More variables of the workers' processes."""

    def variables(self, node):
        """What a worker's process needs here."""
        own = {"LD_LIBRARY_PATH": self.library_path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        if self.device == "cpu":
            return own | {"CUDA_VISIBLE_DEVICES": "", "ROUNDHOUSE_EXPECTED_DEVICE": "cpu"} | self.extra
        # Two ranks of one host must not share a GPU, so each worker is a host of its own.
        own |= {name: value for name, value in self.settings.items() if name not in os.environ}
        return own | {"NCCL_HOSTID": f"worker-{node}", "ROUNDHOUSE_EXPECTED_DEVICE": "cuda*1"} | self.extra


def memory_in_use():
    """Of the first GPU, in MiB, by all processes and libraries."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def look(device, bundle):
    import torch

    site = pathlib.Path(torch.__file__).resolve().parent.parent
    libraries = [site / "torch" / "lib", *sorted(site.glob("nvidia/*/lib"))]
    path = ":".join(map(str, libraries))
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        path += f":{inherited}"
    words = f"PyTorch {torch.__version__}"
    if not torch.__version__.startswith("2.11."):
        print(f"warning: the trainer is built for libtorch 2.11, and this is {torch.__version__}", file=sys.stderr)
    if device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("error: PyTorch sees no GPU here; --device cpu runs the parts over Gloo")
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        words = f"{torch.cuda.get_device_name(0)}, driver {driver}, {words}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    else:
        words = f"{os.cpu_count()} CPU cores, {words}, Gloo"
    return Machine(device, words, path, settings(bundle) if device == "cuda" else {})
