//! Parts of a residual network: a convolution with its normalization, and a block around a
//! shortcut.

use tch::{TchError, Tensor};

use super::super::Pass;
use super::super::layers::Conv;
use super::super::norm::BatchNorm;
use crate::parameters::Parameters;

/// A convolution and a batch normalization.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) convolution: Conv,
    pub(super) norm: BatchNorm,
}

impl Unit {
    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        x_bchw: &Tensor,
        pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let x_bchw = self.convolution.apply(parameters, x_bchw)?;
        self.norm.apply(parameters, &x_bchw, pass)
    }
}

/// Units with `ReLU` between them, and a shortcut around them.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) units: Vec<Unit>,
    /// Converts the input to the shape of the output; `None`: both have the same shape.
    pub(super) downsample: Option<Unit>,
}

impl Block {
    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        x_bchw: &Tensor,
        pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let mut y_bchw = x_bchw.shallow_clone();
        for (place, unit) in self.units.iter().enumerate() {
            if place > 0 {
                y_bchw = y_bchw.f_relu_()?;
            }
            y_bchw = unit.apply(parameters, &y_bchw, pass)?;
        }
        let shortcut_bchw = match &self.downsample {
            Some(unit) => unit.apply(parameters, x_bchw, pass)?,
            None => x_bchw.shallow_clone(),
        };
        let _ = y_bchw.f_add_(&shortcut_bchw)?;
        y_bchw.f_relu_()
    }
}
