//! Adds the layers of a residual network in order, and tracks the size of its activations.

use tch::TchError;

use super::super::ImageShape;
use super::super::layers::Conv;
use super::super::norm::{BatchNorm, Groups};
use super::Depth;
use super::block::{Block, Unit};
use crate::parameters::Parameters;
use crate::segment::Segment;

/// A partially built network.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    parameters: &'a mut Parameters,
    groups: Groups,
    num_channels: i64,
    height: i64,
    width: i64,
    multiply_adds: f64,
}

impl<'a> Builder<'a> {
    pub(super) const fn new(
        parameters: &'a mut Parameters,
        groups: Groups,
        shape: &ImageShape,
    ) -> Self {
        Self {
            parameters,
            groups,
            num_channels: shape.num_channels,
            height: shape.height,
            width: shape.width,
            multiply_adds: 0.0,
        }
    }

    /// Halves the activations, as a stride of 2 or a padded pool does.
    pub(super) const fn halve(&mut self) {
        self.height = (self.height + 1) / 2;
        self.width = (self.width + 1) / 2;
    }

    /// Adds a convolution and its normalization. The normalization's weight starts as `gain`.
    pub(super) fn unit(
        &mut self,
        convolution: &str,
        norm: &str,
        num_outputs: i64,
        side: i64,
        stride: i64,
        gain: f64,
    ) -> Result<Unit, TchError> {
        let shape = [num_outputs, self.num_channels, side];
        let unit = Unit {
            convolution: Conv::kaiming(self.parameters, convolution, shape, stride)?,
            norm: BatchNorm::new(self.parameters, norm, num_outputs, gain, self.groups)?,
        };
        if stride == 2 {
            self.halve();
        }
        let weights = num_outputs * self.num_channels * side * side;
        self.multiply_adds += (weights * self.height * self.width) as f64;
        self.num_channels = num_outputs;
        Ok(unit)
    }

    /// Adds a block; its 3×3 convolutions have `channels` channels. The weight of the last
    /// normalization starts as `gain`.
    pub(super) fn block(
        &mut self,
        depth: Depth,
        name: &str,
        channels: i64,
        stride: i64,
        gain: f64,
    ) -> Result<Segment<Block>, TchError> {
        let first = self.parameters.tensors().len();
        let (num_inputs, height, width) = (self.num_channels, self.height, self.width);
        let num_outputs = channels * depth.expansion();
        // Each convolution: channels, kernel size, stride.
        let convolutions = match depth {
            Depth::Layers18 => vec![(channels, 3, stride), (channels, 3, 1)],
            Depth::Layers50 => vec![(channels, 1, 1), (channels, 3, stride), (num_outputs, 1, 1)],
        };
        let last = convolutions.len();
        let mut units = Vec::new();
        for (place, (channels, side, stride)) in (1..).zip(convolutions) {
            let names = [format!("{name}.conv{place}"), format!("{name}.bn{place}")];
            let gain = if place == last { gain } else { 1.0 };
            units.push(self.unit(&names[0], &names[1], channels, side, stride, gain)?);
        }
        let downsample = if stride == 1 && num_inputs == num_outputs {
            None
        } else {
            (self.num_channels, self.height, self.width) = (num_inputs, height, width);
            let names = [
                format!("{name}.downsample.0"),
                format!("{name}.downsample.1"),
            ];
            Some(self.unit(&names[0], &names[1], num_outputs, 1, stride, 1.0)?)
        };
        let block = Block { units, downsample };
        let places = first..self.parameters.tensors().len();
        Ok(Segment::new(self.parameters, block, places))
    }

    /// Returns the number of channels, and the number of multiply-adds for one image.
    pub(super) const fn finish(self) -> (i64, f64) {
        (self.num_channels, self.multiply_adds)
    }
}
