//! One process as a member of generations, as `roundhouse/loops.py` and `roundhouse/open_step.py` drive it.
//!
//! What blocks runs without Python's lock, which callbacks take for themselves: threads of the script, and the one that
//! ends waits for lost peers, continue meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use roundhouse_contract::environment::{
    CheckpointEnvironment, LaunchEnvironment, MEMBERSHIP_FILE, nccl,
};
use roundhouse_contract::{ExitCode, Reason};
use roundhouse_elastic::Machine;
use roundhouse_member::launch::Source;
use roundhouse_member::lobby;
use roundhouse_member::membership::MembershipWatch;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_member::{Failure, Launch, process};
use roundhouse_report::files::RunFiles;
use roundhouse_report::{Ending, Evaluation, Reporter};

use crate::failure::{misled, raised, returned};
use crate::network::PyNetwork;
use crate::sampler::Course;
use crate::state::PyState;

mod training;

use training::{Agreed, Training};

/// One process of a training.
#[pyclass(module = "roundhouse._native")]
#[derive(Debug)]
pub(crate) struct Process {
    launch: Launch,
    /// A lock that nobody waits for: Python's classes are shared between threads.
    stage: Mutex<Stage>,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// It was told its launch, and has not said what it trains.
    Started(Box<Started>),
    /// It is in the lobby, or in a generation.
    Training(Box<Training>),
    /// It has ended, or is changing to the next stage.
    Over,
}

#[derive(Debug)]
struct Started {
    /// There is one process and one member of it, so the reporter is never freed.
    reporter: &'static mut Reporter,
    machine: Machine,
    watch: Option<MembershipWatch>,
    leave: LeaveRequest,
}

#[pymethods]
impl Process {
    /// What the agent of a worker tells through the environment. Without one it is a world of one, with checkpoints and
    /// the ledger in `checkpoint_dir`.
    #[staticmethod]
    #[pyo3(signature = (checkpoint_dir = None, every_steps = None, every_seconds = None, keep = None))]
    fn start(
        checkpoint_dir: Option<PathBuf>,
        every_steps: Option<u64>,
        every_seconds: Option<u64>,
        keep: Option<u32>,
    ) -> PyResult<Self> {
        process::end_with_agent(variable);
        let has_agent = variable(MEMBERSHIP_FILE).is_some();
        let launch = if has_agent {
            LaunchEnvironment::read(variable).and_then(Launch::from_environment)
        } else {
            let checkpoint = checkpoint_dir.map(|dir| CheckpointEnvironment {
                dir,
                every_steps,
                every_seconds,
                keep: keep.unwrap_or(roundhouse_contract::environment::checkpoint::DEFAULT_KEEP),
                best: None,
                job_uid: None,
            });
            let alone = Launch::alone(PathBuf::new(), PathBuf::new(), None);
            Ok(Launch {
                checkpoint,
                ..alone
            })
        };
        let launch = launch.and_then(|launch| launch.with_settings(variable));
        let launch = launch.map(in_place);
        let launch = launch.map_err(|error| {
            let code = ExitCode::ConfigInvalid;
            process::fail_early(code, &error.to_string(), variable);
            misled(error)
        })?;
        // First of all: documents that are newer than what the file holds now are for this process.
        let (machine, watch) = lobby::enter(&launch).map_err(failed_early)?;
        let reporter = launch.reporter().map_err(failed_early)?;
        // A script that runs alone is ended as any other.
        let leave = if has_agent {
            let words = process::last_words(&launch);
            LeaveRequest::listen(launch.leave_budget, words).map_err(failed_early)?
        } else {
            LeaveRequest::default()
        };
        let started = Started {
            reporter: Box::leak(Box::new(reporter)),
            machine,
            watch,
            leave,
        };
        Ok(Self {
            launch,
            stage: Mutex::new(Stage::Started(Box::new(started))),
        })
    }

    /// Whether an agent has started this process.
    #[getter]
    fn has_agent(&self) -> bool {
        self.launch.run_dir.is_some()
    }

    /// Settings of NCCL that the agent gives to its processes and this one lacks: with those of PyTorch, a process that has lost
    /// a peer is ended by PyTorch's watchdog.
    #[staticmethod]
    fn missing_settings() -> Vec<&'static str> {
        let settings = nccl::settings(0).into_iter().map(|(name, _)| name);
        settings
            .filter(|name| std::env::var_os(name).is_none())
            .collect()
    }

    /// Place on this worker, from 0.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.launch.local_rank
    }

    /// Processes of this worker.
    #[getter]
    fn local_world_size(&self) -> u32 {
        self.launch.local_world_size
    }

    /// Compute threads of this process: its share of the cores that the worker may use, which are those of the
    /// limits of its cgroup and of its affinity, not those of the node.
    fn num_threads(&self) -> usize {
        let wish = variable("OMP_NUM_THREADS");
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.launch.num_threads(wish.as_deref(), num_cores)
    }

    /// The directory of checkpoints and ledger, if there is one.
    #[getter]
    fn checkpoint_dir(&self) -> Option<PathBuf> {
        let checkpoint = self.launch.checkpoint.as_ref();
        checkpoint.map(|checkpoint| checkpoint.dir.clone())
    }

    /// It is prepared: it enters the lobby. `network` has stores and groups, `row` the bytes that are trained, which
    /// consist of `views` (name, type, shape, bytes). `model`, `optimizer` and `settings` name the training: what has to be
    /// equal for a checkpoint to be continued. `leave()` gives up all that uses the group of the present generation.
    #[expect(clippy::too_many_arguments, reason = "as keywords, from one place")]
    #[pyo3(signature = (*, course, model, optimizer, settings, network, row, views, leave))]
    fn prepare(
        &mut self,
        py: Python<'_>,
        course: &Course,
        model: String,
        optimizer: String,
        settings: BTreeMap<String, String>,
        network: Py<PyAny>,
        row: Py<PyAny>,
        views: Vec<(String, String, Vec<usize>, u64)>,
        leave: Py<PyAny>,
    ) -> PyResult<()> {
        let Stage::Started(started) = std::mem::replace(self.stage(), Stage::Over) else {
            return Err(raised(internal("it is prepared already")));
        };
        let state = PyState::new(row, views).map_err(raised)?;
        let named = training::Named {
            model,
            optimizer,
            settings,
        };
        let network = PyNetwork::new(network);
        let launch = &self.launch;
        let prepare = || Training::prepare(launch, *started, course, named, network, state, leave);
        let training = py.detach(prepare);
        let training = training.map_err(failed_early)?;
        *self.stage() = Stage::Training(Box::new(training));
        Ok(())
    }

    /// Forms generations until a step is due: True. False when all steps are committed.
    fn advance(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.advance()))
    }

    /// The group of the generation that it trains in; None in a world of one.
    fn group(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.training()?.group(py))
    }

    /// (generation, rank, world size, committed steps, their samples).
    fn place(&mut self) -> PyResult<(u64, u32, u32, u64, u64)> {
        self.training()?.place().map_err(raised)
    }

    /// Begins the collective at the end of a step, for which [`Self::agree`] waits. `numbers`: what this rank brings to it, a
    /// `roundhouse.step_numbers.StepNumbers`.
    fn tell(&mut self, py: Python<'_>, numbers: Py<PyAny>) -> PyResult<()> {
        let training = self.training()?;
        py.detach(|| training.tell(numbers)).map_err(raised)
    }

    /// The end of a step: the mean loss over the batch, whether all ranks' losses and gradients are finite, and the weight of the
    /// losses of all ranks, 0 if none was given. None when the generation broke: the step is to be dropped and done again; words
    /// when the gradients of the ranks differ, with the same consequence. `broke`: why this rank knows already that it broke.
    #[pyo3(signature = (*, broke = None))]
    fn agree(&mut self, py: Python<'_>, broke: Option<String>) -> PyResult<Option<Agreed>> {
        let training = self.training()?;
        returned(py.detach(|| training.agree(broke)))
    }

    /// All ranks have agreed to commit, and this one has updated its weights unless `skipped`: the step counts.
    /// `spent`: seconds of data, forward, backward, communication and optimizer.
    #[pyo3(signature = (*, skipped, gradient_norm, learning_rate, spent))]
    fn conclude(
        &mut self,
        py: Python<'_>,
        skipped: bool,
        gradient_norm: f64,
        learning_rate: f64,
        spent: [f64; 5],
    ) -> PyResult<()> {
        let training = self.training()?;
        let told = training::Told {
            skipped,
            gradient_norm,
            learning_rate,
            spent,
        };
        returned(py.detach(|| training.conclude(told)))
    }

    /// The generation broke outside of a step's end.
    fn lose(&mut self, py: Python<'_>, why: &str) -> PyResult<()> {
        let training = self.training()?;
        py.detach(|| training.lose(why));
        Ok(())
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "Python's list is copied once"
    )]
    /// Sums finite numbers over the ranks; None when the generation broke, now or before.
    fn sum(&mut self, py: Python<'_>, values: Vec<f64>) -> PyResult<Option<Vec<f64>>> {
        let training = self.training()?;
        returned(py.detach(|| training.sum(&values)))
    }

    /// All steps are committed: the state is saved. False when the generation broke, now or before.
    fn finish(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.finish()))
    }

    /// Committed samples at the last evaluation, the same on all ranks; 0 before the first.
    #[getter]
    fn evaluated(&self) -> u64 {
        match &*self.stage.lock().unwrap_or_else(PoisonError::into_inner) {
            Stage::Training(training) => training.evaluated(),
            Stage::Started(_) | Stage::Over => 0,
        }
    }

    /// The script does something that may take so many seconds on a rank, while the others wait for it.
    fn begin_wait(&mut self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let training = self.training()?;
        let span = Duration::try_from_secs_f64(seconds);
        let span = span.map_err(|error| raised(internal(&error.to_string())))?;
        py.detach(|| training.begin_wait(span));
        returned(Ok(()))
    }

    /// That is over, on all ranks. False: the generation broke, now or before.
    fn end_wait(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.end_wait()))
    }

    /// An evaluation begins: the watchdogs are patient meanwhile. `counts`: it changes the state.
    #[pyo3(signature = (*, counts))]
    fn begin_evaluation(&mut self, py: Python<'_>, counts: bool) -> PyResult<()> {
        let training = self.training()?;
        returned(py.detach(|| training.begin_evaluation(counts)))
    }

    /// The state was evaluated on `num_samples`, with the same result on all ranks. False: the generation broke after that.
    #[pyo3(signature = (*, num_samples, loss, accuracy = None, top5 = None, perplexity = None))]
    fn end_evaluation(
        &mut self,
        py: Python<'_>,
        num_samples: u64,
        loss: f64,
        accuracy: Option<f64>,
        top5: Option<f64>,
        perplexity: Option<f64>,
    ) -> PyResult<bool> {
        let evaluation = Evaluation {
            accuracy,
            top5,
            perplexity,
            loss,
            num_samples,
        };
        let training = self.training()?;
        py.detach(|| training.evaluated_as(&evaluation))
            .map_err(raised)
    }

    /// Training is complete, and this process has nothing more to do.
    fn done(&mut self, py: Python<'_>) {
        if let Stage::Training(training) = std::mem::replace(self.stage(), Stage::Over) {
            py.detach(|| training.done());
        }
    }

    /// This process ends before its training is complete, with an exit code, None for an error of the script, and last
    /// words. `newer`: a generation that has superseded it.
    #[pyo3(signature = (code, words, newer = None))]
    fn fail(&mut self, py: Python<'_>, code: Option<i32>, words: String, newer: Option<u64>) {
        let known = code.and_then(ExitCode::from_code);
        let code = known.unwrap_or(ExitCode::Internal);
        let ending = Ending { code, words, newer };
        let stage = std::mem::replace(self.stage(), Stage::Over);
        let launch = &self.launch;
        py.detach(|| match stage {
            Stage::Started(started) => tell_end(launch, started.reporter, &ending, known.is_none()),
            Stage::Training(mut training) => {
                tell_end(launch, training.reporter(), &ending, known.is_none());
                training.give_up();
            }
            Stage::Over => {}
        });
    }
}

impl Process {
    fn stage(&mut self) -> &mut Stage {
        self.stage.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn training(&mut self) -> PyResult<&mut Training> {
        match self.stage() {
            Stage::Training(training) => Ok(training),
            Stage::Started(_) => Err(raised(internal("it has not said what it trains"))),
            Stage::Over => Err(raised(internal("it has ended"))),
        }
    }
}

/// `is_of_script`: the error is not one of ours.
fn tell_end(launch: &Launch, reporter: &mut Reporter, ending: &Ending, is_of_script: bool) {
    reporter.fail(ending);
    if let (true, Some(run_dir)) = (is_of_script, &launch.run_dir) {
        let mut words = reporter.last_words(ending);
        words.reason = Reason::Crashed;
        RunFiles::new(run_dir, launch.local_rank).write_failure(&words);
    }
}

/// The last words of a process that ends before it has joined, with an exit code of the package's exceptions.
#[pyfunction]
pub(crate) fn fail_early(code: i32, words: &str) {
    let code = ExitCode::from_code(code).unwrap_or(ExitCode::Internal);
    process::fail_early(code, words, variable);
}

/// A failure of a process whose reporter is not there, or not any more.
fn failed_early(failure: Failure) -> PyErr {
    let Ending { code, words, .. } = failure.ending();
    process::fail_early(code, &words, variable);
    raised(failure)
}

/// The launch with absolute paths: a script may change its directory.
fn in_place(mut launch: Launch) -> Launch {
    let fix = |path: &mut PathBuf| {
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute;
        }
    };
    if let Some(checkpoint) = &mut launch.checkpoint {
        fix(&mut checkpoint.dir);
    }
    if let Some(run_dir) = &mut launch.run_dir {
        fix(run_dir);
    }
    if let Source::Membership { file, .. } = &mut launch.source {
        fix(file);
    }
    launch
}

fn internal(words: &str) -> Failure {
    Failure::Internal(words.to_owned())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
