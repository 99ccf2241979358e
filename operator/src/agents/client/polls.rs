//! Polls in progress, at most one for each agent. Agents that did not answer their last poll share
//! a small pool of slots, so they do not delay polls of the other agents: a network may be closed
//! to some of them.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hyper::body::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Agents;

/// Most polls at the same time of agents that answered their last poll or were never polled.
const AT_ONCE: usize = 256;
/// Most polls at the same time of agents that did not answer their last poll.
const SILENT_AT_ONCE: usize = 64;
/// How long an agent without an answer counts as silent, if no newer poll of it ends.
const FORGOTTEN: Duration = Duration::from_mins(5);

type Answer<K> = (K, Option<Bytes>);

/// The polls. `K` identifies an agent.
pub(crate) struct Polls<K> {
    agents: Agents,
    in_progress: FuturesUnordered<BoxFuture<'static, Answer<K>>>,
    /// Agents whose poll is in progress.
    polled: HashSet<K>,
    /// Agents that did not answer their last poll, and when it ended.
    silent: HashMap<K, Instant>,
    slots: Arc<Semaphore>,
    slots_of_silent: Arc<Semaphore>,
}

impl<K: Clone + Eq + Hash + Send + 'static> Polls<K> {
    pub(crate) fn new() -> Self {
        Self {
            agents: Agents::default(),
            in_progress: FuturesUnordered::new(),
            polled: HashSet::new(),
            silent: HashMap::new(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            slots_of_silent: Arc::new(Semaphore::new(SILENT_AT_ONCE)),
        }
    }

    /// Polls the agent at an address, unless the last request to it is still in progress. `nonce`
    /// is empty for paths that require none.
    pub(crate) fn start(&mut self, agent: K, address: String, path: &'static str, nonce: String) {
        if !self.polled.insert(agent.clone()) {
            return;
        }
        let slots = if self.silent.contains_key(&agent) {
            &self.slots_of_silent
        } else {
            &self.slots
        };
        let (slots, agents) = (Arc::clone(slots), self.agents.clone());
        self.in_progress.push(Box::pin(async move {
            // The semaphore is never closed.
            let _slot = slots.acquire().await;
            (agent, agents.answer(&address, path, &nonce).await)
        }));
    }

    /// Waits for the next answer; `None`: no poll is in progress.
    pub(crate) async fn next(&mut self) -> Option<Answer<K>> {
        let (agent, answer) = self.in_progress.next().await?;
        self.polled.remove(&agent);
        self.silent.retain(|_, since| since.elapsed() < FORGOTTEN);
        if answer.is_none() {
            self.silent.insert(agent.clone(), Instant::now());
        } else {
            self.silent.remove(&agent);
        }
        Some((agent, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of the loopback network.
    fn address(at: usize) -> String {
        format!("127.9.{}.{}", at / 250, at % 250 + 1)
    }

    #[tokio::test]
    async fn agent_is_polled_again_only_after_its_last_poll() {
        let mut polls = Polls::new();
        for _ in 0..2 {
            // No process listens at this address.
            polls.start(1, address(1), "/", String::new());
            polls.start(1, address(1), "/", String::new());
            assert_eq!(polls.next().await, Some((1, None)));
            assert_eq!(polls.next().await, None);
        }
    }

    #[tokio::test]
    async fn silent_agents_do_not_delay_polls_of_the_others() {
        let mut polls = Polls::new();
        polls.slots_of_silent = Arc::new(Semaphore::new(0));
        polls.start(0, address(0), "/", String::new());
        polls.next().await;
        polls.start(0, address(0), "/", String::new());
        for at in 1..=2 * AT_ONCE {
            polls.start(at, address(at), "/", String::new());
        }
        for _ in 1..=2 * AT_ONCE {
            let (agent, _) = polls.next().await.unwrap();
            assert_ne!(agent, 0);
        }
    }
}
