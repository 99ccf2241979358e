//! What a program hands over to be trained.

use std::path::{Path, PathBuf};

use roundhouse_contract::TrainerConfig;
use roundhouse_elastic::Blocks;
use tch::{Device, TchError};

use crate::failure::Failure;
use crate::parameters::Parameters;
use crate::source::Source;
use crate::task::Task;
use crate::update::Update;

/// Makes the update of a task's parameters, which are on their device by then.
pub type MakeUpdate = Box<dyn FnOnce(&Parameters) -> Result<Box<dyn Update>, TchError>>;

/// A model with its loss, data, and an optimizer.
pub struct Job {
    /// The model and its loss. Its parameters are moved to the device of the process.
    pub task: Box<dyn Task>,
    /// The data to train on. Its batches are on the device of the process.
    pub train: Box<dyn Source>,
    /// The data to evaluate on; `None`: nothing is evaluated.
    pub test: Option<Box<dyn Source>>,
    /// The order of the samples to train on, if it has two levels.
    pub blocks: Option<Blocks>,
    /// The optimizer.
    pub update: MakeUpdate,
}

/// What a program can build its job from.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// `spec.trainer` of the job.
    pub config: &'a TrainerConfig,
    /// Where relative paths of the data start.
    pub data_dir: &'a Path,
    /// Where this process computes.
    pub device: Device,
}

impl Setup<'_> {
    /// The directory that `data.path` names: where the files of the data are.
    #[must_use]
    pub fn data_root(&self) -> PathBuf {
        match &self.config.data.path {
            Some(path) => self.data_dir.join(path),
            None => self.data_dir.to_owned(),
        }
    }
}

/// Builds a job. It is called once in each process, before the process meets its peers.
pub trait Build: FnOnce(&Setup<'_>) -> Result<Job, Failure> {}

impl<F: FnOnce(&Setup<'_>) -> Result<Job, Failure>> Build for F {}
