//! One process as a member of generations. `roundhouse/loops.py` and `roundhouse/open_step.py`
//! drive it.
//!
//! Blocking calls run without Python's lock, and callbacks take the lock themselves. So threads of
//! the script, and the thread that ends waits for lost peers, continue meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::nccl;
use roundhouse_elastic::Machine;
use roundhouse_member::lobby;
use roundhouse_member::membership::MembershipWatch;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_member::{Failure, Launch, process};
use roundhouse_report::{Ending, Evaluation, Reporter};

use crate::failure::{misled, raised, returned};
use crate::network::PyNetwork;
use crate::sampler::SampleSchedule;
use crate::state::{PyState, Shared};

pub(crate) mod endings;
mod launches;
mod training;

use endings::{failed_early, report_end};
use launches::variable;
use training::{Agreed, Generations, Training};

/// One process of a training.
#[pyclass(module = "roundhouse._native")]
#[derive(Debug)]
pub(crate) struct Process {
    launch: Launch,
    /// The lock is never contended. Python's classes must be `Sync`, because threads share them.
    stage: Mutex<Stage>,
}

/// The stage of a process.
#[derive(Debug)]
enum Stage {
    /// The process has read its launch, and the script has not passed its state yet.
    Started(Box<Started>),
    /// The process is in the lobby or in a generation.
    Training(Box<Training>),
    /// The process has ended, or is changing to the next stage.
    Over,
}

#[derive(Debug)]
struct Started {
    /// A process has only one member, so the reporter is never freed.
    reporter: &'static mut Reporter,
    machine: Machine,
    watch: Option<MembershipWatch>,
    leave: LeaveRequest,
}

#[pymethods]
impl Process {
    /// Reads the launch from the environment that the agent of a worker sets. Without an agent the
    /// process trains alone, with checkpoints and the ledger in `checkpoint_dir`.
    #[staticmethod]
    #[pyo3(signature = (checkpoint_dir = None, every_steps = None, every_seconds = None, keep = None))]
    fn start(
        checkpoint_dir: Option<PathBuf>,
        every_steps: Option<u64>,
        every_seconds: Option<u64>,
        keep: Option<u32>,
    ) -> PyResult<Self> {
        process::end_with_agent(variable);
        let has_agent = launches::has_agent();
        let launch = if has_agent {
            launches::of_agent()
        } else {
            let checkpoint = checkpoint_dir
                .map(|dir| launches::checkpoints(dir, every_steps, every_seconds, keep));
            launches::alone(checkpoint)
        };
        let launch = launch.map_err(|error| {
            let code = ExitCode::ConfigInvalid;
            process::fail_early(code, &error.to_string(), variable);
            misled(error)
        })?;
        // Do this first: memberships that are newer than the file's current content are for this
        // process.
        let (machine, watch) = lobby::enter(&launch).map_err(failed_early)?;
        let reporter = launch.reporter().map_err(failed_early)?;
        // A script that runs alone handles signals like any other script.
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

    /// Settings of NCCL that the agent sets for its processes and that are missing here. With
    /// PyTorch's defaults, PyTorch's watchdog ends a process that has lost a peer.
    #[staticmethod]
    fn missing_settings() -> Vec<&'static str> {
        let settings = nccl::settings(0).into_iter().map(|(name, _)| name);
        settings
            .filter(|name| std::env::var_os(name).is_none())
            .collect()
    }

    /// Rank of the process within its worker, from 0.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.launch.local_rank
    }

    /// Number of processes of this worker.
    #[getter]
    fn local_world_size(&self) -> u32 {
        self.launch.local_world_size
    }

    /// Number of compute threads of this process: its share of the cores that the worker may use.
    /// Limits of the cgroup and of the CPU affinity count, not the cores of the node.
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

    /// Enters the lobby after all preparations. `network` creates stores and groups. `row` has the
    /// trained bytes, which consist of `views` (name, type, shape, bytes). `model`, `optimizer` and
    /// `settings` identify the training: they must be equal to continue from a checkpoint.
    /// `generations` is a `roundhouse.generations.Generations`. `shared`: the bytes of the views
    /// that this process of a replica has.
    #[expect(clippy::too_many_arguments, reason = "as keywords, from one place")]
    #[pyo3(signature = (*, schedule, model, optimizer, settings, network, row, views, generations, shared = None))]
    fn prepare(
        &mut self,
        py: Python<'_>,
        schedule: &SampleSchedule,
        model: String,
        optimizer: String,
        settings: BTreeMap<String, String>,
        network: Py<PyAny>,
        row: Py<PyAny>,
        views: Vec<(String, String, Vec<usize>, u64)>,
        generations: Py<PyAny>,
        shared: Option<Shared>,
    ) -> PyResult<()> {
        let Stage::Started(started) = std::mem::replace(self.stage(), Stage::Over) else {
            return Err(raised(internal("the process is already prepared")));
        };
        let state = PyState::new(row, views, shared).map_err(raised)?;
        let named = training::Named {
            model,
            optimizer,
            settings,
        };
        let network = PyNetwork::new(network);
        let generations = Generations::new(generations);
        let launch = &self.launch;
        let prepare = || {
            Training::prepare(
                launch,
                *started,
                schedule,
                named,
                network,
                state,
                generations,
            )
        };
        let training = py.detach(prepare);
        let training = training.map_err(failed_early)?;
        *self.stage() = Stage::Training(Box::new(training));
        Ok(())
    }

    /// Must be called before [`Self::advance`]. Begins the saves that are due after the body of a
    /// committed step. Returns whether the collectives of this have succeeded; None if there was
    /// none.
    fn end_body(&mut self, py: Python<'_>) -> PyResult<Option<bool>> {
        let training = self.training()?;
        returned(py.detach(|| training.end_body()))
    }

    /// Forms generations until a step is due, and returns True. Returns False when all steps are
    /// committed.
    fn advance(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.advance()))
    }

    /// The group of the current generation; None with one process.
    fn group(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.training()?.group(py))
    }

    /// (generation, rank, world size, committed steps, committed samples).
    fn place(&mut self) -> PyResult<(u64, u32, u32, u64, u64)> {
        self.training()?.place().map_err(raised)
    }

    /// Starts the vote at the end of a step; [`Self::agree`] waits for it. `numbers`: this rank's
    /// vote, a `roundhouse.step_numbers.StepNumbers`.
    fn vote(&mut self, py: Python<'_>, numbers: Py<PyAny>) -> PyResult<()> {
        let training = self.training()?;
        py.detach(|| training.send_vote(numbers)).map_err(raised)
    }

    /// The result of the vote: the mean loss over the batch, whether all ranks' losses and
    /// gradients are finite, and the weight of all losses (0 if no weight was given). None if the
    /// generation failed: the step must be dropped and repeated. A string if the gradients of the
    /// ranks differ, with the same consequence. `broke`: the reason if this rank already knows that
    /// the generation has failed.
    #[pyo3(signature = (*, broke = None))]
    fn agree(&mut self, py: Python<'_>, broke: Option<String>) -> PyResult<Option<Agreed>> {
        let training = self.training()?;
        returned(py.detach(|| training.agree(broke)))
    }

    /// Counts a step that all ranks have voted to commit, after this rank has updated its weights
    /// (unless `skipped`). `spent`: seconds of data, forward, backward, communication and
    /// optimizer.
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
        let report = training::CommitReport {
            skipped,
            gradient_norm,
            learning_rate,
            spent,
        };
        returned(py.detach(|| training.conclude(report)))
    }

    /// As `conclude`, for a step in doubt: the replica was lost before this process knew whether
    /// the others have committed the step. It reports nothing.
    #[pyo3(signature = (*, skipped))]
    fn conclude_in_doubt(&mut self, py: Python<'_>, skipped: bool) -> PyResult<()> {
        let training = self.training()?;
        returned(py.detach(|| training.conclude_in_doubt(skipped)))
    }

    /// Must be called if the generation has failed outside of a step's end.
    fn lose(&mut self, py: Python<'_>, why: &str) -> PyResult<()> {
        let training = self.training()?;
        py.detach(|| training.lose(why));
        Ok(())
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "Python's list is copied once"
    )]
    /// Sums finite numbers over the ranks. None if the generation has failed, now or before.
    fn sum(&mut self, py: Python<'_>, values: Vec<f64>) -> PyResult<Option<Vec<f64>>> {
        let training = self.training()?;
        returned(py.detach(|| training.sum(&values)))
    }

    /// Saves the state after the last step. False if the generation has failed, now or before.
    fn finish(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.finish()))
    }

    /// Committed samples at the last evaluation, the same on all ranks; 0 before the first
    /// evaluation.
    #[getter]
    fn evaluated(&self) -> u64 {
        match &*self.stage.lock().unwrap_or_else(PoisonError::into_inner) {
            Stage::Training(training) => training.evaluated(),
            Stage::Started(_) | Stage::Over => 0,
        }
    }

    /// Must be called before work of the script that may take `seconds` on a rank while the others
    /// wait.
    fn begin_wait(&mut self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let training = self.training()?;
        let span = Duration::try_from_secs_f64(seconds);
        let span = span.map_err(|error| raised(internal(&error.to_string())))?;
        py.detach(|| training.begin_wait(span));
        returned(Ok(()))
    }

    /// Waits until this work is done on all ranks. False if the generation has failed, now or
    /// before.
    fn end_wait(&mut self, py: Python<'_>) -> PyResult<bool> {
        let training = self.training()?;
        returned(py.detach(|| training.end_wait()))
    }

    /// Begins an evaluation, during which the watchdogs wait longer. `counts`: whether the
    /// evaluation changes the state.
    #[pyo3(signature = (*, counts))]
    fn begin_evaluation(&mut self, py: Python<'_>, counts: bool) -> PyResult<()> {
        let training = self.training()?;
        returned(py.detach(|| training.begin_evaluation(counts)))
    }

    /// Reports an evaluation on `num_samples`, whose result is the same on all ranks. False if the
    /// generation has failed after it.
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

    /// Must be called when training is complete.
    fn done(&mut self, py: Python<'_>) {
        if let Stage::Training(training) = std::mem::replace(self.stage(), Stage::Over) {
            py.detach(|| training.done());
        }
    }

    /// Saves this process' part of the state for the next life of its replica, which has lost
    /// another process. Failures are logged.
    fn save_part(&mut self, py: Python<'_>) {
        if let Stage::Training(training) = self.stage() {
            py.detach(|| training.save_part());
        }
    }

    /// Ends this process before its training is complete, with an exit code (None for an error of
    /// the script) and a termination message. `newer`: the generation that has superseded the
    /// process.
    #[pyo3(signature = (code, words, newer = None))]
    fn fail(&mut self, py: Python<'_>, code: Option<i32>, words: String, newer: Option<u64>) {
        let known = code.and_then(ExitCode::from_code);
        let code = known.unwrap_or(ExitCode::Internal);
        let ending = Ending { code, words, newer };
        let stage = std::mem::replace(self.stage(), Stage::Over);
        let launch = &self.launch;
        py.detach(|| match stage {
            Stage::Started(started) => {
                report_end(launch, started.reporter, &ending, known.is_none())
            }
            Stage::Training(mut training) => {
                report_end(launch, training.reporter(), &ending, known.is_none());
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
            Stage::Started(_) => Err(raised(internal("the process is not prepared yet"))),
            Stage::Over => Err(raised(internal("the process has ended"))),
        }
    }
}

fn internal(words: &str) -> Failure {
    Failure::Internal(words.to_owned())
}
