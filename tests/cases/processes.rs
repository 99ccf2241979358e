//! Runs the plugin for cases that processes of this machine show.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use roundhouse_tests::local::programs;
use roundhouse_tests::manifests::repository;
use tempfile::TempDir;

use crate::case::{Edit, Run};

/// The limit of a run. A run takes up to a minute, and many times as long on a busy machine.
const DEADLINE: Duration = Duration::from_mins(6);

/// Runs the plugin for each run of a case, one after the other in one copy of its folder.
pub(crate) fn run_all(folder: &Path, runs: &[Run]) -> anyhow::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let copy = TempDir::new()?;
    copy_files(folder, copy.path())?;
    for (number, run) in (1..).zip(runs) {
        let files = RunFiles {
            directory: copy.path(),
            output: copy.path().join(format!("output-{number}")),
        };
        files.run(run).with_context(|| run.plugin.clone())?;
    }
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        std::fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// The files of a run: the copy of the case's folder, and the file of the plugin's output.
struct RunFiles<'a> {
    directory: &'a Path,
    output: PathBuf,
}

impl RunFiles<'_> {
    fn run(&self, run: &Run) -> anyhow::Result<()> {
        if let Some(script) = &run.before {
            let mut bash = self.command("bash");
            let ended = bash.args(["-euc", &with_repository(script)]).status()?;
            ensure!(ended.success(), "the commands of `before` failed: {ended}");
        }
        let mut plugin = KillOnDrop(self.start(run)?);
        let deadline = Instant::now() + DEADLINE;
        let mut edit = run.edit.as_ref();
        let ended = loop {
            if let Some(ended) = plugin.0.try_wait()? {
                break ended;
            }
            edit = edit.filter(|edit| !self.edit_if_due(edit));
            if Instant::now() > deadline {
                bail!("the plugin does not end\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = self.text();
        ensure!(
            edit.is_none(),
            "the output never contained `after` of the edit\n{text}"
        );
        ensure!(ended.code() == Some(run.exit), "{ended}\n{text}");
        for word in &run.says {
            ensure!(text.contains(word), "the output lacks: {word}\n{text}");
        }
        for word in &run.never {
            ensure!(
                !text.contains(word),
                "the output must not contain: {word}\n{text}"
            );
        }
        Ok(())
    }

    fn start(&self, run: &Run) -> anyhow::Result<Child> {
        let plugin = programs()?.join("kubectl-roundhouse");
        let plugin = plugin.canonicalize().context("build the plugin first")?;
        let under = run.under.as_deref().unwrap_or("env");
        let mut under = under.split_whitespace();
        let mut command = self.command(under.next().unwrap_or("env"));
        command.args(under).arg(plugin);
        let arguments = with_repository(&run.plugin);
        command.args(arguments.split_whitespace());
        let output = File::create(&self.output)?;
        command.stdout(output.try_clone()?).stderr(output);
        Ok(command.spawn()?)
    }

    /// A command that runs in the copy of the folder. `python` is the interpreter with PyTorch.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory);
        command.env("OMP_NUM_THREADS", "1");
        let python = std::env::var_os("ROUNDHOUSE_PYTHON").map(PathBuf::from);
        if let Some(directory) = python.as_deref().and_then(Path::parent) {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = [directory.to_owned()].into_iter();
            let all = std::env::join_paths(all.chain(std::env::split_paths(&path)));
            command.env("PATH", all.unwrap_or(path));
        }
        command
    }

    /// Changes the job's file if the output contains `after`. Returns whether it has.
    fn edit_if_due(&self, edit: &Edit) -> bool {
        let (file, partial) = (
            self.directory.join("job.yaml"),
            self.directory.join("partial"),
        );
        let is_due = self.text().contains(&edit.after);
        let change = || -> std::io::Result<()> {
            let text = std::fs::read_to_string(&file)?;
            std::fs::write(&partial, text.replace(&edit.from, &edit.to))?;
            std::fs::rename(&partial, &file)
        };
        is_due && change().is_ok()
    }

    /// The output of the plugin and the logs of its workers so far.
    fn text(&self) -> String {
        let read = |path: &Path| std::fs::read(path).unwrap_or_default();
        let mut text = read(&self.output);
        let logs = std::fs::read_dir(self.directory.join("run/logs"));
        for entry in logs.into_iter().flatten().flatten() {
            text.extend(read(&entry.path()));
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn with_repository(text: &str) -> String {
    let path = repository();
    let path = path.canonicalize().unwrap_or(path);
    text.replace("$REPOSITORY", &path.display().to_string())
}

/// Kills the plugin when it is dropped. Its workers end with it.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
