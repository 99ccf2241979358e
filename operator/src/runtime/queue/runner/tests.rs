use std::sync::{Arc, Mutex};

use futures::stream::iter;
use tokio::sync::mpsc::channel;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;

use super::*;

fn job(name: &str) -> JobName {
    JobName::new("ml", name)
}

/// Names of jobs, and when each of their reconciles began, in milliseconds.
type Log = Arc<Mutex<Vec<(String, u128)>>>;

/// The reconciles of these jobs within ten seconds. Each takes 100 ms and asks for another one
/// after `again`.
async fn happens(
    num_slots: usize,
    wakes: &[(&'static str, Lane)],
    again: Option<Duration>,
) -> Vec<(String, u128)> {
    let (log, begun) = (Log::default(), Instant::now());
    let steps = Arc::clone(&log);
    let wakes: Vec<_> = wakes
        .iter()
        .map(|(name, lane)| (job(name), *lane))
        .collect();
    let work = move |job: JobName| {
        steps
            .lock()
            .unwrap()
            .push((job.name, begun.elapsed().as_millis()));
        async move {
            sleep(Duration::from_millis(100)).await;
            again
        }
    };
    // All jobs wait before the first one begins.
    let ready = sleep(Duration::from_millis(1));
    let stop = sleep(Duration::from_secs(10));
    dispatch(num_slots, iter(wakes), ready, stop, |_| Lane::Rest, work).await;
    Arc::try_unwrap(log).unwrap().into_inner().unwrap()
}

fn names(log: &[(String, u128)]) -> Vec<&str> {
    log.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_get_the_slots_in_the_order_of_their_lanes() {
    let wakes = [
        ("progress", Lane::Rest),
        ("new", Lane::New),
        ("incident", Lane::Incident),
    ];
    let log = happens(1, &wakes, None).await;
    assert_eq!(names(&log), ["incident", "new", "progress"]);
    let starts: Vec<u128> = log.iter().map(|(_, at)| at / 100).collect();
    assert_eq!(starts, [0, 1, 2], "one after the other");
}

#[tokio::test(start_paused = true)]
async fn requeued_job_waits_for_its_delay_and_then_for_a_slot() {
    let log = happens(1, &[("digits", Lane::New)], Some(Duration::from_secs(4))).await;
    let starts: Vec<u128> = log.iter().map(|(_, at)| at / 100).collect();
    assert_eq!(starts, [0, 41, 82]);
    let both = [("a", Lane::New), ("b", Lane::New)];
    let log = happens(1, &both, Some(Duration::ZERO)).await;
    let (first, second) = (
        log.iter().filter(|(name, _)| name == "a").count(),
        log.len(),
    );
    assert!(first.abs_diff(second - first) <= 1, "by turns");
}

#[tokio::test(start_paused = true)]
async fn event_replaces_the_timer_of_its_job() {
    let (wake, wakes) = channel(8);
    let log = Log::default();
    let (steps, begun) = (Arc::clone(&log), Instant::now());
    let work = move |job: JobName| {
        steps
            .lock()
            .unwrap()
            .push((job.name, begun.elapsed().as_millis()));
        async { Some(Duration::from_secs(4)) }
    };
    tokio::spawn(async move {
        for _ in 0..2 {
            wake.send((job("digits"), Lane::Rest)).await.unwrap();
            sleep(Duration::from_secs(3)).await;
        }
        sleep(Duration::from_mins(1)).await;
    });
    let (wakes, stop) = (ReceiverStream::new(wakes), sleep(Duration::from_secs(8)));
    dispatch(2, wakes, async {}, stop, |_| Lane::Rest, work).await;
    let starts: Vec<u128> = log
        .lock()
        .unwrap()
        .iter()
        .map(|(_, at)| at / 1_000)
        .collect();
    assert_eq!(starts, [0, 3, 7], "not in second 4");
}

#[tokio::test(start_paused = true)]
async fn stop_lets_running_steps_end_and_starts_none() {
    let begun = Instant::now();
    let (ended, end) = oneshot::channel();
    let ended = Arc::new(Mutex::new(Some(ended)));
    let work = move |_| {
        let ended = ended.lock().unwrap().take();
        async move {
            sleep(Duration::from_secs(3)).await;
            ended.unwrap().send(()).unwrap();
            Some(Duration::ZERO)
        }
    };
    let wakes = iter([(job("a"), Lane::New), (job("b"), Lane::New)]);
    let stop = sleep(Duration::from_secs(1));
    dispatch(1, wakes, async {}, stop, |_| Lane::Rest, work).await;
    end.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_step_does_not_delay_other_steps() {
    let (computes, computing) = std::sync::mpsc::channel::<()>();
    let computing = Arc::new(Mutex::new(computing));
    let (done, is_done) = oneshot::channel();
    let done = Arc::new(Mutex::new(Some(done)));
    let work = move |JobName { name, .. }: JobName| {
        let (computes, computing) = (computes.clone(), Arc::clone(&computing));
        let done = Arc::clone(&done);
        async move {
            if name == "large" {
                // The reconcile blocks its thread until the other one has ended.
                computing.lock().unwrap().recv().unwrap();
                done.lock().unwrap().take().unwrap().send(()).unwrap();
            } else {
                computes.send(()).unwrap();
            }
            None
        }
    };
    let wakes = iter([(job("large"), Lane::Incident), (job("small"), Lane::New)]);
    let stop = async {
        is_done.await.unwrap();
    };
    dispatch(2, wakes, async {}, stop, |_| Lane::Rest, work).await;
}
