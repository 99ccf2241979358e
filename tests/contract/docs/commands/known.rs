//! The commands of the documentation, and what proves that each works.

/// The proof that a command of the documentation works.
#[derive(Clone, Copy)]
pub(super) enum Proof {
    /// This file runs the command; it contains this text.
    Runs(&'static str, &'static str),
    /// No test runs the command, for this reason.
    NoTest(&'static str),
}
use Proof::{NoTest, Runs};

const NEEDS_REGISTRY: &str = "needs a registry that the cluster's nodes pull from";
const EDITS: &str = "prepares or cleans up files of the reader";
const READS: &str = "only reads; other tests check the fields that it shows";

const ONE_VERSION: &str = "the API has one version so far";

/// The proof of each command, by the start of the command. The longest start that matches counts.
pub(super) const KNOWN: [(&str, Proof); 52] = [
    (
        "cargo build --release -p kubectl-roundhouse",
        Runs("scripts/programs", "kubectl-roundhouse"),
    ),
    ("cp", NoTest(EDITS)),
    ("docker build", NoTest(NEEDS_REGISTRY)),
    ("docker push", NoTest(NEEDS_REGISTRY)),
    (
        "examples/own-model/stage.sh",
        NoTest("make test builds the same program with other flags, in tests/run/local"),
    ),
    (
        "export",
        NoTest("sets variables in the shell of the reader"),
    ),
    ("helm test roundhouse", Runs("tests/run/e2e", "helm test")),
    (
        "helm uninstall roundhouse",
        NoTest("removes objects that other tests of the cluster need"),
    ),
    (
        "helm upgrade --install roundhouse",
        Runs(
            "scripts/install",
            "helm upgrade --install roundhouse charts/roundhouse",
        ),
    ),
    (
        "helm upgrade roundhouse",
        Runs(
            "scripts/install",
            "helm upgrade --install roundhouse charts/roundhouse",
        ),
    ),
    ("kill -9", Runs("tests/run/bench", "kill -9")),
    (
        "kubectl -n roundhouse-system delete deployment roundhouse",
        NoTest("needs a release from before the Lease"),
    ),
    (
        "kubectl apply --server-side",
        Runs("tests/apiserver/chart.rs", "\"--server-side\""),
    ),
    (
        "kubectl apply -f",
        Runs("examples/demo.sh", "kube apply -f examples/digits.yaml"),
    ),
    (
        "kubectl autoscale",
        NoTest("needs the metrics server, which the test cluster lacks"),
    ),
    ("kubectl cp", NoTest(READS)),
    ("kubectl create configmap", NoTest(EDITS)),
    (
        "kubectl delete customresourcedefinition",
        NoTest("removes objects that other tests of the cluster need"),
    ),
    (
        "kubectl delete trainingjobs",
        Runs("examples/demo.sh", "kube delete trainingjob digits"),
    ),
    ("kubectl describe", NoTest(READS)),
    (
        "kubectl exec",
        Runs("tests/local/g10_restarts.rs", "run.audit()"),
    ),
    ("kubectl explain", NoTest(READS)),
    (
        "kubectl get",
        Runs("examples/demo.sh", "kube get trainingjob digits -o wide"),
    ),
    (
        "kubectl patch customresourcedefinition",
        NoTest(ONE_VERSION),
    ),
    (
        "kubectl patch trainingjob",
        Runs("tests/apiserver/suspension.rs", "suspend"),
    ),
    (
        "kubectl roundhouse convert",
        Runs("operator/cli/src/convert/tests.rs", "convert(&text)"),
    ),
    (
        "kubectl roundhouse logs",
        NoTest("reads pods; a test of the plugin follows the logs of 64 simulated ranks"),
    ),
    (
        "kubectl roundhouse metrics",
        Runs("examples/demo.sh", "roundhouse metrics digits --filter"),
    ),
    (
        "kubectl roundhouse status",
        Runs("operator/cli/tests/apiserver.rs", "status"),
    ),
    (
        "kubectl roundhouse submit",
        Runs("operator/cli/tests/apiserver.rs", "submit"),
    ),
    (
        "kubectl roundhouse ui",
        Runs("operator/cli/tests/ui.rs", "&[\"ui\", \"gpt2-romeo\"]"),
    ),
    (
        "kubectl roundhouse watch",
        Runs("examples/demo.sh", "roundhouse watch digits"),
    ),
    (
        "kubectl roundhouse why",
        Runs("operator/cli/tests/apiserver.rs", "why"),
    ),
    (
        "kubectl scale",
        Runs("tests/apiserver/lifecycle.rs", "patch_scale(\"digits\""),
    ),
    (
        "kubectl-roundhouse run --local",
        Runs("tests/src/local.rs", "\"run\", \"--local\", \"-f\""),
    ),
    (
        "kubectl-roundhouse ui --local",
        Runs("operator/cli/src/ui/tests.rs", "DataSource::of_directory"),
    ),
    ("make cluster-down", Runs("tests/run/e2e", "cluster down")),
    (
        "make demo",
        NoTest("needs root; tests/e2e/digits.rs applies the same example to the same cluster"),
    ),
    ("make images", Runs("tests/run/test", "scripts/images")),
    ("make test", NoTest("runs this test")),
    (
        "make try",
        NoTest("builds for minutes; tests/local runs the same programs with the same example"),
    ),
    (
        "make wheel",
        NoTest("builds for minutes; tests/run/python tests the same package, staged"),
    ),
    (
        "own-model audit",
        Runs("tests/local/own_model.rs", "run.audit()"),
    ),
    ("pip install", NoTest(EDITS)),
    (
        "python examples/pytorch/elastic.py",
        Runs(
            "trainer-image/python/tests/test_example.py",
            "\"elastic.py\"",
        ),
    ),
    (
        "python examples/pytorch/hf.py",
        Runs("trainer-image/python/tests_hf/test_example.py", "\"hf.py\""),
    ),
    (
        "python examples/pytorch/accelerate_digits.py",
        Runs(
            "trainer-image/python/tests_hf/test_example.py",
            "\"accelerate_digits.py\"",
        ),
    ),
    (
        "python examples/pytorch/lightning_digits.py",
        Runs(
            "trainer-image/python/tests_lightning/test_example.py",
            "\"lightning_digits.py\"",
        ),
    ),
    ("rm -rf", NoTest(EDITS)),
    (
        "roundhouse-operator check",
        Runs("operator/src/check.rs", "policy_file: Some("),
    ),
    (
        "roundhouse-train audit",
        Runs("tests/local/g10_restarts.rs", "run.audit()"),
    ),
    ("sed", NoTest(EDITS)),
];
