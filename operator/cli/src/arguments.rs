//! The command line: commands, options and examples.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::out::Format;
use crate::{cluster, command, local};

/// Short name of the program, for calls without kubectl.
const SHORT_NAME: &str = "krh";

const AFTER_HELP: &str = "\
Examples:
  kubectl roundhouse submit -f job.yaml --watch   apply a job and follow it; Ctrl-C stops following
  kubectl roundhouse status                       all jobs of the namespace
  kubectl roundhouse status digits                one job: ranks, events, what happens next
  kubectl roundhouse why digits                   why it does not train, and what to do
  kubectl roundhouse logs digits -f --rank 0,3-5  the lines of four ranks in one stream
  kubectl roundhouse scale digits 4               the present workers keep training
  kubectl roundhouse ui                           the jobs in a browser
  kubectl roundhouse run --local -f job.yaml      without a cluster

A link named krh is a shorter name: ln -s \"$(command -v kubectl-roundhouse)\" ~/.local/bin/krh

Exit codes:
  0    done; watch and run: the job succeeded; why: nothing is wrong
  1    the command failed; watch and run: the job failed
  2    the command line is wrong; watch: the job has not ended in time
  3    watch: the job was deleted
  4    why: something is wrong
  130  ended by Ctrl-C";

/// Run TrainingJobs on this machine, and submit, follow, explain and control TrainingJobs of a
/// cluster.
///
/// Put it on the PATH and call it as `kubectl roundhouse`. It uses kubectl's configuration.
#[derive(Debug, Parser)]
#[command(name = "kubectl-roundhouse", bin_name = "kubectl roundhouse", version, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) place: cluster::Place,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a file and apply it.
    #[command(after_help = "\
Examples:
  kubectl roundhouse submit -f job.yaml --dry-run   the API server checks the file and changes nothing
  kubectl roundhouse submit -f job.yaml --watch     exit code 0 if the job succeeds, 1 if it fails
  kubectl roundhouse convert -f pytorchjob.yaml | kubectl roundhouse submit -f -")]
    Submit(command::submit::Options),
    /// Show a job in full, or all jobs in a table.
    #[command(after_help = "\
Examples:
  kubectl roundhouse status -A
  kubectl roundhouse status digits -o json | jq .progress.evalAccuracy

LAG is the number of steps that a rank is behind the furthest one. SAMPLES/S is the rank's share of the job's throughput.
The command polls the agents of the first 64 workers; for the other workers it shows only what the API server has.")]
    Status(command::status::Options),
    /// Explain why a job does not train: one diagnosis, its evidence, what to do. Exit code 4 if
    /// something is wrong.
    Why(command::why::Options),
    /// Show a job live until it ends. Exit code: 0 succeeded, 1 failed, 2 not in time, 3 deleted.
    Watch {
        /// Name of the job.
        name: String,
        /// Stop following after this many seconds.
        #[arg(long, default_value_t = crate::watch::DEFAULT_SECONDS)]
        timeout: u64,
        /// Print a document for each change instead of text: JSON in one line each, or YAML between
        /// `---`.
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Show jobs or ranks live, in a table.
    Top(command::top::Options),
    /// Print the log lines of all ranks in one stream.
    #[command(after_help = "\
Examples:
  kubectl roundhouse logs digits --tail 20            the last lines of each pod, merged by time
  kubectl roundhouse logs digits -f --since 5m        the last five minutes, then new lines until the job ends
  kubectl roundhouse logs digits --previous --rank 3  what rank 3 logged before its container was restarted
  kubectl roundhouse logs digits -o json              one document for each line")]
    Logs(command::logs::Options),
    /// Plot loss, throughput or world size over time, from the lines that rank 0 has logged.
    #[command(after_help = "\
Examples:
  kubectl roundhouse plot digits
  kubectl roundhouse plot digits --what throughput
  kubectl roundhouse plot digits --what loss -o svg > loss.svg")]
    Plot(command::plot::Options),
    /// Serve a web page of the jobs to this user of this machine: ranks, curves, generations,
    /// incidents, logs.
    #[command(after_help = "\
Examples:
  kubectl roundhouse ui                    the jobs of the namespace; Ctrl-C ends it
  kubectl roundhouse ui digits --open      the page of one job, in the browser
  kubectl roundhouse ui --local /tmp/long  a run of `run --local --dir /tmp/long`

The page is read-only and updates itself. It is served only on 127.0.0.1, and its address contains a random secret, so
that other users of this machine cannot read it. On another machine, forward the port and keep its number:
ssh -L 8001:127.0.0.1:8001 HOST, with --port 8001 there.

While a page is open and visible, it polls the API server every two seconds, or less often if answers take long.")]
    Ui(command::ui::Options),
    /// Change the number of workers while a job trains.
    Scale(command::change::Scale),
    /// Suspend a job: its workers leave, after a checkpoint if the job has spec.checkpoint.
    /// `resume` continues it.
    Suspend(command::change::Suspend),
    /// Resume a suspended job: new workers continue from its checkpoint.
    Resume(command::change::One),
    /// Delete a job; checkpoints on its volume stay.
    Stop(command::change::One),
    /// Write a zip file with everything that explains a job: objects, events, logs, metrics. It
    /// reads no Secrets, and it leaves out text that looks like a secret.
    Report(command::report::Options),
    /// Turn a PyTorchJob, TrainJob or RayJob into a TrainingJob.
    #[command(after_help = "\
Examples:
  kubectl roundhouse convert -f pytorchjob.yaml > job.yaml
  kubectl get pytorchjob mnist -o yaml | kubectl roundhouse convert -f -

Comments at the top of the result list what could not be converted. Read them before you submit it.")]
    Convert(command::convert::Options),
    /// Run a job's workers as processes on this machine, without a cluster: with the same planner,
    /// the same trainer or your own script, and as elastic as on pods. Ctrl-C ends the run and all
    /// its processes. Exit codes are those of `watch`; 130 after Ctrl-C.
    Run(local::Options),
    /// Print the metrics of a running job's worker.
    Metrics {
        /// Name of the job.
        name: String,
        /// Print only lines that contain this text.
        #[arg(long, default_value = "")]
        filter: String,
        /// Print a document instead of text: name, labels and value of each sample.
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Print a script that lets a shell complete commands and options.
    #[command(after_help = "\
Examples:
  source <(kubectl-roundhouse completion bash)
  krh completion zsh --name krh > ~/.zfunc/_krh
  kubectl-roundhouse completion kubectl > ~/.local/bin/kubectl_complete-roundhouse

The last one is for `kubectl roundhouse`: with kubectl's own completion in the shell, kubectl runs the program
kubectl_complete-roundhouse on the PATH. Make it executable with chmod +x. It completes names of jobs, too.")]
    Completion(command::completion::Options),
    /// Print completions of a word, for kubectl.
    #[command(name = command::complete::COMMAND, hide = true, disable_help_flag = true)]
    Complete(command::complete::Options),
    /// Show the versions of this program, of the operator and of Kubernetes.
    Version(command::version::Options),
}

/// The command, named as the program was called.
pub(crate) fn command(called: &str) -> clap::Command {
    let command = Arguments::command();
    if std::path::Path::new(called)
        .file_stem()
        .is_some_and(|name| name == SHORT_NAME)
    {
        return command.bin_name(SHORT_NAME);
    }
    command
}

/// Parses the command line. Ends the program with exit code 2 if it is wrong.
pub(crate) fn parse() -> Arguments {
    let called = std::env::args().next().unwrap_or_default();
    let matches = command(&called).get_matches();
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_valid_and_has_a_description() {
        let mut command = command("/usr/bin/krh");
        command.clone().debug_assert();
        assert!(command.render_usage().to_string().contains("krh"));
        for inner in command.get_subcommands() {
            assert!(inner.get_about().is_some(), "{}", inner.get_name());
        }
    }

    #[test]
    fn examples_in_help_texts_parse() {
        let mut help = vec![AFTER_HELP.to_owned()];
        let command = command("kubectl-roundhouse");
        help.extend(
            command
                .get_subcommands()
                .filter_map(|it| Some(it.get_after_help()?.to_string())),
        );
        let mut num_examples = 0;
        for line in help.iter().flat_map(|text| text.lines()) {
            let Some(example) = line.trim().strip_prefix("kubectl roundhouse ") else {
                continue;
            };
            // An explanation follows after two spaces, another program after | or >.
            let example = example.split("  ").next().unwrap();
            let words = example
                .split([' '])
                .take_while(|word| !matches!(*word, "|" | ">"));
            let words = std::iter::once("kubectl-roundhouse").chain(words);
            if let Err(error) = Arguments::try_parse_from(words) {
                panic!("{line}: {error}");
            }
            num_examples += 1;
        }
        assert!(num_examples > 15, "{num_examples}");
    }
}
