//! Starts this test program once per rank and collects the output of each rank.

#[cfg(feature = "fake-nccl")]
pub mod abort;
pub mod abrupt;
pub mod digests;
#[cfg(feature = "fake-nccl")]
pub mod endings;
pub mod exchange;
pub mod experts;
pub mod power_sgd;
pub mod rank;
pub mod sharded;
pub mod sums;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use roundhouse_c10d::Store;

const DEADLINE: Duration = Duration::from_secs(60);

/// The processes of one test, and their rendezvous store.
pub struct World {
    pub store: Store,
    ranks: Vec<Rank>,
}

struct Rank {
    child: Child,
    lines: Receiver<String>,
    text: String,
}

/// The exit status and the output of a rank.
pub struct Output {
    pub text: String,
    success: bool,
}

impl Output {
    pub fn assert_success(&self) {
        assert!(self.success, "{}", self.text);
    }

    pub fn number(&self, name: &str) -> f64 {
        let prefix = format!("{name} ");
        let line = self
            .text
            .lines()
            .find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.text))
            .parse()
            .unwrap()
    }
}

impl World {
    pub fn start(size: u32, program: &str, environment: &[(&str, &str)]) -> Self {
        let store = Store::host(0, Duration::from_secs(30)).unwrap();
        let ranks = (0..size)
            .map(|rank| {
                let mut child = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "rank_main", "--include-ignored", "--nocapture"])
                    .env("RANK", rank.to_string())
                    .env("WORLD_SIZE", size.to_string())
                    .env("PORT", store.port().to_string())
                    .env("PROGRAM", program)
                    .envs(environment.iter().copied())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let stdout = child.stdout.take().unwrap();
                let (sender, lines) = channel();
                std::thread::spawn(move || {
                    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                        let _ = sender.send(line);
                    }
                });
                Rank {
                    child,
                    lines,
                    text: String::new(),
                }
            })
            .collect();
        Self { store, ranks }
    }

    pub fn wait_for_line(&mut self, rank: usize, wanted: &str) {
        let deadline = Instant::now() + DEADLINE;
        let rank = &mut self.ranks[rank];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = rank
                .lines
                .recv_timeout(left)
                .expect("the line comes in time");
            rank.text.push_str(&line);
            rank.text.push('\n');
            if line.contains(wanted) {
                return;
            }
        }
    }

    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].child.kill().unwrap();
    }

    pub fn finish(mut self) -> Vec<Output> {
        let deadline = Instant::now() + DEADLINE;
        self.ranks
            .drain(..)
            .map(|mut rank| {
                let status = loop {
                    if let Some(status) = rank.child.try_wait().unwrap() {
                        break status;
                    }
                    if Instant::now() > deadline {
                        let _ = rank.child.kill();
                        panic!("a rank did not end in time: {}", rank.text);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                };
                rank.text.extend(rank.lines.iter().map(|line| line + "\n"));
                Output {
                    text: rank.text,
                    success: status.success(),
                }
            })
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}
