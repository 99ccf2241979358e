//! The collectives of a generation over c10d, as `roundhouse-member` needs them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use roundhouse_c10d::{Error, ErrorKind, ProcessGroup, ReduceOp};
use roundhouse_member::failure::Failure;
use roundhouse_member::group::{Abort, Group, Meanwhile};
use tch::{Device, TchError, Tensor};

use crate::failure::{lost, refused};
use crate::sync::{Exchange, SyncError};

/// A process group, and the device of the tensors of its collectives.
#[derive(Debug)]
pub struct C10dGroup {
    group: ProcessGroup,
    device: Device,
    /// The error of a failed sum within a pass. A model can only return an error of libtorch, whose
    /// message does not always show that a peer is the cause.
    failed_sum: OnceLock<Error>,
    /// The processes with the same part of the state in all replicas.
    column: Option<Arc<Self>>,
}

impl C10dGroup {
    /// Wraps `group`, whose ranks compute on `device`.
    #[must_use]
    pub const fn new(group: ProcessGroup, device: Device) -> Self {
        Self {
            group,
            device,
            failed_sum: OnceLock::new(),
            column: None,
        }
    }

    /// Adds the group of the processes with the same part of the state in all replicas. It ends
    /// with this group.
    #[must_use]
    pub fn with_column(self, column: Self) -> Self {
        Self {
            column: Some(Arc::new(column)),
            ..self
        }
    }

    /// The processes with the same part of the state in all replicas; `None`: each process has all
    /// of the state, or there is one replica.
    #[must_use]
    pub fn column(&self) -> Option<Arc<Self>> {
        self.column.clone()
    }

    /// This group, and that of the column.
    fn groups(&self) -> impl Iterator<Item = &ProcessGroup> {
        let column = self.column.iter().map(|column| &column.group);
        std::iter::once(&self.group).chain(column)
    }

    /// The process group of c10d.
    #[must_use]
    pub const fn process_group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Sets how long later collectives wait for their peers. Has no effect if the library cannot
    /// change its timeout.
    pub fn set_timeout(&self, timeout: Duration) {
        for group in self.groups() {
            let _ = group.set_timeout(timeout);
        }
    }

    /// Sums `own` over the ranks within a pass of a model; gradients flow through the sum.
    ///
    /// # Errors
    /// A peer is lost; [`Self::failed_sum`] then returns the error of c10d.
    pub fn sum_in_pass(&self, own: &Tensor) -> Result<Tensor, TchError> {
        let sum = self.group.sum(own);
        sum.map_err(|error| self.failed_in_pass(error))
    }

    /// Keeps the error of a sum within a pass, unless this process is its cause, and returns it as
    /// one of libtorch.
    pub(crate) fn failed_in_pass(&self, error: Error) -> TchError {
        let words = error.to_string();
        match error.kind {
            ErrorKind::OutOfMemory | ErrorKind::Device => {}
            ErrorKind::ConnectionLost | ErrorKind::Timeout | ErrorKind::Other => {
                let _ = self.failed_sum.set(error);
            }
        }
        TchError::Torch(words)
    }

    /// The error of the first sum within a pass that failed.
    #[must_use]
    pub fn failed_sum(&self) -> Option<&Error> {
        self.failed_sum.get()
    }

    /// The device on which the tensors of the collectives must be.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }
}

impl Abort for C10dGroup {
    fn abort(&self) {
        for group in self.groups() {
            // An error means that the connections are closed already.
            let _ = group.abort();
        }
    }

    fn shutdown(&self) {
        // If the shutdown fails, the group is aborted. Either way no collective can run any more.
        for group in self.groups() {
            let _ = group.shutdown();
        }
    }

    fn has_failed(&self) -> bool {
        self.groups().any(ProcessGroup::has_failed)
    }
}

impl Group for C10dGroup {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn size(&self) -> u32 {
        self.group.world_size()
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), Failure> {
        let on_device = Tensor::f_from_slice(values).and_then(|it| it.f_to_device(self.device));
        let mut tensor = on_device.map_err(refused)?;
        self.group
            .all_reduce(&mut tensor, ReduceOp::Sum)
            .map_err(lost)?;
        // This copy waits for the device, and returns garbage if the group is aborted meanwhile.
        let length = values.len();
        let read = tensor
            .f_to_device(Device::Cpu)
            .and_then(|tensor| tensor.f_copy_data(values, length));
        self.check()?;
        read.map_err(refused)
    }

    fn exchange(
        &self,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure> {
        let on_device =
            |bytes: &[u8]| Tensor::f_from_slice(bytes).and_then(|it| it.f_to_device(self.device));
        let outgoing = match send {
            Some((bytes, to)) => Some((on_device(bytes).map_err(refused)?, to)),
            None => None,
        };
        let mut received = match &receive {
            Some((bytes, from)) => Some((on_device(bytes).map_err(refused)?, *from)),
            None => None,
        };
        let moving = self.group.exchange(
            outgoing.as_ref().map(|(tensor, to)| (tensor, *to)),
            received.as_mut().map(|(tensor, from)| (tensor, *from)),
        );
        let moving = moving.map_err(lost)?;
        meanwhile()?;
        moving.wait().map_err(lost)?;
        let (Some((bytes, _)), Some((tensor, _))) = (receive, received) else {
            return Ok(());
        };
        let length = bytes.len();
        let read = tensor
            .f_to_device(Device::Cpu)
            .and_then(|tensor| tensor.f_copy_data_u8(bytes, length));
        self.check()?;
        read.map_err(refused)
    }

    fn check(&self) -> Result<(), Failure> {
        self.groups()
            .try_for_each(ProcessGroup::check)
            .map_err(lost)
    }

    fn reports_lost_peers(&self) -> bool {
        self.group.backend().reports_failures()
    }
}

impl Exchange for C10dGroup {
    fn all_to_all(&self, input: &Tensor, to: &[i64], from: &[i64]) -> Result<Tensor, SyncError> {
        let length: i64 = from.iter().sum();
        let mut output = Tensor::f_empty([length], (input.kind(), self.device))?;
        self.group.all_to_all(&mut output, input, from, to)?;
        Ok(output)
    }

    fn all_gather(&self, chunk: &Tensor) -> Result<Tensor, SyncError> {
        let length = chunk.size1()? * i64::from(self.size());
        let mut output = Tensor::f_empty([length], (chunk.kind(), self.device))?;
        self.group.all_gather(&mut output, &chunk.f_contiguous()?)?;
        Ok(output)
    }
}
