//! The Helm chart on a real API server: its objects are valid, two releases do not manage the same
//! jobs, and the owner of a namespace can install it.

use std::path::Path;

use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

use self::shell::{Shell, binaries};

mod shell;

/// The directory of the chart, relative to the root of the repository.
const CHART: &str = "charts/roundhouse";
const DEFINITION: &str = "trainingjobs.roundhouse.dev";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn every_object_of_the_chart_is_accepted() {
    let env = Environment::new().await;
    let shell = Shell::new(&env);
    let monitoring = Path::new(&binaries()).join("prometheus-operator-definitions");
    let files = format!("-f={}", monitoring.display());
    shell.kubectl(&["create"], &[&files], "").unwrap();
    until(
        "the kinds of the Prometheus operator are served",
        TIMEOUT,
        || async {
            let mut kinds = ["podmonitors", "servicemonitors", "prometheusrules"].iter();
            Ok(kinds
                .all(|kind| shell.kubectl(&["get", kind], &[], "").is_ok())
                .then_some(()))
        },
    )
    .await
    .unwrap();
    let values_of_everything = format!(
        "replicas: 2
image: {{digest: '{DIGEST}'}}
imagePullSecrets: [{{name: registry}}]
extraArgs: [--http-address=0.0.0.0:8080]
extraEnv: [{{name: RUST_LOG, value: info}}]
priorityClassName: system-cluster-critical
nodeSelector: {{pool: infra}}
tolerations: [{{key: infra, operator: Exists}}]
affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: [{{key: a, operator: Exists}}]}}]}}}}}}
topologySpreadConstraints: [{{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}}]
commonLabels: {{team: ml}}
annotations: {{a: b}}
podLabels: {{c: d}}
podAnnotations: {{e: f}}
serviceAccount: {{name: mine, annotations: {{g: h}}}}
podDisruptionBudget: {{enabled: true, maxUnavailable: 50%}}
serviceMonitor: {{enabled: true, interval: 15s, labels: {{team: ml}}}}
podMonitor: {{enabled: true, interval: 15s, labels: {{team: ml}}}}
prometheusRule: {{enabled: true, labels: {{team: ml}}, alertLabels: {{team: ml}}}}
dashboards: {{enabled: true, labels: {{team: ml}}, annotations: {{folder: ml}}}}
resources: {{requests: {{cpu: 10m}}, limits: {{memory: 1Gi}}}}
trainer: {{image: 'registry.example/trainer:1', pullPolicy: Always}}
policy: {{maxWorkersPerJob: 8, allow: {{hostPaths: [/data/*], hostPorts: [8080]}}}}
fixedUsers: false
flowSchema: {{enabled: true}}
networkPolicy: {{enabled: true, metricsFrom: [{{namespaceSelector: {{}}}}], workerMetricsFrom: [{{namespaceSelector: {{}}}}]}}
test: {{workerTemplate: {{spec: {{nodeSelector: {{pool: gpu}}}}}}}}
"
    );
    for (what, values) in [
        ("defaults", String::new()),
        ("everything", values_of_everything.clone()),
        (
            "everything in one namespace",
            format!("{values_of_everything}watchNamespace: ml\n"),
        ),
    ] {
        let rendered = shell.helm(
            &["template", "rh", CHART, "-n", NAMESPACE, "-f", "-"],
            &values,
        );
        let rendered = rendered.unwrap_or_else(|error| panic!("{what}: {error}"));
        let objects: Vec<_> = rendered
            .split("\n---\n")
            .filter(|object| object.contains("\nkind: "))
            .collect();
        assert!(objects.len() >= 10, "{what}: {rendered}");
        let answer = shell.kubectl(
            &[
                "apply",
                "-n",
                NAMESPACE,
                "--server-side",
                "--force-conflicts",
            ],
            &["--dry-run=server", "--validate=strict", "-f", "-"],
            &objects.join("\n---\n"),
        );
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answer.lines().count(), objects.len(), "{what}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn release_with_overlapping_jobs_is_refused() {
    let env = Environment::new().await;
    let shell = Shell::new(&env);
    let install = |name, namespace, more: &[&str]| {
        let arguments = ["upgrade", "--install", name, CHART, "-n", namespace];
        shell.helm(&[&arguments, more].concat(), "")
    };
    let refused = |result: Result<String, String>, words: &str| {
        let error = result.unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    // The CustomResourceDefinition of the environment is like one that an uninstalled release has
    // left behind: the release takes it over.
    install("first", NAMESPACE, &["--take-ownership"]).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let definition = definitions.get(DEFINITION).await.unwrap();
    let owner = &definition.labels()["app.kubernetes.io/instance"];
    assert_eq!(owner, "first", "the release upgrades the definition");
    let words =
        "release \"first\" in namespace \"ml\" already runs the TrainingJobs of all namespaces";
    refused(install("second", "other", &[]), words);
    refused(
        install("second", "other", &["--set=watchNamespace=other"]),
        words,
    );
    refused(install("first", "other", &[]), words);
    install("first", NAMESPACE, &["--set=logLevel=debug"]).unwrap();

    shell
        .helm(&["uninstall", "first", "-n", NAMESPACE], "")
        .unwrap();
    // Uninstalling the chart keeps the CustomResourceDefinition, so no job is deleted.
    definitions.get(DEFINITION).await.unwrap();
    install(
        "second",
        "other",
        &["--set=watchNamespace=other", "--take-ownership"],
    )
    .unwrap();
    refused(
        install("first", NAMESPACE, &[]),
        "already runs the TrainingJobs of namespace \"other\"",
    );
    refused(
        install("first", NAMESPACE, &["--set=watchNamespace=ml"]),
        "belongs to the release other/second (namespace/name). Set crds.enabled=false",
    );
    install(
        "first",
        NAMESPACE,
        &["--set=watchNamespace=ml,crds.enabled=false"],
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_owner_can_install_the_chart() {
    let env = Environment::new().await;
    let shell = Shell::new(&env);
    let bindings: Api<RoleBinding> = Api::namespaced(env.client.clone(), NAMESPACE);
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "owner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "owner"}],
    }))
    .unwrap();
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    let install = |more: &[&str]| {
        let arguments = [
            "install",
            "mine",
            CHART,
            "-n",
            NAMESPACE,
            "--kube-as-user=owner",
        ];
        shell.helm(&[&arguments, more].concat(), "")
    };
    let error = install(&[]).unwrap_err();
    assert!(error.contains("forbidden"), "{error}");
    install(&["--set=watchNamespace=ml,crds.enabled=false"]).unwrap();
}

/// A job whose container has these variables and arguments.
fn job_with(name: &str, environment: &serde_json::Value, arguments: &[&str]) -> String {
    let mut job = job(1);
    job["metadata"]["name"] = json!(name);
    let container = json!({"name": "trainer", "env": environment, "args": arguments});
    job["spec"]["workers"]["template"] = json!({"spec": {"containers": [container]}});
    job.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_secret_causes_a_warning() {
    let env = Environment::new().await;
    let shell = Shell::new(&env);
    let arguments = ["install", "rh", CHART, "-n", NAMESPACE, "--take-ownership"];
    shell.helm(&arguments, "").unwrap();
    let apply = |job: &str| {
        let (input, more) = (job, ["-n", NAMESPACE, "-f", "-"]);
        shell
            .kubectl_with_warnings(&["apply"], &more, input)
            .unwrap()
    };
    let plain = |name: &str| json!([{"name": name, "value": "hf_12345"}]);
    let secret = job_with(
        "secret",
        &plain("HF_TOKEN"),
        &["train", "--wandb.api-key=1"],
    );
    // The API server enforces a new policy only after a moment.
    until("the admission policy is enforced", TIMEOUT, || async {
        let more = ["-n", NAMESPACE, "--dry-run=server", "-f", "-"];
        let printed = shell.kubectl_with_warnings(&["create"], &more, &secret);
        Ok(printed.ok().filter(|printed| printed.contains("Warning")))
    })
    .await
    .unwrap();
    let warning = apply(&secret);
    let words = "the variable HF_TOKEN, the argument --wandb.api-key: every user who may read jobs can read the value. \
        If it is secret, keep it in a Secret and use valueFrom.secretKeyRef";
    assert!(warning.contains(words), "{warning}");
    assert!(!warning.contains("hf_12345"), "{warning}");
    env.jobs(NAMESPACE).get("secret").await.unwrap();

    let names = ["PGPASSWORD", "aws_secret_access_key", "DB.PASSWD"];
    for (number, name) in names.into_iter().enumerate() {
        let job = job_with(&format!("job-{number}"), &plain(name), &[]);
        let printed = apply(&job);
        assert!(
            printed.contains(&format!("the variable {name}:")),
            "{printed}"
        );
    }
    let key = json!({"secretKeyRef": {"name": "roundhouse-hub", "key": "token"}});
    let harmless = json!([
        {"name": "HF_TOKEN", "valueFrom": key}, {"name": "API_KEY", "value": ""},
        {"name": "WANDB_API_KEY", "value": "$(HF_TOKEN)"}, {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "MAX_TOKENS", "value": "8"}, {"name": "MONKEY", "value": "8"},
        {"name": "TOKEN_FILE", "value": "/run/token"},
    ]);
    let arguments = [
        "--token=$(HF_TOKEN)",
        "--tokens=8",
        "--secret-dir=/s",
        "token=8",
    ];
    let printed = apply(&job_with("harmless", &harmless, &arguments));
    assert_eq!(
        printed.trim(),
        "trainingjob.roundhouse.dev/harmless created"
    );
    // The policy also accepts a job without a template, and one with very many variables.
    let mut bare = job(1);
    bare["metadata"]["name"] = json!("bare");
    let printed = apply(&bare.to_string());
    assert_eq!(printed.trim(), "trainingjob.roundhouse.dev/bare created");
    let many = (0..256).map(|n| json!({"name": format!("V{n}"), "value": "x"}));
    let many = json!(many.collect::<Vec<_>>());
    let printed = shell.kubectl_with_warnings(
        &["create"],
        &["-n", NAMESPACE, "-f", "-"],
        &job_with("many", &many, &[]),
    );
    let printed = printed.unwrap();
    assert!(
        printed.contains("trainingjob.roundhouse.dev/many created"),
        "{printed}"
    );
}
