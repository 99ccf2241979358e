//! Completion for kubectl: the program `kubectl_complete-roundhouse` receives the words so far,
//! prints the completions of the last word, and then a number with instructions for the shell.
//!
//! Protocol:
//! <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#customizing-kubectl-completion>;
//! numbers: cobra's `ShellCompDirective`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, FromArgMatches};
use kube::ResourceExt;

use super::Outcome;
use crate::cluster::{Cluster, Place};

/// Name of the hidden command that [`script`] calls.
pub(crate) const COMMAND: &str = "__complete";
/// Cobra's directive: complete file names if there are no completions.
const FILES: u8 = 0;
/// Cobra's directive: do not complete file names.
const NO_FILES: u8 = 4;
/// Longest time to list the jobs.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The words after the command; the last word is incomplete.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The possible completions of a word.
#[derive(Debug, Default, PartialEq)]
struct Choices {
    words: Vec<String>,
    is_file: bool,
    is_job: bool,
}

/// The script `kubectl_complete-roundhouse`; it calls the plugin as `name`.
pub(crate) fn script(name: &str) -> String {
    format!("#!/bin/sh\nexec {name} {COMMAND} -- \"$@\"\n")
}

pub(crate) async fn run(command: &Command, options: &Options) -> Outcome {
    let (last, before) = options.words.split_last().map_or(("", &[][..]), |split| {
        let (last, before) = split;
        (last.as_str(), before)
    });
    // Only after `build` every subcommand has the global options.
    let mut command = command.clone();
    command.build();
    let mut choices = choices(&command, before, last);
    if choices.is_job {
        let listed = tokio::time::timeout(TIMEOUT, jobs(&command, before)).await;
        choices.words.extend(listed.unwrap_or_default());
    }
    let fitting = choices.words.iter().filter(|word| word.starts_with(last));
    let mut lines: Vec<String> = fitting.cloned().collect();
    let directive = if choices.is_file { FILES } else { NO_FILES };
    lines.push(format!(":{directive}"));
    crate::out::write(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Names of the jobs in the namespace that the words choose; none if the list fails.
async fn jobs(command: &Command, words: &[String]) -> Vec<String> {
    let program = std::iter::once(command.get_name().to_owned());
    let words = program.chain(words.iter().cloned());
    let read = command
        .clone()
        .ignore_errors(true)
        .try_get_matches_from(words);
    let Some(place) = read.ok().and_then(|it| Place::from_arg_matches(&it).ok()) else {
        return Vec::new();
    };
    let Ok(cluster) = Cluster::connect(&place).await else {
        return Vec::new();
    };
    let jobs = cluster.jobs(false).await.unwrap_or_default();
    jobs.iter().map(ResourceExt::name_any).collect()
}

/// The completions of the last word after the words before it. Pure.
fn choices(root: &Command, before: &[String], last: &str) -> Choices {
    let (mut current, mut num_given, mut pending) = (root, 0, None);
    for word in before {
        if pending.take().is_some() {
            continue;
        }
        if let Some(sub) = current.find_subcommand(word) {
            (current, num_given) = (sub, 0);
        } else if word.starts_with('-') && word != "-" {
            pending = awaiting(root, current, word);
        } else {
            num_given += 1;
        }
    }
    if let Some(option) = pending {
        return values(option);
    }
    if last.starts_with('-') {
        let all = options(root, current).filter(|option| !option.is_hide_set());
        // The set removes duplicates: a global option belongs to the root and to the command.
        let longs = all.filter_map(|option| Some(format!("--{}", option.get_long()?)));
        let longs: BTreeSet<String> = longs.collect();
        return Choices {
            words: longs.into_iter().collect(),
            ..Choices::default()
        };
    }
    if current.has_subcommands() {
        let all = current.get_subcommands().filter(|it| !it.is_hide_set());
        return Choices {
            words: all.map(|it| it.get_name().to_owned()).collect(),
            ..Choices::default()
        };
    }
    let positional = current.get_positionals().nth(num_given);
    positional.map(values).unwrap_or_default()
}

fn options<'a>(root: &'a Command, current: &'a Command) -> impl Iterator<Item = &'a Arg> {
    let own = current.get_arguments().filter(|arg| !arg.is_positional());
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    own.chain(global)
}

/// The option that takes the next word as its value.
fn awaiting<'a>(root: &'a Command, current: &'a Command, word: &str) -> Option<&'a Arg> {
    let found = match word.strip_prefix("--") {
        Some(long) if long.contains('=') => None,
        Some(long) => options(root, current).find(|arg| arg.get_long() == Some(long)),
        None => {
            let short = word.chars().nth(1).filter(|_| word.chars().count() == 2);
            options(root, current).find(|arg| short.is_some() && arg.get_short() == short)
        }
    };
    found.filter(|arg| arg.get_action().takes_values())
}

fn values(arg: &Arg) -> Choices {
    let named = arg.get_value_names().unwrap_or_default();
    let is_path = |name: &clap::builder::Str| matches!(name.as_str(), "FILE" | "DIR" | "PATH");
    Choices {
        words: arg
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect(),
        is_file: named.iter().any(is_path) || arg.get_id() == "kubeconfig",
        is_job: arg.is_positional() && arg.get_id() == "name",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments;

    fn found(words: &[&str]) -> Choices {
        let mut command = arguments::command("kubectl-roundhouse");
        command.build();
        let (last, before) = words.split_last().unwrap();
        let before: Vec<String> = before.iter().map(|&word| word.to_owned()).collect();
        choices(&command, &before, last)
    }

    fn has(words: &[&str], wanted: &str) -> bool {
        found(words).words.iter().any(|word| word == wanted)
    }

    #[test]
    fn commands_options_and_values_are_completed() {
        assert!(has(&[""], "status") && has(&["-n", "ml", ""], "why"));
        assert!(!has(&[""], COMMAND), "it is hidden");
        assert!(has(&["logs", "digits", "--"], "--follow"));
        assert!(has(&["logs", "--"], "--namespace") && !has(&["logs", "--"], "--replicas"));
        assert!(has(&["plot", "digits", "--what", ""], "throughput"));
        assert!(has(&["status", "-o", ""], "yaml"));
        assert!(has(&["completion", ""], "kubectl"));
    }

    #[test]
    fn job_names_and_files_are_completed_in_their_positions() {
        assert!(found(&["status", ""]).is_job);
        assert!(found(&["-n", "ml", "logs", "-f", "di"]).is_job);
        assert!(found(&["logs", "--rank=0", ""]).is_job);
        assert!(!found(&["status", "digits", ""]).is_job, "it has a job");
        assert!(!found(&["logs", "--rank", ""]).is_job, "a value of --rank");
        assert!(found(&["submit", "-f", ""]).is_file);
        assert!(found(&["--kubeconfig", ""]).is_file);
        assert_eq!(found(&["scale", "digits", ""]), Choices::default());
    }

    #[test]
    fn kubectl_script_passes_all_words() {
        let script = script("kubectl-roundhouse");
        assert!(script.starts_with("#!/bin/sh\n"));
        assert!(script.contains("exec kubectl-roundhouse __complete -- \"$@\""));
    }
}
