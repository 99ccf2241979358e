//! Runs the cases: situations that users met, one folder each, with the expected result.
//! `README.md` lists them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use roundhouse_tests::manifests::repository;

mod case;
mod control_plane;
mod named;
mod processes;
mod steps;
mod values;

use case::Case;
use control_plane::ControlPlane;

/// The least number of cases, so that a wrong path cannot hide all of them.
const MIN_CASES: usize = 24;

fn main() -> ExitCode {
    let control_plane = Arc::new(ControlPlane::default());
    let mut trials: Vec<Trial> = folders()
        .into_iter()
        .map(|folder| {
            let control_plane = Arc::clone(&control_plane);
            let name = name_of(&folder);
            Trial::test(name, move || failed(run(&folder, &control_plane)))
        })
        .collect();
    trials.push(Trial::test("index", || failed(index_is_complete())));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    // Ends the processes of the control plane.
    drop(control_plane);
    conclusion.exit_code()
}

fn failed(result: anyhow::Result<()>) -> Result<(), Failed> {
    result.map_err(|error| Failed::from(format!("{error:#}")))
}

/// The folders of all cases, in the order of their numbers.
fn folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("tests/cases"));
    let paths = entries.into_iter().flatten().flatten().map(|it| it.path());
    let mut folders: Vec<PathBuf> = paths.filter(|it| it.is_dir()).collect();
    folders.sort();
    folders
}

fn name_of(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Runs a case and compares the result with its expectation.
fn run(folder: &Path, control_plane: &ControlPlane) -> anyhow::Result<()> {
    let case = Case::read(folder)?;
    named::all_exist(&case.shown_by)?;
    processes::run_all(folder, &case.runs)?;
    if !case.operator.is_empty() {
        control_plane.run_steps(folder, &name_of(folder), &case.operator)?;
    }
    Ok(())
}

/// Checks that the README has a line for each case with its sentence.
fn index_is_complete() -> anyhow::Result<()> {
    let folders = folders();
    ensure!(folders.len() >= MIN_CASES, "{} folders", folders.len());
    let text = std::fs::read_to_string(repository().join("tests/cases/README.md"))?;
    for folder in folders {
        let (name, case) = (name_of(&folder), Case::read(&folder)?);
        let target = format!("[{name}]({name}/expect.yaml)");
        let line = text.lines().find(|line| line.contains(&target));
        let line = line.with_context(|| format!("README.md has no line with {target}"))?;
        let failure = &case.failure;
        ensure!(
            line.contains(failure),
            "{name}: the README says\n{line}\ninstead of\n{failure}"
        );
    }
    Ok(())
}
