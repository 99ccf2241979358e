//! Commands: torchrun is left out, because the agent does what it does.

/// What a container runs, once for each process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) words: Vec<String>,
    /// Processes of each worker, if torchrun was told so.
    pub(super) procs: Option<u32>,
    pub(super) notes: Vec<String>,
}

/// Options of torchrun that have no value.
const FLAGS: [&str; 5] = ["standalone", "no-python", "run-path", "module", "m"];

/// The command of a container, without torchrun.
pub(super) fn of(command: &[String], args: &[String]) -> Command {
    let mut words: Vec<String> = [command, args].concat();
    if command.is_empty() {
        words.insert(0, "replace-with-the-entry-point-of-the-image".to_owned());
        return Command {
            words,
            procs: None,
            notes: vec!["the container has no command, and that of its image is not known here: put it into command".to_owned()],
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
            "options of torchrun are left out, as the agent takes its place: {}",
            dropped.join(" ")
        ));
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

/// The interpreter, and what follows the launcher, if the command begins with one.
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
    fn torchrun_is_left_out_and_its_processes_are_kept() {
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
    fn what_cannot_be_rewritten_is_noted() {
        let words = ["sh", "-c", "torchrun train.py"].map(str::to_owned);
        assert!(of(&words, &[]).notes[0].contains("shell"));
        let none = of(&[], &["train.py".to_owned()]);
        assert!(none.notes[0].contains("no command") && none.words.len() == 2);
        assert!(converted("torchrun --nproc-per-node=gpu a.py").notes[0].contains("each GPU"));
    }
}
