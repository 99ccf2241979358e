"""Detects the GPU of the machine and the libraries of the installed PyTorch."""
import dataclasses
import os
import pathlib
import subprocess
import sys


def settings(bundle):
    """The environment that the agent gives to each process, as `roundhouse-agent environment`
    prints it. No agent runs in this check. Without this environment, PyTorch's watchdog ends the
    survivors of a lost peer a minute after the error."""
    lines = (bundle / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@dataclasses.dataclass
class Machine:
    device: str
    description: str
    """The first line of the table: device, driver, PyTorch."""
    library_path: str
    settings: dict = dataclasses.field(default_factory=dict)
    """The environment from the agent. Variables of the user take precedence."""
    extra: dict = dataclasses.field(default_factory=dict)
    """Additional environment variables of the workers' processes."""

    def variables(self, node):
        """The environment of a worker's process on this machine."""
        own = {"LD_LIBRARY_PATH": self.library_path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        if self.device == "cpu":
            return own | {"CUDA_VISIBLE_DEVICES": "", "ROUNDHOUSE_EXPECTED_DEVICE": "cpu"} | self.extra
        # NCCL refuses two ranks of one host on a GPU, so each worker pretends to be another host.
        own |= {name: value for name, value in self.settings.items() if name not in os.environ}
        return own | {"NCCL_HOSTID": f"worker-{node}", "ROUNDHOUSE_EXPECTED_DEVICE": "cuda*1"} | self.extra


def memory_in_use():
    """The memory of the first GPU in MiB that all processes and libraries use."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def detect(device, bundle):
    import torch

    site = pathlib.Path(torch.__file__).resolve().parent.parent
    libraries = [site / "torch" / "lib", *sorted(site.glob("nvidia/*/lib"))]
    path = ":".join(map(str, libraries))
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        path += f":{inherited}"
    description = f"PyTorch {torch.__version__}"
    if not torch.__version__.startswith("2.11."):
        print(f"warning: the trainer is built for libtorch 2.11, and this is {torch.__version__}", file=sys.stderr)
    if device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("error: PyTorch sees no GPU here; --device cpu runs the parts over Gloo")
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        description = f"{torch.cuda.get_device_name(0)}, driver {driver}, {description}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    else:
        description = f"{os.cpu_count()} CPU cores, {description}, Gloo"
    return Machine(device, description, path, settings(bundle) if device == "cuda" else {})
