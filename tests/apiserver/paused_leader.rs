//! SIGSTOP pauses the leading operator for a minute during its work, another operator leads
//! meanwhile, and then the first one continues. In a pod, the kubelet would restart a container
//! that is paused for so long. `make test-long` builds the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use rustix::process::Signal;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::environment::{Environment, NAMESPACE, OperatorProcess, TIMEOUT, program_of};

const WORKERS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(60);
/// Times from the loss of a worker to the pause: before the operator observes the loss, while it
/// handles the loss, and after that.
const DELAYS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(15),
    Duration::from_millis(150),
];

/// For each generation and node rank: the UIDs of the pods that ever had it, and the nonces of
/// their memberships.
type Places = BTreeMap<(u64, u32), BTreeSet<(Option<String>, String)>>;

/// Watches the pods and records all memberships, until it is dropped.
struct Recorder {
    places: Arc<Mutex<Places>>,
    watch: AbortHandle,
}

impl Recorder {
    fn start(pods: Api<Pod>) -> Self {
        let places = Arc::new(Mutex::new(Places::new()));
        let recorded = Arc::clone(&places);
        let watch = tokio::spawn(async move {
            let changes = watcher(pods, Config::default()).default_backoff();
            let mut pods = pin!(changes.applied_objects().into_stream());
            while let Some(pod) = pods.next().await {
                if let Ok(pod) = pod {
                    record(
                        &mut recorded.lock().unwrap_or_else(PoisonError::into_inner),
                        &pod,
                    );
                }
            }
        });
        Self {
            places,
            watch: watch.abort_handle(),
        }
    }

    /// Checks that each rank of a generation had one pod, and that each generation was one process
    /// group.
    fn assert_one_group_per_generation(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nonces = BTreeMap::new();
        for ((generation, rank), holders) in &*places {
            let [(_, nonce)] = &*holders.iter().collect::<Vec<_>>() else {
                panic!("rank {rank} of generation {generation} was assigned to {holders:?}");
            };
            let first = nonces.entry(generation).or_insert(nonce);
            assert_eq!(*first, nonce, "generation {generation}");
        }
        assert!(!places.is_empty());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn record(places: &mut Places, pod: &Pod) {
    let document = pod.annotations().get(labels::MEMBERSHIP);
    let membership = document.and_then(|document| Membership::parse(document).ok().flatten());
    if let Some(it) = membership {
        let holders = places.entry((it.generation, it.node_rank)).or_default();
        holders.insert((pod.uid(), it.nonce));
    }
}

fn operator(env: &Environment, name: &str, program: &Path) -> OperatorProcess {
    let lease = ["--lease=roundhouse", "--lease-namespace=ml"];
    OperatorProcess::start(env, name, program, &lease)
}

/// Waits until another operator than `before` leads, and returns its identity.
async fn leader_after(env: &Environment, before: Option<&str>) -> String {
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    until("an operator leads", TIMEOUT, || async {
        let lease = leases.get_opt("roundhouse").await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder.filter(|holder| !holder.is_empty() && Some(holder.as_str()) != before))
    })
    .await
    .unwrap()
}

/// Deletes a worker without a grace period.
async fn lose_worker(env: &Environment) {
    let pods = env.all_pods(NAMESPACE).await;
    let now = DeleteParams::default().grace_period(0);
    let name = pods.last().unwrap().name_any();
    env.pods(NAMESPACE).delete(&name, &now).await.unwrap();
}

/// Waits until all workers are in a newer generation than `before`, and returns it.
async fn generation_after(env: &Environment, before: u64) -> u64 {
    until("all workers are in a newer generation", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let now = status.membership.map_or(0, |it| it.generation);
        let pods = env.all_pods(NAMESPACE).await;
        let mut places = Places::new();
        for pod in &pods {
            record(&mut places, pod);
        }
        let is_complete = (0..WORKERS).all(|rank| places.contains_key(&(now, rank)));
        Ok((now > before && is_complete && pods.len() == WORKERS as usize).then_some(now))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the operator's program and takes four minutes: make test-long runs it"]
async fn leader_paused_for_a_minute_assigns_no_rank() {
    let program = program_of("ROUNDHOUSE_OPERATOR");
    let env = Environment::new().await;
    let recorder = Recorder::start(env.pods(NAMESPACE));
    let mut leader = operator(&env, "0.log", &program);
    let mut name = leader_after(&env, None).await;
    env.apply(NAMESPACE, WORKERS).await;
    let mut generation = generation_after(&env, 0).await;
    for (number, delay) in DELAYS.into_iter().enumerate() {
        let follower = operator(&env, &format!("{}.log", number + 1), &program);
        lose_worker(&env).await;
        sleep(delay).await;
        leader.signal(Signal::STOP);
        let end = Instant::now() + PAUSE;
        name = leader_after(&env, Some(&name)).await;
        generation = generation_after(&env, generation).await;
        lose_worker(&env).await;
        generation = generation_after(&env, generation).await;
        sleep_until(end).await;

        leader.signal(Signal::CONT);
        // The new leader has work to do while the old one notices the loss of its Lease.
        lose_worker(&env).await;
        generation = generation_after(&env, generation).await;
        until("the old leader has restarted", TIMEOUT, || async {
            let num_starts = leader.log().matches("the operator runs").count();
            Ok((num_starts == 2).then_some(()))
        })
        .await
        .unwrap();
        leader.stop();
        assert_eq!(
            leader_after(&env, None).await,
            name,
            "the old leader does not take the Lease back"
        );
        leader = follower;
    }
    recorder.assert_one_group_per_generation();
    leader.stop();
}
