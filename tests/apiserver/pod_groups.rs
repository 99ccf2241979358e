//! PodGroups of jobs with a gang scheduler, with the CustomResourceDefinitions of scheduler-plugins
//! and of Volcano. No scheduler runs: the test binds the pods.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

/// A gang scheduler and the kind of its PodGroups.
pub(crate) struct Scheduler {
    /// Its value of `scheduling.gang`.
    pub(crate) gang: &'static str,
    /// The directory of its CustomResourceDefinitions; empty for PodGroups of Kubernetes itself.
    definitions: &'static str,
    kind: ApiResource,
    /// JSON pointer in the spec of a PodGroup to the number of pods that are placed together.
    minimum: &'static str,
}

fn scheduler(
    gang: &'static str,
    definitions: &'static str,
    group: &str,
    version: &str,
) -> Scheduler {
    let kind = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: "PodGroup".to_owned(),
        plural: "podgroups".to_owned(),
    };
    Scheduler {
        gang,
        definitions,
        kind,
        minimum: "/minMember",
    }
}

pub(crate) fn coscheduling() -> Scheduler {
    let group = "scheduling.x-k8s.io";
    scheduler(
        "Coscheduling",
        "coscheduling-definitions",
        group,
        "v1alpha1",
    )
}

pub(crate) fn volcano() -> Scheduler {
    scheduler(
        "Volcano",
        "volcano-definitions",
        "scheduling.volcano.sh",
        "v1beta1",
    )
}

pub(crate) fn kubernetes() -> Scheduler {
    Scheduler {
        minimum: "/schedulingPolicy/gang/minCount",
        ..scheduler("Kubernetes", "", "scheduling.k8s.io", "v1beta1")
    }
}

impl Scheduler {
    /// A job that uses this scheduler.
    pub(crate) fn job(&self, workers: u32) -> Value {
        let mut job = job(workers);
        job["spec"]["scheduling"] = json!({"gang": self.gang});
        job
    }

    pub(crate) async fn install(&self, env: &Environment) {
        let binaries = std::env::var("ROUNDHOUSE_BIN").unwrap();
        let directory = Path::new(&binaries).join(self.definitions);
        let all: Api<CustomResourceDefinition> = Api::all(env.client.clone());
        for file in std::fs::read_dir(directory).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let definition = serde_saphyr::from_str(&text).unwrap();
            all.create(&PostParams::default(), &definition)
                .await
                .unwrap();
        }
    }

    fn groups(&self, env: &Environment) -> Api<DynamicObject> {
        self.groups_in(env, NAMESPACE)
    }

    pub(crate) fn groups_in(&self, env: &Environment, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(env.client.clone(), namespace, &self.kind)
    }

    /// The number of pods of a PodGroup that are placed together.
    pub(crate) fn minimum_of(&self, group: &DynamicObject) -> Option<Value> {
        group.data["spec"].pointer(self.minimum).cloned()
    }

    /// Waits until the job's PodGroup has this minimum.
    async fn until_minimum(&self, env: &Environment, minimum: u32) -> DynamicObject {
        let found = until("the PodGroup has the minimum", TIMEOUT, || async {
            let group = self.groups(env).get_opt("digits").await.ok().flatten();
            Ok(group.filter(|group| self.minimum_of(group) == Some(json!(minimum))))
        });
        found.await.unwrap()
    }

    async fn until_gone(&self, env: &Environment) {
        until("the PodGroup is gone", TIMEOUT, || async {
            env.remove_terminating_pods(NAMESPACE).await;
            let group = self.groups(env).get_opt("digits").await?;
            Ok(group.is_none().then_some(()))
        })
        .await
        .unwrap();
    }
}

async fn pods(env: &Environment, number: usize) -> Vec<Pod> {
    let found = until("the pods exist", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok((pods.items.len() == number).then_some(pods.items))
    });
    found.await.unwrap()
}

/// The position of the operator's first call of this kind among all its calls.
fn first(env: &Environment, call: &str) -> usize {
    let calls = env.server.operator_calls().unwrap();
    calls.iter().position(|it| it == call).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_group_precedes_the_pods_and_follows_the_job() {
    for scheduler in [coscheduling(), volcano()] {
        let env = Environment::new().await;
        scheduler.install(&env).await;
        group_follows_job(env, scheduler, deleted_and_recreated).await;
    }
}

/// Checks that the PodGroup is created before the pods, and that it follows scaling, suspension and
/// end of the job. `happens` acts on the PodGroup before the job trains.
pub(crate) async fn group_follows_job<F: Future<Output = ()>>(
    env: Environment,
    scheduler: Scheduler,
    happens: impl FnOnce(Api<DynamicObject>) -> F,
) {
    let operator = env.operator(None);
    let job = env.create(NAMESPACE, scheduler.job(2)).await;
    let group = scheduler.until_minimum(&env, 2).await;
    let owner = &group.owner_references()[0];
    assert_eq!(Some(&owner.uid), job.uid().as_ref());
    pods(&env, 2).await;
    assert!(first(&env, "create podgroups") < first(&env, "create pods"));

    let scaled = json!({"workers": {"replicas": 3}});
    env.edit(&scaled).await.unwrap();
    scheduler.until_minimum(&env, 3).await;
    pods(&env, 3).await;

    env.edit(&json!({"suspend": true})).await.unwrap();
    scheduler.until_gone(&env).await;
    env.edit(&json!({"suspend": false})).await.unwrap();
    scheduler.until_minimum(&env, 3).await;
    happens(scheduler.groups(&env)).await;

    env.run_to_completion(NAMESPACE).await;
    scheduler.until_gone(&env).await;
    operator.stop().await;
}

/// Deletes the PodGroup, and waits until the operator has created it again.
async fn deleted_and_recreated(groups: Api<DynamicObject>) {
    let (before, parameters) = (groups.get("digits").await.unwrap(), DeleteParams::default());
    groups.delete("digits", &parameters).await.unwrap();
    until("the PodGroup is created again", TIMEOUT, || async {
        let group = groups.get_opt("digits").await?;
        Ok(group.filter(|group| group.uid() != before.uid()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn volcano_group_has_queue_and_minimum() {
    let env = Environment::new().await;
    volcano().install(&env).await;
    let operator = env.operator(None);
    let mut elastic = volcano().job(3);
    elastic["spec"]["workers"]["minReplicas"] = json!(1);
    elastic["spec"]["scheduling"]["queueName"] = json!("research");
    env.create(NAMESPACE, elastic).await;
    let group = volcano().until_minimum(&env, 1).await;
    assert_eq!(group.data["spec"]["queue"], "research");
    for pod in pods(&env, 3).await {
        assert_eq!(pod.annotations()["scheduling.k8s.io/group-name"], "digits");
        let scheduler = pod.spec.unwrap().scheduler_name;
        assert_eq!(scheduler.as_deref(), Some("volcano"));
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_gang_scheduler_delays_only_its_own_jobs() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply("other", 1).await;
    env.create(NAMESPACE, coscheduling().job(2)).await;
    let waiting = env.until_state(NAMESPACE, "GangSchedulerMissing").await;
    let message = &waiting.status.as_ref().unwrap().front().unwrap().message;
    assert!(
        message.contains("podgroups.scheduling.x-k8s.io") && message.contains("scheduler-plugins"),
        "{message}"
    );
    env.run_until_training("other").await;
    // The operator keeps looking for the kind and writes nothing.
    let lists =
        "roundhouse_operator_api_calls_total{code=\"404\",resource=\"podgroups\",verb=\"list\"}";
    until(
        "the operator has looked for the kind again",
        TIMEOUT,
        || async {
            Ok(operator
                .metric(lists)
                .is_some_and(|n| n >= 2.0)
                .then_some(()))
        },
    )
    .await
    .unwrap();
    let still = env.job(NAMESPACE).await;
    assert_eq!(still.resource_version(), waiting.resource_version());
    pods(&env, 0).await;

    coscheduling().install(&env).await;
    for pod in pods(&env, 2).await {
        assert_eq!(pod.labels()["scheduling.x-k8s.io/pod-group"], "digits");
    }
    operator.stop().await;
}
