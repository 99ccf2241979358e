//! The process of the operator that leads is stopped for a minute, in the midst of its work, and continues. Another one has led
//! meanwhile. `make test-long` gives the operator. In a pod the kubelet would end a container that is stopped for so long.

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
const STOPPED: Duration = Duration::from_secs(60);
/// From the loss of a worker until the operator is stopped: before it sees the loss, while it works on it, and thereafter.
const MOMENTS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(15),
    Duration::from_millis(150),
];

/// All places that workers were ever told: to whom, and in which world.
type Places = BTreeMap<(u64, u32), BTreeSet<(Option<String>, String)>>;

/// What a watch has seen; it ends with the value.
struct Witness {
    places: Arc<Mutex<Places>>,
    watch: AbortHandle,
}

impl Witness {
    fn begins(pods: Api<Pod>) -> Self {
        let places = Arc::new(Mutex::new(Places::new()));
        let seen = Arc::clone(&places);
        let watch = tokio::spawn(async move {
            let changes = watcher(pods, Config::default()).default_backoff();
            let mut pods = pin!(changes.applied_objects().into_stream());
            while let Some(pod) = pods.next().await {
                if let Ok(pod) = pod {
                    see(
                        &mut seen.lock().unwrap_or_else(PoisonError::into_inner),
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

    /// No place was given to two workers, and no generation is two worlds.
    fn has_seen_one_world(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nonces = BTreeMap::new();
        for ((generation, rank), told) in &*places {
            let [(_, nonce)] = &*told.iter().collect::<Vec<_>>() else {
                panic!("rank {rank} of generation {generation} was given to {told:?}");
            };
            let first = nonces.entry(generation).or_insert(nonce);
            assert_eq!(*first, nonce, "generation {generation}");
        }
        assert!(!places.is_empty());
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn see(places: &mut Places, pod: &Pod) {
    let document = pod.annotations().get(labels::MEMBERSHIP);
    let told = document.and_then(|document| Membership::parse(document).ok().flatten());
    if let Some(told) = told {
        let place = places.entry((told.generation, told.node_rank)).or_default();
        place.insert((pod.uid(), told.nonce));
    }
}

fn operator(env: &Environment, name: &str, program: &Path) -> OperatorProcess {
    let lease = ["--lease=roundhouse", "--lease-namespace=ml"];
    OperatorProcess::start(env, name, program, &lease)
}

/// Who leads, as soon as that is another one.
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

/// A worker is lost at once, as with its node.
async fn loses_one(env: &Environment) {
    let pods = env.all_pods(NAMESPACE).await;
    let now = DeleteParams::default().grace_period(0);
    let name = pods.last().unwrap().name_any();
    env.pods(NAMESPACE).delete(&name, &now).await.unwrap();
}

/// Waits until all workers are in a generation after this one; returns it.
async fn forms_after(env: &Environment, before: u64) -> u64 {
    until("all are told", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let now = status.membership.map_or(0, |it| it.generation);
        let pods = env.all_pods(NAMESPACE).await;
        let mut places = Places::new();
        for pod in &pods {
            see(&mut places, pod);
        }
        let told = (0..WORKERS).all(|rank| places.contains_key(&(now, rank)));
        Ok((now > before && told && pods.len() == WORKERS as usize).then_some(now))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the operator's program, and takes four minutes: make test-long gives it"]
async fn leader_paused_for_a_minute_assigns_no_rank() {
    let program = program_of("ROUNDHOUSE_OPERATOR");
    let env = Environment::new().await;
    let witness = Witness::begins(env.pods(NAMESPACE));
    let mut leader = operator(&env, "0.log", &program);
    let mut name = leader_after(&env, None).await;
    env.apply(NAMESPACE, WORKERS).await;
    let mut generation = forms_after(&env, 0).await;
    for (number, moment) in MOMENTS.into_iter().enumerate() {
        let follower = operator(&env, &format!("{}.log", number + 1), &program);
        loses_one(&env).await;
        sleep(moment).await;
        leader.signal(Signal::STOP);
        let end = Instant::now() + STOPPED;
        name = leader_after(&env, Some(&name)).await;
        generation = forms_after(&env, generation).await;
        loses_one(&env).await;
        generation = forms_after(&env, generation).await;
        sleep_until(end).await;

        leader.signal(Signal::CONT);
        // While the first one finds out, the other has work to do.
        loses_one(&env).await;
        generation = forms_after(&env, generation).await;
        until("it starts anew", TIMEOUT, || async {
            let num_starts = leader.log().matches("the operator runs").count();
            Ok((num_starts == 2).then_some(()))
        })
        .await
        .unwrap();
        leader.stop();
        assert_eq!(leader_after(&env, None).await, name, "nobody takes it back");
        leader = follower;
    }
    witness.has_seen_one_world();
    leader.stop();
}
