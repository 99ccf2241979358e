//! The user's own command on this machine: which fields of the pod template apply here, and which
//! do not. The command runs with the user's programs in the current directory, so a path that
//! exists only in pods is refused.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{Container, EnvVar, PodTemplateSpec};
use roundhouse_contract::labels::TRAINER_CONTAINER;
use roundhouse_planner::ValidatedJob;

use super::programs;

/// A program with its arguments, and its environment variables.
pub(super) type Invocation = (Vec<String>, Vec<(String, String)>);

/// The command to run here, and the template's variables. `get` reads this program's environment.
///
/// # Errors
/// This machine lacks the program, a path or a variable; the error names it.
pub(super) fn of(
    template: &PodTemplateSpec,
    command: &[String],
    get: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Invocation> {
    let Some((at, container)) = trainer(template) else {
        bail!("spec.workers.template has no container named {TRAINER_CONTAINER}");
    };
    let field = format!("spec.workers.template.spec.containers[{at}]");
    let variables = variables(container, &field, get)?;
    let known: BTreeMap<&str, &str> = variables
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let command: Vec<String> = command.iter().map(|text| expand(text, &known)).collect();
    for text in &command {
        refuse_path_of_pods(container, text, &field)?;
    }
    let program = command.first().map_or("", |program| program);
    let is_there = if program.contains('/') {
        Path::new(program).is_file()
    } else {
        programs::on_path(program).is_some()
    };
    ensure!(
        is_there,
        "{field}.command: there is no program {program} on this machine: activate the environment that has it, or correct its name"
    );
    if let Some(script) = script(&command) {
        ensure!(
            // A shell also finds a script on the PATH.
            Path::new(script).exists() || programs::on_path(script).is_some(),
            "{field}.command: there is no file {script}{}: correct its path",
            place_of(script)
        );
    }
    Ok((command, variables))
}

/// One line that names the unused fields of the template. `None` for the built-in trainer, which
/// has no command.
pub(super) fn unused(job: &ValidatedJob) -> Option<String> {
    let command = job.program.own_command()?;
    let (_, container) = trainer(&job.template)?;
    let pod = job.template.spec.as_ref()?;
    let listed = |what: &str, names: Vec<&str>| {
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let volumes = pod.volumes.iter().flatten().map(|it| &*it.name).collect();
    let first = pod.init_containers.iter().flatten();
    let first = first.map(|it| &*it.name).collect();
    let others = pod.containers.iter().map(|it| &*it.name);
    let others = others.filter(|name| *name != TRAINER_CONTAINER).collect();
    let unused = [
        container.image.as_ref().map(|it| format!("image {it}")),
        container
            .working_dir
            .as_ref()
            .map(|it| format!("workingDir {it}")),
        container.env_from.as_ref().map(|_| "envFrom".to_owned()),
        listed("volumes", volumes),
        listed("init containers", first),
        listed("containers", others),
    ];
    let unused: Vec<String> = unused.into_iter().flatten().collect();
    let program = command.first()?;
    let place = programs::on_path(program)
        .map_or_else(String::new, |it| format!(" is {} and", it.display()));
    Some(format!(
        "{program}{place} runs in the current directory. Not used here: {}",
        unused.join("; ")
    ))
}

fn trainer(template: &PodTemplateSpec) -> Option<(usize, &Container)> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .enumerate()
        .find(|(_, container)| container.name == TRAINER_CONTAINER)
}

/// The container's variables. As in the kubelet, a value may use the variables before it.
fn variables(
    container: &Container,
    field: &str,
    get: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for EnvVar {
        name,
        value,
        value_from,
    } in container.env.iter().flatten()
    {
        if value_from.is_some() {
            // The processes inherit the user's variable instead.
            ensure!(
                get(name).is_some(),
                "{field}.env[{name}].valueFrom: only a cluster has this value: set {name} in your environment"
            );
            continue;
        }
        let known = all
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let value = expand(value.as_deref().unwrap_or_default(), &known);
        all.push((name.clone(), value));
    }
    Ok(all)
}

/// Refuses a path below a mount of the pods; otherwise the command would fail later without naming
/// the cause.
fn refuse_path_of_pods(container: &Container, text: &str, field: &str) -> anyhow::Result<()> {
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| Path::new(text).starts_with(&mount.mount_path));
    match mount {
        Some(mount) if !Path::new(text).exists() => bail!(
            "{field}.command: {text} is in the volume {} of the pods: give a path that exists on this machine, too",
            mount.name
        ),
        Some(_) | None => Ok(()),
    }
}

/// The script that Python or a shell runs, if the command has one.
fn script(command: &[String]) -> Option<&str> {
    let (program, arguments) = command.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    // Options with a value, and letters after which no script follows: those of a command, a module
    // or standard input.
    let (with_value, without_script): (&[&str], &[char]) = match name {
        "sh" | "bash" | "dash" => (&["-o", "+o", "-O", "+O", "--rcfile"], &['c', 's']),
        _ if name.starts_with("python") => (&["-W", "-X", "--check-hash-based-pycs"], &['c', 'm']),
        _ => return None,
    };
    let mut arguments = arguments.iter().map(|argument| &**argument);
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            return arguments.next();
        }
        if !argument.starts_with(['-', '+']) {
            return Some(argument);
        }
        let is_long = argument.starts_with("--");
        if argument == "-" || (!is_long && argument.contains(without_script)) {
            return None;
        }
        if with_value.contains(&argument) {
            arguments.next();
        }
    }
    None
}

/// Where a relative path was searched.
fn place_of(script: &str) -> String {
    let here = std::env::current_dir().ok();
    let here = here.filter(|_| Path::new(script).is_relative());
    here.map_or_else(String::new, |it| format!(" in {}", it.display()))
}

/// Replaces `$(NAME)` by its value, as Kubernetes does in commands and variables. An unknown name
/// stays as it is, and `$$` becomes `$`.
fn expand(text: &str, known: &BTreeMap<&str, &str>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix('(').and_then(|it| it.split_once(')'));
        match reference.and_then(|(name, after)| Some((known.get(name)?, after))) {
            Some((value, after)) => {
                result.push_str(value);
                rest = after;
            }
            None => result.push('$'),
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn invocation(container: &Value, command: &[&str]) -> anyhow::Result<Invocation> {
        let mut trainer = json!({"name": "trainer"});
        let fields = container.as_object().unwrap().clone();
        trainer.as_object_mut().unwrap().extend(fields);
        let template = json!({"spec": {"containers": [{"name": "side"}, trainer]}});
        let template: PodTemplateSpec = serde_json::from_value(template).unwrap();
        let command: Vec<String> = command.iter().map(|text| (*text).to_owned()).collect();
        of(&template, &command, |name| {
            (name == "TOKEN").then(String::new)
        })
    }

    #[test]
    fn template_variables_are_expanded_as_in_a_pod() {
        let env = json!({"env": [
            {"name": "LR", "value": "0.1"},
            {"name": "ALL", "value": "--lr=$(LR)"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]});
        let command = ["env", "$(ALL)", "$$(LR)", "$(UNKNOWN)", "$HOME", "a$(", "$"];
        let (command, variables) = invocation(&env, &command).unwrap();
        let expected = [
            "env",
            "--lr=0.1",
            "$(LR)",
            "$(UNKNOWN)",
            "$HOME",
            "a$(",
            "$",
        ];
        assert_eq!(command, expected);
        assert_eq!(variables[1], ("ALL".to_owned(), "--lr=0.1".to_owned()));
        assert_eq!(variables.len(), 2, "the third is inherited");
    }

    #[test]
    fn script_is_the_first_argument_after_options() {
        for (command, expected) in [
            ("python train.py --lr=1", Some("train.py")),
            (
                "/opt/bin/python3.12 -u -W ignore -Xdev train.py -c x",
                Some("train.py"),
            ),
            ("python -- -train.py", Some("-train.py")),
            ("python -O train.py", Some("train.py")),
            ("bash -eux -o pipefail run.sh", Some("run.sh")),
            ("python -um torch.distributed.run train.py", None),
            ("python -c print()", None),
            ("sh -ec exit", None),
            ("python -", None),
            ("python", None),
            ("torchrun train.py", None),
        ] {
            let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(script(&command), expected, "{command:?}");
        }
    }

    #[test]
    fn missing_program_path_or_variable_is_named() {
        let secret = json!({"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]});
        let mount = json!({"volumeMounts": [{"name": "script", "mountPath": "/no/such/script"}]});
        for (container, command, words) in [
            (secret, &["sh"][..], "containers[1].env[KEY].valueFrom"),
            (
                mount,
                &["sh", "/no/such/script/train.py"],
                "the volume script of the pods",
            ),
            (
                json!({}),
                &["no-such-python", "train.py"],
                "no program no-such-python",
            ),
            (
                json!({}),
                &["bash", "no-such.sh"],
                "no file no-such.sh in /",
            ),
        ] {
            let refused = invocation(&container, command).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
