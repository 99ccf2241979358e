use kube::core::Status;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

use super::*;

fn slow_writes() -> (SlowWrites, Receiver<Wake>) {
    let (wake, wakes) = channel(8);
    (SlowWrites::new(wake), wakes)
}

fn job() -> JobKey {
    JobKey::new("ml", "uid")
}

fn wake() -> JobName {
    JobName::new("ml", "digits")
}

fn write(action: &'static str, pod: &str) -> Write {
    Write {
        job: job(),
        action,
        creates: false,
        object: Written::Pod(pod.to_owned()),
        content_version: 0,
    }
}

/// Creates the Service of the job; the API server answers after so many seconds.
async fn create(writes: &SlowWrites, seconds: u64, answer: Answer) -> Answer {
    let creation = |_| async move {
        sleep(Duration::from_secs(seconds)).await;
        answer
    };
    let service = Write {
        creates: true,
        object: Written::Service,
        ..write("CreateService", "")
    };
    writes.run(service, wake(), creation).await
}

fn refused() -> Answer {
    let status = Status::failure("no", "Forbidden").with_code(403);
    Err(CallError::Kube(kube::Error::Api(status.boxed())))
}

#[tokio::test(start_paused = true)]
async fn immediate_answer_is_returned_without_a_wake() {
    let (writes, mut wakes) = slow_writes();
    assert!(create(&writes, 0, Ok(())).await.is_ok());
    let error = create(&writes, 0, refused()).await.unwrap_err();
    assert_eq!(error.code(), Some(403));
    assert!(wakes.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn slow_creation_returns_early_and_runs_once() {
    let (writes, mut wakes) = slow_writes();
    let begun = Instant::now();
    for _ in 0..3 {
        let error = create(&writes, 20, refused()).await.unwrap_err();
        assert!(matches!(error, CallError::Pending(_)), "{error}");
    }
    assert!(begun.elapsed() < PATIENCE * 2, "only the first waits");
    wakes.recv().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(20));
    let error = create(&writes, 0, Ok(())).await.unwrap_err();
    assert_eq!(error.code(), Some(403), "its result is taken");
    assert!(
        create(&writes, 0, Ok(())).await.is_ok(),
        "and then it is tried again"
    );
}

#[tokio::test(start_paused = true)]
async fn slow_successful_creation_allows_parallel_creations() {
    let (writes, mut wakes) = slow_writes();
    let is_sure = |action| writes.is_slow_and_sure(&job(), action);
    for (answer, expected) in [(refused(), false), (Ok(()), true)] {
        create(&writes, 20, answer).await.unwrap_err();
        assert!(!is_sure("CreateService"), "it is under way");
        wakes.recv().await.unwrap();
        assert_eq!(is_sure("CreateService"), expected);
        let _ = create(&writes, 0, Ok(())).await;
    }
    assert!(!is_sure("CreateWorker"), "a quota may refuse these");
}

#[tokio::test(start_paused = true)]
async fn slowly_created_and_deleted_object_is_created_again() {
    let (writes, mut wakes) = slow_writes();
    create(&writes, 1, Ok(())).await.unwrap_err();
    wakes.recv().await.unwrap();
    let begun = Instant::now();
    let error = create(&writes, 1, Ok(())).await.unwrap_err();
    assert!(matches!(error, CallError::Pending(_)), "{error}");
    wakes.recv().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn changes_get_more_time_after_a_timeout_of_their_kind() {
    let (writes, mut wakes) = slow_writes();
    let change = async |action, pod: &str| {
        let slow = |deadline: Duration| async move {
            let webhook = sleep(Duration::from_secs(10));
            let answered = timeout(deadline, webhook).await;
            answered.map_err(|_| CallError::Deadline(deadline))
        };
        writes.run(write(action, pod), wake(), slow).await
    };
    let mut took = Vec::new();
    for (action, pod) in [
        ("IssueMembership", "digits-0"),
        ("IssueMembership", "digits-1"),
        ("DeletePod", "digits-0"),
    ] {
        let begun = Instant::now();
        let error = change(action, pod).await.unwrap_err();
        assert!(matches!(error, CallError::Pending(_)), "{error}");
        wakes.recv().await.unwrap();
        took.push(begun.elapsed().as_secs());
    }
    assert_eq!(took, [5, 10, 5]);
    let error = change("DeletePod", "digits-0").await.unwrap_err();
    let begins = matches!(error, CallError::Pending(time) if time == PATIENCE);
    assert!(begins, "it is tried again at once: {error}");
}

#[tokio::test(start_paused = true)]
async fn write_without_reconcile_ends_with_the_operator() {
    let (writes, mut wakes) = slow_writes();
    let reconcile = create(&writes, 20, Ok(()));
    assert!(timeout(PATIENCE / 2, reconcile).await.is_err());
    writes.stop();
    sleep(Duration::from_secs(30)).await;
    assert!(wakes.try_recv().is_err());
    assert!(create(&writes, 0, Ok(())).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn failed_writes_of_one_kind_report_one_error_and_retry() {
    let (writes, mut wakes) = slow_writes();
    let change = async |pod: u32, seconds, answer| {
        let slow = |_| async move {
            sleep(Duration::from_secs(seconds)).await;
            answer
        };
        let deletion = write("DeletePod", &pod.to_string());
        writes.run(deletion, wake(), slow).await
    };
    for pod in 0..3 {
        change(pod, 5, refused()).await.unwrap_err();
    }
    for _ in 0..3 {
        wakes.recv().await.unwrap();
    }
    assert_eq!(change(1, 0, Ok(())).await.unwrap_err().code(), Some(403));
    for pod in 0..3 {
        assert!(change(pod, 0, Ok(())).await.is_ok(), "{pod}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_a_slow_change_is_not_that_of_another_content() {
    let (writes, mut wakes) = slow_writes();
    let written = std::sync::Mutex::new(Vec::new());
    let change = async |generation, seconds| {
        let slow = |_| {
            written.lock().unwrap().push(generation);
            async move {
                sleep(Duration::from_secs(seconds)).await;
                if generation == 2 { refused() } else { Ok(()) }
            }
        };
        let issue = Write {
            content_version: generation,
            ..write("IssueMembership", "digits-0")
        };
        writes.run(issue, wake(), slow).await
    };
    change(2, 3).await.unwrap_err();
    wakes.recv().await.unwrap();
    // No reconcile has taken it.
    assert!(change(3, 0).await.is_ok());
    assert_eq!(*written.lock().unwrap(), [2, 3]);
}
