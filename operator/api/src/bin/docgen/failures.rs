//! The failure handbook.

use roundhouse_api::failures::{self, FailureReason, Source};
use roundhouse_api::{ConditionReason, EventReason, FailureAction};

use crate::table::{MARK, code, table};

const HEAD: &str = "# Failure handbook

Start with the STATE column:

```sh
kubectl get tj NAME
```

STATE is `status.state`: the reason of the condition that matters most now. `kubectl get tj NAME -o wide` shows its message, which names
the pod, the node or the field. Look the reason up in the first table. `status.lastFailure` has the newest failure of a worker: look its
reason up in [the second table](#failures-of-workers).

## States and conditions

";

const EVENTS: &str = "
## Events

`kubectl describe tj NAME` ends with the newest events of the job.

";

const FAILURES: &str = "
## Failures of workers

`kubectl get tj NAME -o jsonpath='{.status.lastFailure}'` shows the newest failure: its time, pod, rank, node, reason, exit code,
the last committed step, and a message. *From* says who gave the reason: the trainer or its agent, the operator, or Kubernetes
for the container or for the pod.

";

const COSTS: &str = "
Kubernetes has more reasons than these, and `status.lastFailure` shows each as it is. A pod that its node refused before a container
ran costs nothing.

## What a failure costs

The first rule of `failurePolicy.rules` that matches decides. If none matches, the column *by default* holds:

| action | what happens |
|---|---|
| `FailJob` | the job fails at once |
| `Count` | it is an incident; the worker comes back where it was |
| `ReplaceAndAvoidNode` | it is an incident; the worker comes back on another node, and for `avoidNodeSeconds` no new pod of the job is placed on the old one |
| `Ignore` | it costs nothing; the worker comes back |

More than `backoffLimit` incidents in a row without a new step fail the job. So do more than `maxIncidents` incidents in total, if you
set that limit. More than `maxReplacements` pods that take the place of others without a new step fail the job, whatever the cause; the
default is 10 for each pod, at least 100. Several workers that fail before the next generation trains are one incident.
A worker that fails before it trains, also with exit code 64 or 65, fails the job only if the job has not trained yet or too few other
workers are left. Else the event `WorkerLeftOut` and `status.workers.leftOut` name it. A rule of the job with `FailJob` fails the job, whichever worker it is. In restart mode
the script of a new worker starts with its first generation, so its failures are those of a member.

## Trouble with checkpoints

While a job trains, the message of its condition may say `trouble with checkpoints`, with the path and the cause: the volume is full,
read-only, slow or gone. Training continues without saving. Repair the volume; you do not have to restart anything. A volume needs room
for `checkpoint.keep` checkpoints and one more; with `checkpoint.best`, for two more. `status.checkpoint` has the step and time of the
newest checkpoint, and the error. `status.checkpoint.localError` says why local copies are not written or not stored in another pod: a pod of the replica or the spare that holds copies does not answer, `checkpoint.local.sizeLimit` is too
small, or the disk of a node is full.

## Steps that were repeated

A committed step is lost if all processes that have its state are lost before a checkpoint holds it. Training then continues from the newest
state that is left, and repeats the steps after it. `status.progress.repeatedSteps` counts them, `status.progress.lastRepeat` and the event
`StepsRepeated` have the newest ones and the state that training continued from, and the alert `RoundhouseStepsRepeated` fires.
`roundhouse-train audit` names all of them. The result of training is not affected: each sample still counts once per epoch. To lose fewer
steps, set `checkpoint.local` (with `peerCopies` against the loss of nodes), lower `checkpoint.everySeconds`, and spread the workers over nodes or zones. Without `spec.checkpoint` there is no ledger, and
nothing is counted.
";

/// The words for what a failure costs by default.
pub(crate) const fn cost(action: Option<FailureAction>) -> &'static str {
    match action {
        None => "success",
        Some(FailureAction::FailJob) => "`FailJob`",
        Some(FailureAction::Ignore) => "`Ignore`",
        Some(FailureAction::Count) => "`Count`",
        Some(FailureAction::ReplaceAndAvoidNode) => "`ReplaceAndAvoidNode`",
    }
}

const fn from(source: Source) -> &'static str {
    match source {
        Source::Trainer => "trainer",
        Source::Operator => "operator",
        Source::Container => "container",
        Source::Pod => "pod",
    }
}

pub(crate) fn page() -> String {
    let states = ConditionReason::ALL.iter().map(|reason| {
        let conditions = reason.conditions().iter();
        let conditions = conditions.map(|(kind, is_true)| {
            let status = if *is_true { "True" } else { "False" };
            code(format!("{}={status}", kind.as_str()))
        });
        [
            code(reason.as_str()),
            conditions.collect::<Vec<_>>().join(", "),
            reason.meaning().to_owned(),
            reason.advice().to_owned(),
        ]
    });
    let states = table(
        ["reason", "conditions", "what it means", "what to do"],
        states,
    );
    let workers = failures::all().map(|entry| {
        let FailureReason {
            name,
            source,
            action,
            meaning,
            advice,
        } = entry;
        [
            code(name),
            from(source).to_owned(),
            meaning.to_owned(),
            advice.to_owned(),
            cost(action).to_owned(),
        ]
    });
    let titles = [
        "reason",
        "from",
        "what it means",
        "what to do",
        "by default",
    ];
    let workers = table(titles, workers);
    let events = EventReason::ALL.map(|reason| {
        let kind = if reason.is_warning() {
            "Warning"
        } else {
            "Normal"
        };
        [
            code(reason.as_str()),
            kind.to_owned(),
            reason.meaning().to_owned(),
        ]
    });
    let events = table(["reason", "type", "what it means"], events);
    format!("{MARK}{HEAD}{states}{FAILURES}{workers}{COSTS}{EVENTS}{events}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_row() {
        let page = page();
        let states = ConditionReason::ALL.iter().map(|reason| reason.as_str());
        let events = EventReason::ALL.map(EventReason::as_str);
        let failures = failures::all().map(|entry| entry.name);
        for name in states.chain(failures).chain(events) {
            assert!(page.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }
}
