"""Posts progress as a training loop of Transformers does.

The requests are those of KubeflowCallback in Transformers 5.24.0
(src/transformers/integrations/integration_utils.py): urllib.request with a body from json.dumps,
the headers Authorization and Content-Type, the token without white space around it, 5 s for an
answer, and metrics as a list of names and strings.

    post.py train FIRST LAST TOTAL   posts a begin, each step from FIRST to LAST, and an end after TOTAL
    post.py step STEP                posts one step of 40
    post.py end                      posts an end
    post.py raw BODY [TOKEN]         posts these bytes; prints the status
"""

import json
import os
import sys
import urllib.error
import urllib.request
from datetime import datetime, timezone

TOKEN = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"], encoding="utf-8").read().strip()


def send(body, token):
    request = urllib.request.Request(
        os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
        data=body,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=5, context=None) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        # A server may close the connection before it has read a large body.
        return type(error).__name__


def post(percent, seconds_left, metrics):
    status = {"lastUpdatedTime": datetime.now(timezone.utc).isoformat(), "progressPercentage": percent}
    if seconds_left is not None:
        status["estimatedRemainingSeconds"] = seconds_left
    if metrics:
        status["metrics"] = [{"name": str(name), "value": str(value)} for name, value in metrics.items()]
    assert send(json.dumps({"trainerStatus": status}).encode("utf-8"), TOKEN) == 200


def step(number, total):
    logged = {"loss": 1 / number, "grad_norm": 1.5, "learning_rate": 5e-05, "epoch": number / 10}
    counters = {"current_step": number, "total_steps": total, "current_epoch": round(number / 10, 2)}
    post(min(int(number / total * 100), 99), total - number, {**logged, **counters})


def train(first, last, total):
    post(0, None, {"total_steps": total})
    for number in range(first, last + 1):
        step(number, total)
    if last == total:
        end(last)


def end(last):
    post(100, 0, {"loss": 1 / last, "train_loss": 0.75, "train_samples_per_second": 17.5, "epoch": last / 10})


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "train":
        train(*map(int, rest))
    elif what == "end":
        end(30)
    elif what == "step":
        step(int(rest[0]), 40)
    else:
        body, *token = rest
        print("status", send(body.encode("utf-8"), *token or [TOKEN]), flush=True)
