//! Polls that are under way, one at a time to each agent. Agents that did not answer the last one share a small pool of
//! slots, so they do not delay questions to agents that do: a network may be closed to some.

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

/// Most questions at the same time to agents that answered the last one, or were asked none.
const AT_ONCE: usize = 256;
/// Most questions at the same time to the others.
const SILENT_AT_ONCE: usize = 64;
/// An agent that was silent so long ago is one like all others.
const FORGOTTEN: Duration = Duration::from_mins(5);

type Answer<K> = (K, Option<Bytes>);

/// The questions; `K` says to whom.
pub(crate) struct Polls<K> {
    agents: Agents,
    under_way: FuturesUnordered<BoxFuture<'static, Answer<K>>>,
    /// Agents that are being asked.
    asked: HashSet<K>,
    /// Agents that did not answer the last question, and when.
    silent: HashMap<K, Instant>,
    slots: Arc<Semaphore>,
    slots_of_silent: Arc<Semaphore>,
}

impl<K: Clone + Eq + Hash + Send + 'static> Polls<K> {
    pub(crate) fn new() -> Self {
        Self {
            agents: Agents::default(),
            under_way: FuturesUnordered::new(),
            asked: HashSet::new(),
            silent: HashMap::new(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            slots_of_silent: Arc::new(Semaphore::new(SILENT_AT_ONCE)),
        }
    }

    /// Polls the agent at an address, unless the last request to it is still under way. `nonce` is empty for paths that require
    /// none.
    pub(crate) fn start(&mut self, whom: K, address: String, path: &'static str, nonce: String) {
        if !self.asked.insert(whom.clone()) {
            return;
        }
        let slots = if self.silent.contains_key(&whom) {
            &self.slots_of_silent
        } else {
            &self.slots
        };
        let (slots, agents) = (Arc::clone(slots), self.agents.clone());
        self.under_way.push(Box::pin(async move {
            // Never closed.
            let _slot = slots.acquire().await;
            (whom, agents.answer(&address, path, &nonce).await)
        }));
    }

    /// Waits for the next answer; `None`: nobody is being asked.
    pub(crate) async fn next(&mut self) -> Option<Answer<K>> {
        let (whom, answer) = self.under_way.next().await?;
        self.asked.remove(&whom);
        self.silent.retain(|_, since| since.elapsed() < FORGOTTEN);
        if answer.is_none() {
            self.silent.insert(whom.clone(), Instant::now());
        } else {
            self.silent.remove(&whom);
        }
        Some((whom, answer))
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
            // Nobody listens there.
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
            let (whom, _) = polls.next().await.unwrap();
            assert_ne!(whom, 0);
        }
    }
}
