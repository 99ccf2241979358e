//! Workers and events of a run as Kubernetes objects. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Event, ObjectReference, Pod, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_planner::{EventType, PodPhase, Termination};

pub(super) fn pod(worker: &roundhouse_planner::Pod, namespace: &str) -> Pod {
    let index = worker.index.unwrap_or(0).to_string();
    let own = [
        (labels::WORKER_INDEX, index),
        (labels::ATTEMPT, worker.attempt.to_string()),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let document = worker.membership.as_ref().and_then(|it| it.to_json().ok());
    let annotations = document.map(|text| [(labels::MEMBERSHIP.to_owned(), text)].into());
    let phase = match worker.phase {
        PodPhase::Pending => "Pending",
        PodPhase::Running => "Running",
        PodPhase::Succeeded => "Succeeded",
        PodPhase::Failed => "Failed",
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(worker.name.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(worker.uid.clone()),
            labels: Some(own.into()),
            annotations,
            creation_timestamp: worker.created_at.map(Time),
            deletion_timestamp: worker.gone_by.map(Time),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: Some(PodStatus {
            phase: Some(phase.to_owned()),
            container_statuses: Some(vec![container(worker)]),
            ..PodStatus::default()
        }),
    }
}

fn container(worker: &roundhouse_planner::Pod) -> ContainerStatus {
    let roundhouse_planner::Container {
        restarts,
        waiting,
        started_at,
        termination,
    } = &worker.container;
    let end = termination.as_ref().map(|end| ContainerState {
        terminated: Some(terminated(end)),
        ..ContainerState::default()
    });
    let has_ended = termination
        .as_ref()
        .is_some_and(|end| end.restarts == *restarts);
    let (state, last_state) = match waiting {
        Some(waiting) => {
            let waiting = ContainerStateWaiting {
                reason: Some(waiting.reason.clone()),
                message: Some(waiting.message.clone()),
            };
            let state = ContainerState {
                waiting: Some(waiting),
                ..ContainerState::default()
            };
            (Some(state), end)
        }
        None if has_ended => (end, None),
        None => {
            let running = ContainerStateRunning {
                started_at: started_at.map(Time),
            };
            let state = ContainerState {
                running: Some(running),
                ..ContainerState::default()
            };
            (Some(state), end)
        }
    };
    ContainerStatus {
        name: labels::TRAINER_CONTAINER.to_owned(),
        ready: worker.ready,
        restart_count: i32::try_from(*restarts).unwrap_or(i32::MAX),
        state,
        last_state,
        ..ContainerStatus::default()
    }
}

fn terminated(end: &Termination) -> ContainerStateTerminated {
    let message = end.message.as_ref().and_then(|it| it.to_json().ok());
    ContainerStateTerminated {
        exit_code: end.exit_code,
        reason: Some(end.reason.clone()),
        message,
        finished_at: end.finished_at.map(Time),
        ..ContainerStateTerminated::default()
    }
}

/// An Event about the job, from the planner's event.
pub(super) fn event(
    job: &TrainingJob,
    planned: &roundhouse_planner::Event,
    at: Timestamp,
) -> Event {
    let kind = match planned.kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    Event {
        involved_object: ObjectReference {
            kind: Some("TrainingJob".to_owned()),
            name: Some(job.name_any()),
            namespace: job.namespace(),
            ..ObjectReference::default()
        },
        last_timestamp: Some(Time(at)),
        message: Some(planned.message.clone()),
        reason: Some(planned.reason.clone()),
        type_: Some(kind.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_planner::{Container, Waiting};

    use super::*;
    use crate::facts::worker::Worker;

    fn worker(waits: bool, ended: Option<u32>) -> Worker {
        let termination = ended.map(|restarts| Termination {
            restarts,
            exit_code: 137,
            reason: "Error".to_owned(),
            message: None,
            finished_at: None,
        });
        let waiting = waits.then(|| Waiting {
            reason: "CrashLoopBackOff".to_owned(),
            message: String::new(),
        });
        let worker = roundhouse_planner::Pod {
            name: "digits-worker-3-1".to_owned(),
            index: Some(3),
            attempt: 1,
            phase: PodPhase::Running,
            container: Container {
                restarts: 2,
                started_at: None,
                waiting,
                termination,
            },
            ..roundhouse_planner::Pod::default()
        };
        Worker::of(&pod(&worker, "ml"))
    }

    #[test]
    fn worker_reads_back_from_its_pod() {
        let runs = worker(false, None);
        assert_eq!((runs.index, runs.attempt, runs.restarts), (3, 1, 2));
        assert!(runs.is_running && runs.end.is_none());
        // The container ended once and runs again.
        let again = worker(false, Some(1));
        assert!(again.is_running);
        assert_eq!(again.end.unwrap().code, 137);
        // The container has ended, with and without a back-off before the restart.
        let ended = worker(false, Some(2));
        assert!(!ended.is_running && ended.end.is_some());
        let waits = worker(true, Some(2));
        assert!(!waits.is_running && waits.end.is_some());
        assert_eq!(waits.waiting.unwrap().0, "CrashLoopBackOff");
    }
}
