//! Models: from images to one score per class.

use roundhouse_contract::trainer::{ConfigInvalid, Model as ModelConfig, ModelName};
use tch::{TchError, Tensor};

use crate::data::Shape;
use crate::failure::Failure;

pub mod cnn;
pub mod mlp;
pub mod parameters;

pub use cnn::Cnn;
pub use mlp::Mlp;
pub use parameters::Parameters;

/// A classifier of images.
pub trait Model: std::fmt::Debug {
    /// Scores `[B, num_classes]` of images `[B, C, H, W]`; an empty batch is valid.
    ///
    /// # Errors
    /// The images do not have the shape that the model was built for.
    fn forward(&self, images_bchw: &Tensor) -> Result<Tensor, TchError>;

    /// All weights, in a fixed order.
    fn parameters(&self) -> &Parameters;

    /// All weights, to be changed by an optimizer or a broadcast.
    fn parameters_mut(&mut self) -> &mut Parameters;
}

/// Builds the model of a configuration; its initial weights are a function of `seed`.
///
/// # Errors
/// [`Failure::Config`] when the images are too small for it.
pub fn build(config: &ModelConfig, shape: &Shape, seed: u64) -> Result<Box<dyn Model>, Failure> {
    // The only use of libtorch's generator: whatever happens later is a function of sample ids.
    tch::manual_seed(seed.cast_signed());
    Ok(match config.name {
        ModelName::Mlp => Box::new(Mlp::new(config.hidden(), shape)?),
        ModelName::Cnn => {
            let channels = config.channels();
            cnn::fits(channels, shape).map_err(|message| ConfigInvalid {
                field: "model.channels",
                message,
            })?;
            Box::new(Cnn::new(channels, shape)?)
        }
    })
}
