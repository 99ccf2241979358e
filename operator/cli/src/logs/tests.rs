//! Follows 64 ranks while streams break, containers restart and pods are replaced.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};

use super::follow::follow;
use super::line::Speaker;
use super::merge::merge;
use super::{Begin, Lines, Listing, Part, Source, Target};

const WORKERS: u32 = 64;
/// Number of lines of each container.
const LINES: usize = 40;
/// Number of lines after which a stream breaks.
const BREAKS_AFTER: usize = 7;

struct Container {
    lines: Vec<String>,
}

/// A pod: its containers, and the number of written lines of the last one.
struct Pod {
    target: Target,
    containers: Vec<Container>,
    num_written: usize,
    /// Number of its first container, from which the times of its lines follow.
    first_life: usize,
    /// Number of containers whose log was opened while they were the last one.
    num_opened: usize,
}

/// A cluster that advances with each list of its pods.
struct Fake {
    pods: RefCell<Vec<Pod>>,
}

/// A raw line with a time, in seconds and nanoseconds.
fn line(second: i64, nanos: i32, text: &str) -> String {
    let at = Timestamp::new(1_700_000_000 + second, nanos).unwrap();
    format!("{at} {text}")
}

/// A container whose first two lines come from the lobby and the others from a rank. Several lines
/// have the same time.
fn container(worker: u32, rank: u32, life: usize) -> Container {
    let second = i64::try_from(life).unwrap() * 30;
    let lines = (0..LINES).map(|n| {
        let at = second + i64::try_from(n / 8).unwrap();
        let text = match n {
            0 | 1 => format!("[worker {worker}.0] life {life} line {n}"),
            _ => format!("[rank {rank}] worker {worker} life {life} line {n}"),
        };
        line(at, i32::try_from(n % 8 / 2).unwrap() * 100, &text)
    });
    Container {
        lines: lines.collect(),
    }
}

fn pod(worker: u32, attempt: usize) -> Pod {
    Pod {
        target: Target {
            pod: format!("digits-worker-{worker}-{attempt}"),
            uid: format!("{worker}-{attempt}"),
            worker,
            restarts: 0,
            has_started: true,
            is_running: true,
        },
        containers: vec![container(worker, worker, attempt * 10)],
        num_written: 0,
        num_opened: 0,
        first_life: attempt * 10,
    }
}

impl Fake {
    fn new() -> Self {
        let pods = (0..WORKERS).map(|worker| pod(worker, 0)).collect();
        Self {
            pods: RefCell::new(pods),
        }
    }

    /// Lets containers write, end and restart; another pod replaces every fifth worker. A container
    /// restarts only after its log was opened, because Kubernetes keeps only one previous log.
    /// Returns true when all containers have ended.
    fn step(&self) -> bool {
        let mut new = Vec::new();
        for pod in self.pods.borrow_mut().iter_mut() {
            let (worker, lives) = (pod.target.worker, pod.containers.len());
            let length = pod.containers[lives - 1].lines.len();
            if pod.num_written < length {
                pod.num_written = (pod.num_written + 9).min(length);
            } else if pod.num_opened < lives {
                // The container waits until its log is opened.
            } else if worker % 3 == 0 && lives < 3 {
                // The container restarts before a list shows its end, and gets another rank.
                let rank = (worker + 1) % WORKERS;
                pod.containers
                    .push(container(worker, rank, pod.first_life + lives));
                pod.target.restarts += 1;
                pod.num_written = 9;
            } else if pod.target.is_running {
                pod.target.is_running = false;
                if worker % 5 == 0 && pod.target.uid.ends_with("-0") {
                    new.push(self::pod(worker, 1));
                }
            }
        }
        let mut pods = self.pods.borrow_mut();
        pods.extend(new);
        pods.iter().all(|pod| !pod.target.is_running)
    }

    /// The lines of each pod without their times.
    fn written(&self) -> BTreeMap<String, Vec<String>> {
        let pods = self.pods.borrow();
        let all = pods.iter().map(|pod| {
            let lines = pod.containers.iter().flat_map(|it| &it.lines);
            let texts = lines.map(|line| line.split_once(' ').unwrap().1.to_owned());
            (pod.target.pod.clone(), texts.collect())
        });
        all.collect()
    }
}

impl Source for Fake {
    async fn list(&self) -> anyhow::Result<Listing> {
        let is_over = self.step();
        let pods = self.pods.borrow();
        Ok(Listing {
            targets: pods.iter().map(|pod| pod.target.clone()).collect(),
            is_over,
        })
    }

    async fn open(&self, name: &str, part: Part) -> anyhow::Result<Lines> {
        let mut pods = self.pods.borrow_mut();
        let pod = pods.iter_mut().find(|pod| pod.target.pod == name).unwrap();
        let last = pod.containers.len() - 1;
        if !part.previous {
            pod.num_opened = last + 1;
        }
        let (at, num_written) = if part.previous {
            anyhow::ensure!(last > 0, "previous terminated container not found");
            (last - 1, usize::MAX)
        } else {
            (last, pod.num_written)
        };
        // The API server rounds `since` down to a whole second.
        let since = part
            .since
            .map(|it| Timestamp::from_second(it.as_second()).unwrap());
        let lines = pod.containers[at].lines.iter().take(num_written);
        let lines: Vec<String> = lines
            .filter(|line| {
                let at: Timestamp = line.split_once(' ').unwrap().0.parse().unwrap();
                since.is_none_or(|since| at >= since)
            })
            .cloned()
            .collect();
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let breaks = pod.target.is_running && !part.previous && lines.len() > BREAKS_AFTER;
        let cut = if breaks {
            lines.len() - lines.len() % BREAKS_AFTER
        } else {
            lines.len()
        };
        let lines = lines.into_iter().take(cut).map(Ok);
        let end = breaks.then_some(Err(broken));
        Ok(stream::iter(lines.chain(end)).boxed())
    }
}

#[tokio::test]
async fn sixty_four_ranks_lose_no_line() {
    let fake = Fake::new();
    let mut shown = BTreeMap::<String, Vec<String>>::new();
    let mut notes = Vec::new();
    let show = |line: &super::Line| {
        let text = match line.speaker {
            Speaker::Rank(rank) => format!("[rank {rank}] {}", line.text),
            Speaker::Process(worker, local) => format!("[worker {worker}.{local}] {}", line.text),
            Speaker::Agent(_) => panic!("{line:?}"),
        };
        shown.entry(line.pod.clone()).or_default().push(text);
        Ok(())
    };
    let note = |text: &str| notes.push(text.to_owned());
    let often = Duration::from_millis(1);
    follow(&fake, Begin::default(), often, show, note)
        .await
        .unwrap();
    let written = fake.written();
    // 64 workers, 13 of them replaced; every third container restarts twice.
    assert_eq!(written.len(), 77);
    let num_lines: usize = written.values().map(Vec::len).sum();
    assert!(num_lines > 77 * LINES, "{num_lines}");
    for (pod, lines) in &written {
        assert_eq!(shown.get(pod), Some(lines), "{pod}");
    }
    assert!(notes.is_empty(), "{notes:?}");
}

#[tokio::test]
async fn merged_logs_are_sorted_by_time() {
    let fake = Fake::new();
    for pod in fake.pods.borrow_mut().iter_mut() {
        pod.num_written = LINES;
        pod.target.is_running = false;
    }
    let mut shown = Vec::new();
    let show = |line: &super::Line| {
        shown.push((line.at, line.pod.clone(), line.text.clone()));
        Ok(())
    };
    merge(&fake, Begin::default(), false, show, |note| {
        panic!("{note}")
    })
    .await
    .unwrap();
    assert_eq!(shown.len(), WORKERS as usize * LINES);
    assert!(shown.is_sorted_by_key(|(at, ..)| *at));
    // Lines of one pod with the same time keep their order.
    let own: Vec<_> = shown
        .iter()
        .filter(|(_, pod, _)| pod == "digits-worker-9-0")
        .collect();
    let numbers = own
        .iter()
        .map(|(.., text)| text.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
    assert!(numbers.eq(0..LINES));
}

#[tokio::test]
async fn since_limits_the_lines_of_present_pods() {
    let fake = Fake::new();
    let since = Timestamp::from_second(1_700_000_003).unwrap();
    let begin = Begin {
        since: Some(since),
        tail: None,
    };
    let mut oldest = None;
    let show = |line: &super::Line| {
        // A pod that is created later is shown completely.
        if line.pod.ends_with("-0") {
            oldest = oldest.min(line.at).or(line.at);
        }
        Ok(())
    };
    follow(&fake, begin, Duration::from_millis(1), show, |_| {})
        .await
        .unwrap();
    assert!(
        oldest.unwrap() >= since - SignedDuration::from_secs(1),
        "{oldest:?}"
    );
}
