//! Every command of the documentation is known: something runs it, or there is a reason why nothing does. What it
//! names exists: targets of make, files of the repository, values of the chart, flags of the plugin.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};

use roundhouse_tests::manifests::repository;

use super::{Page, markdown, pages};

/// What runs a command.
#[derive(Clone, Copy)]
enum Proof {
    /// This file runs it, with these words.
    Runs(&'static str, &'static str),
    /// Nothing does, for this reason.
    Nothing(&'static str),
}
use Proof::{Nothing, Runs};

const NEEDS_REGISTRY: &str = "needs a registry that the cluster's nodes pull from";
const EDITS: &str = "prepares or cleans up something of the reader's";
const READS: &str = "only reads; the fields that it shows have tests of their own";

const ONE_VERSION: &str = "the API has one version so far";

/// How commands begin. The longest beginning that fits decides.
const KNOWN: [(&str, Proof); 49] = [
    (
        "cargo build --release -p kubectl-roundhouse",
        Runs("scripts/programs", "kubectl-roundhouse"),
    ),
    ("cp", Nothing(EDITS)),
    ("docker build", Nothing(NEEDS_REGISTRY)),
    ("docker push", Nothing(NEEDS_REGISTRY)),
    (
        "examples/own-model/stage.sh",
        Nothing("make test builds the same program with other flags, in tests/run/local"),
    ),
    ("export", Nothing("sets variables of the reader's shell")),
    ("helm test roundhouse", Runs("tests/run/e2e", "helm test")),
    (
        "helm uninstall roundhouse",
        Nothing("takes away what other tests of the cluster need"),
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
        Nothing("needs a release from before the Lease"),
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
        Nothing("needs the metrics server, which the cluster of the tests has not"),
    ),
    ("kubectl cp", Nothing(READS)),
    ("kubectl create configmap", Nothing(EDITS)),
    (
        "kubectl delete customresourcedefinition",
        Nothing("takes away what other tests of the cluster need"),
    ),
    (
        "kubectl delete trainingjobs",
        Runs("examples/demo.sh", "kube delete trainingjob digits"),
    ),
    ("kubectl describe", Nothing(READS)),
    (
        "kubectl exec",
        Runs("tests/local/executor.rs", "run.audit()"),
    ),
    ("kubectl explain", Nothing(READS)),
    (
        "kubectl get",
        Runs("examples/demo.sh", "kube get trainingjob digits -o wide"),
    ),
    (
        "kubectl patch customresourcedefinition",
        Nothing(ONE_VERSION),
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
        Nothing("reads pods; the plugin's tests follow 64 ranks of a source of their own"),
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
        Nothing("needs root; tests/e2e/digits.rs applies the same example to the same cluster"),
    ),
    ("make images", Runs("tests/run/test", "scripts/images")),
    ("make test", Nothing("it runs this test")),
    (
        "make try",
        Nothing("builds for minutes; tests/local runs the same programs on the same example"),
    ),
    (
        "make wheel",
        Nothing("builds for minutes; tests/run/python tests the same package, staged"),
    ),
    (
        "own-model audit",
        Runs("tests/local/own_model.rs", "run.audit()"),
    ),
    ("pip install", Nothing(EDITS)),
    (
        "python examples/pytorch/elastic.py",
        Runs(
            "trainer-image/python/tests/test_example.py",
            "\"elastic.py\"",
        ),
    ),
    ("rm -rf", Nothing(EDITS)),
    (
        "roundhouse-operator check",
        Runs("operator/src/check.rs", "policy_file: Some("),
    ),
    (
        "roundhouse-train audit",
        Runs("tests/local/executor.rs", "run.audit()"),
    ),
    ("sed", Nothing(EDITS)),
];

/// A command of a page.
struct Line {
    place: String,
    text: String,
}

/// The commands of all pages, each in one line.
fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for page in pages() {
        let blocks = markdown::blocks(&page.text).into_iter();
        for block in blocks.filter(|block| block.language == "sh") {
            let place = format!("{}:{}", page.path, block.line);
            let joined = block.text.replace("\\\n", " ");
            for text in joined.lines().map(str::trim) {
                if !text.is_empty() && !text.starts_with('#') {
                    let (place, text) = (place.clone(), text.to_owned());
                    lines.push(Line { place, text });
                }
            }
        }
    }
    lines
}

/// The entry of a command, by its number in the table.
fn known(command: &str) -> Option<usize> {
    let fits = |start: &str| {
        let rest = command.strip_prefix(start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '-', '/']))
    };
    let entries = KNOWN
        .iter()
        .enumerate()
        .filter(|(_, (start, _))| fits(start));
    entries
        .max_by_key(|(_, (start, _))| start.len())
        .map(|(at, _)| at)
}

#[test]
fn every_command_is_run_by_something_or_has_a_reason() {
    let lines = lines();
    assert!(lines.len() > 20);
    let mut used = HashSet::new();
    for Line { place, text } in lines {
        let entry = known(&text);
        assert!(
            entry.is_some(),
            "{place}: {text}: say in tests/contract/docs/commands.rs what runs it"
        );
        used.extend(entry);
    }
    for (at, (start, _)) in KNOWN.iter().enumerate() {
        assert!(used.contains(&at), "no page has {start}: remove it here");
    }
}

#[test]
fn what_is_said_to_run_a_command_runs_it() {
    for (start, proof) in KNOWN {
        match proof {
            Runs(path, words) => {
                let text = Page::read(path).text;
                assert!(text.contains(words), "{start}: {path} has no {words}");
            }
            Nothing(reason) => assert!(!reason.is_empty(), "{start}"),
        }
    }
}

#[test]
fn every_block_has_a_language() {
    let languages: HashSet<&str> = [
        "sh", "yaml", "json", "text", "rust", "promql", "python", "diff",
    ]
    .into();
    for page in pages() {
        for block in markdown::blocks(&page.text) {
            let is_known = languages.contains(&*block.language);
            assert!(
                is_known,
                "{}:{}: {:?}",
                page.path, block.line, block.language
            );
        }
    }
}

#[test]
fn the_shell_can_read_every_block_of_commands() {
    for page in pages() {
        for block in markdown::blocks(&page.text) {
            if block.language == "sh" {
                let mut shell = Command::new("bash");
                shell.arg("-n").stdin(Stdio::piped());
                let mut shell = shell.spawn().unwrap();
                let mut input = shell.stdin.take().unwrap();
                input.write_all(block.text.as_bytes()).unwrap();
                drop(input);
                assert!(
                    shell.wait().unwrap().success(),
                    "{}:{}",
                    page.path,
                    block.line
                );
            }
        }
    }
}

#[test]
fn commands_name_what_exists() {
    let makefile = Page::read("Makefile").text;
    let values = Page::read("charts/roundhouse/values.yaml").text;
    let values: serde_json::Value = serde_saphyr::from_str(&values).unwrap();
    let plugin = Page::read("docs/reference/plugin.md").text;
    for Line { place, text } in lines() {
        let text = without_substitutions(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        for word in &words {
            if word.starts_with("examples/") || word.starts_with("charts/") {
                assert!(repository().join(word).exists(), "{place}: {word}");
            }
        }
        match words.as_slice() {
            ["make", target, ..] => {
                assert!(
                    makefile.contains(&format!("\n{target}: ## ")),
                    "{place}: {target}"
                );
            }
            ["helm", rest @ ..] => {
                let sets = rest.windows(2).filter(|pair| pair[0] == "--set");
                for key in sets
                    .filter_map(|pair| pair[1].split_once('='))
                    .map(|(key, _)| key)
                {
                    let pointer = format!("/{}", key.replace('.', "/"));
                    assert!(values.pointer(&pointer).is_some(), "{place}: {key}");
                }
            }
            ["kubectl", "roundhouse", rest @ ..] | ["kubectl-roundhouse", rest @ ..] => {
                let title = format!("\n## kubectl roundhouse {}\n", rest[0]);
                let (_, section) = plugin
                    .split_once(&title)
                    .unwrap_or_else(|| panic!("{place}: {text}"));
                let section = section.split("\n## ").next().unwrap();
                for flag in rest.iter().filter(|word| word.starts_with('-')) {
                    assert!(has_flag(section, flag), "{place}: {flag}");
                }
            }
            _ => {}
        }
    }
}

/// A command without its `$(...)`, which are commands of their own.
fn without_substitutions(command: &str) -> String {
    let mut parts = command.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    let ends = parts.filter_map(|part| part.split_once(')'));
    ends.fold(first, |text, (_, end)| text + end)
}

/// Whether a text of help has a flag.
fn has_flag(help: &str, flag: &str) -> bool {
    help.split([' ', ',', '\n', '=']).any(|word| word == flag)
}
