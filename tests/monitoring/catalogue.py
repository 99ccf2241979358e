"""The metrics that there are, read from the code that registers them, and the metrics that a PromQL expression uses."""

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# What a process of Linux tells of itself, with the names that all Prometheus clients use.
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
# Metrics that dashboards and alerts may use before the code registers them.
PLANNED = PROCESS | {
    "roundhouse_operator_queue_depth",
    "roundhouse_operator_queue_wait_seconds",
    "roundhouse_operator_api_call_seconds",
    "roundhouse_operator_watch_restarts_total",
    "roundhouse_operator_leader",
    "roundhouse_jobs",
    "roundhouse_job_lobby_seconds",
    "roundhouse_job_start_seconds",
    "roundhouse_job_recover_seconds",
    "roundhouse_job_incidents_total",
    "roundhouse_job_node_avoided_total",
    "roundhouse_job_workers",
    "roundhouse_job_gpus",
    "roundhouse_job_gpu_held_seconds_total",
    "roundhouse_job_gpu_training_seconds_total",
    "roundhouse_train_checkpoint_timestamp_seconds",
}
KEYWORDS = {
    "and",
    "or",
    "unless",
    "bool",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "inf",
    "nan",
}


def _code(*patterns):
    """Rust sources without their tests."""
    for pattern in patterns:
        for path in sorted(REPOSITORY.glob(pattern)):
            yield path.read_text().split("#[cfg(test)]")[0]


def registered():
    """Names that the operator, the agent and the trainer register."""
    names = set()
    for text in _code("operator/src/**/*.rs", "trainer-image/agent/src/metrics.rs"):
        names |= set(re.findall(r'"((?:roundhouse|process)_[a-z0-9_]+)"', text))
    for text in _code("trainer-image/member/src/report/metrics.rs", "trainer-image/member/src/report/metrics/*.rs"):
        names |= set(re.findall(r'"(roundhouse_train_[a-z0-9_]+)"', text))
        calls = r'\b(?:gauge|int_gauge|int_counter|counter|histogram|unregistered)\(\s*(?:&?registry,\s*)?"([a-z0-9_]+)"'
        names |= {f"roundhouse_train_{name}" for name in re.findall(calls, text)}
    return names


def recorded():
    """Names in the recorded exposition of a GPU node."""
    text = (REPOSITORY / "tests/monitoring/gpu-node.prom").read_text()
    return {line.split("{")[0] for line in text.splitlines() if line and not line.startswith("#")}


def known():
    """Every name that a query may use, but for the suffixes of histograms."""
    return registered() | PLANNED | recorded()


def family(name, names):
    """The metric that a name belongs to, without the suffix of a histogram; None if there is none."""
    for one in (name, re.sub(r"_(bucket|sum|count)$", "", name)):
        if one in names:
            return one
    return None


def used(expr):
    """Names of the metrics in a PromQL expression."""
    expr = re.sub(r'"(\\.|[^"\\])*"', '""', expr)
    expr = re.sub(r"(?m)#.*$", "", expr)
    expr = re.sub(r"\{[^}]*\}", " ", expr)
    expr = re.sub(r"\[[^\]]*\]", " ", expr)
    expr = re.sub(r"\boffset\s+\S+", " ", expr)
    expr = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expr)
    words = re.findall(r"(?<![\w$.])([a-zA-Z_:][\w:]*)(?!\w)(?!\s*\()", expr)
    return {word for word in words if word not in KEYWORDS}
