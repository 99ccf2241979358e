//! Converts commands: removes torchrun, because the agent replaces it.

/// The command that the agent runs once for each process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) words: Vec<String>,
    /// Processes of each worker, from torchrun's option `--nproc-per-node`.
    pub(super) procs: Option<u32>,
    pub(super) notes: Vec<String>,
}

/// Options of torchrun without a value.
const FLAGS: [&str; 7] = [
    "standalone",
    "no-python",
    "run-path",
    "module",
    "m",
    "use-env",
    "virtual-local-rank",
];
/// Programs that start the processes of a worker themselves.
const LAUNCHERS: [&str; 6] = [
    "accelerate",
    "deepspeed",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "colossalai",
];
/// Variables that other operators set in the pod. Roundhouse sets them only for the processes, so
/// the kubelet does not replace `$(RANK)`.
const POD_VARIABLES: [&str; 7] = [
    "$(RANK)",
    "$(WORLD_SIZE)",
    "$(LOCAL_RANK)",
    "$(NODE_RANK)",
    "$(MASTER_ADDR)",
    "$(MASTER_PORT)",
    "$(PET_",
];

/// Notes on the words of a command or on values of variables that the user must check.
pub(super) fn warnings<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut notes = Vec::new();
    for word in words {
        // A command line for a shell is one argument with several words.
        for part in word.split_whitespace() {
            let program = part.rsplit('/').next().unwrap_or(part);
            if LAUNCHERS.contains(&program) {
                notes.push(format!(
                    "{program} starts its own processes: put the script itself into command; the agent starts it once for each process"
                ));
            }
        }
        for variable in POD_VARIABLES.iter().filter(|it| word.contains(**it)) {
            notes.push(format!(
                "{variable}{}: the variable exists in the processes, not in the pod, so it is not replaced; read it in the script",
                if variable.ends_with(')') { "" } else { "…)" }
            ));
        }
    }
    notes
}

/// The command of a container, without torchrun.
pub(super) fn of(command: &[String], args: &[String]) -> Command {
    let mut words: Vec<String> = [command, args].concat();
    if command.is_empty() {
        words.insert(0, "replace-with-the-entry-point-of-the-image".to_owned());
        return Command {
            words,
            procs: None,
            notes: vec!["the container has no command, and the entry point of its image is unknown: put it into command".to_owned()],
        };
    }
    let Some((before, all)) = launcher(&words) else {
        let is_hidden = words
            .iter()
            .any(|word| word.contains("torchrun") || word.contains("torch.distributed"));
        let note = "a shell starts torchrun: put the script itself into command; the agent starts it once for each process";
        return Command {
            notes: if is_hidden {
                vec![note.to_owned()]
            } else {
                Vec::new()
            },
            words,
            procs: None,
        };
    };
    let (mut procs, mut notes, mut interpreter) = (None, Vec::new(), vec![before]);
    let (mut dropped, mut rest) = (Vec::new(), all.as_slice());
    while let Some(option) = rest.first().and_then(|word| word.strip_prefix('-')) {
        let option = option.trim_start_matches('-');
        let (name, value) = option
            .split_once('=')
            .map_or((option, None), |(name, value)| (name, Some(value)));
        let name = name.replace('_', "-");
        let is_flag = FLAGS.contains(&name.as_str());
        let taken = if is_flag || value.is_some() { 1 } else { 2 };
        let value = value.or_else(|| rest.get(1).copied()).filter(|_| !is_flag);
        match name.as_str() {
            "m" | "module" => interpreter.push("-m"),
            "no-python" => interpreter.clear(),
            "nproc-per-node" => match value.and_then(|value| value.parse().ok()) {
                Some(number) => procs = Some(number),
                None => notes.push(
                    "torchrun --nproc-per-node is not a number: workers have a process for each GPU of their limits".to_owned(),
                ),
            },
            _ => dropped.push(format!("--{name}")),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    if !dropped.is_empty() {
        notes.push(format!(
            "options of torchrun are left out, because the agent replaces it: {}",
            dropped.join(" ")
        ));
    }
    if rest.is_empty() {
        notes.push("no script follows the options of torchrun: put it into command".to_owned());
    }
    if passes_local_rank(&words) {
        notes.push(
            "torch.distributed.launch without --use_env gives the script --local-rank: read the variable LOCAL_RANK instead"
                .to_owned(),
        );
    }
    let script = rest.iter().map(|word| (*word).to_owned());
    Command {
        words: interpreter
            .into_iter()
            .map(str::to_owned)
            .chain(script)
            .collect(),
        procs,
        notes,
    }
}

/// Whether the legacy launcher passes the local rank as an argument; `--use-env` turns that off.
fn passes_local_rank(words: &[String]) -> bool {
    let has = |name: &str| words.iter().any(|word| word.replace('_', "-") == name);
    has("torch.distributed.launch") && !has("--use-env")
}

/// The interpreter, and the words after the launcher, if the command begins with a launcher.
fn launcher(words: &[String]) -> Option<(&str, Vec<&str>)> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is = |word: &str, name: &str| word.rsplit('/').next() == Some(name);
    match words[..] {
        [first, ..] if is(first, "torchrun") => Some(("python", words[1..].to_vec())),
        [
            python,
            "-m",
            "torch.distributed.run" | "torch.distributed.launch",
            ..,
        ] => Some((python, words[3..].to_vec())),
        [
            python,
            "-u",
            "-m",
            "torch.distributed.run" | "torch.distributed.launch",
            ..,
        ] => Some((python, words[4..].to_vec())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(command: &str) -> Command {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        of(&words, &[])
    }

    #[test]
    fn torchrun_is_removed_and_its_processes_are_kept() {
        for (command, expected, procs) in [
            ("python train.py --lr 1", "python train.py --lr 1", None),
            (
                "torchrun --nproc_per_node=4 train.py --lr 1",
                "python train.py --lr 1",
                Some(4),
            ),
            (
                "torchrun --nnodes 2:4 --nproc-per-node 2 -m pkg.train -x",
                "python -m pkg.train -x",
                Some(2),
            ),
            (
                "/opt/bin/torchrun --standalone --no-python ./train",
                "./train",
                None,
            ),
            (
                "python -m torch.distributed.launch --nproc_per_node=2 --use_env /s/train.py --epochs 3",
                "python /s/train.py --epochs 3",
                Some(2),
            ),
            (
                "python3 -m torch.distributed.run --rdzv-id=a train.py",
                "python3 train.py",
                None,
            ),
        ] {
            let found = converted(command);
            assert_eq!(
                (found.words.join(" ").as_str(), found.procs),
                (expected, procs),
                "{command}"
            );
        }
        assert!(converted("torchrun --rdzv-id=a x.py").notes[0].contains("--rdzv-id"));
    }

    #[test]
    fn command_that_cannot_be_converted_is_noted() {
        let words = ["sh", "-c", "torchrun train.py"].map(str::to_owned);
        assert!(of(&words, &[]).notes[0].contains("shell"));
        let none = of(&[], &["train.py".to_owned()]);
        assert!(none.notes[0].contains("no command") && none.words.len() == 2);
        assert!(converted("torchrun --nproc-per-node=gpu a.py").notes[0].contains("each GPU"));
        assert!(converted("torchrun --nnodes 2").notes[1].contains("no script"));
        let legacy = converted("python -m torch.distributed.launch train.py");
        assert!(legacy.notes[0].contains("LOCAL_RANK"));
    }

    #[test]
    fn other_launchers_and_variables_of_the_pod_are_noted() {
        for (word, noted) in [
            ("/opt/bin/accelerate", "accelerate starts"),
            ("deepspeed --hostfile /h train.py", "deepspeed starts"),
            ("--machine_rank=$(RANK)", "$(RANK): "),
            ("$(PET_NNODES)", "$(PET_…)"),
        ] {
            let notes = warnings(std::iter::once(word));
            assert!(notes.len() == 1 && notes[0].contains(noted), "{notes:?}");
        }
        assert_eq!(warnings(["python", "rank=$RANK"].into_iter()), [""; 0]);
    }
}
