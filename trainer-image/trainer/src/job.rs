//! The model, data and optimizer that a program passes to the trainer.

use std::path::{Path, PathBuf};

use roundhouse_contract::TrainerConfig;
use roundhouse_elastic::Blocks;
use tch::{Device, TchError};

use crate::failure::Failure;
use crate::parameters::Parameters;
use crate::source::Source;
use crate::task::Task;
use crate::update::Update;

/// Creates the update for a task's parameters, which are already on their device.
pub type MakeUpdate = Box<dyn FnOnce(&Parameters) -> Result<Box<dyn Update>, TchError>>;

/// A model with its loss, data, and an optimizer.
pub struct Job {
    /// The model and its loss. Its parameters are moved to the device of the process.
    pub task: Box<dyn Task>,
    /// The data to train on. Its batches are on the device of the process.
    pub train: Box<dyn Source>,
    /// The data to evaluate on; `None`: no evaluation.
    pub test: Option<Box<dyn Source>>,
    /// The two levels of the sample order: blocks, and samples within them. `None`: one level.
    pub blocks: Option<Blocks>,
    /// Function that creates the optimizer.
    pub update: MakeUpdate,
}

/// The inputs from which a program builds its job.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// `spec.trainer` of the job.
    pub config: &'a TrainerConfig,
    /// Directory to which relative data paths are relative.
    pub data_dir: &'a Path,
    /// Device of this process.
    pub device: Device,
}

impl Setup<'_> {
    /// The directory that `data.path` names; the data files are in it.
    #[must_use]
    pub fn data_root(&self) -> PathBuf {
        match &self.config.data.path {
            Some(path) => self.data_dir.join(path),
            None => self.data_dir.to_owned(),
        }
    }
}

/// Builds a job. Each process calls it once, before it connects to its peers.
pub trait Build: FnOnce(&Setup<'_>) -> Result<Job, Failure> {}

impl<F: FnOnce(&Setup<'_>) -> Result<Job, Failure>> Build for F {}
