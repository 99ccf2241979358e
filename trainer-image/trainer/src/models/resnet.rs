//! Residual networks (He et al. 2015). Names and initialization are those of torchvision.

use roundhouse_contract::trainer::model::{Model as ModelConfig, Stem};
use tch::{TchError, Tensor};

use super::layers::Linear;
use super::norm::Groups;
use super::{ImageShape, Network, Pass};
use crate::parameters::Parameters;
use crate::segment::Segment;

mod block;
mod builder;

use block::{Block, Unit};
use builder::Builder;

/// Number of layers of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Two blocks of two 3×3 convolutions in each of the four stages.
    Layers18,
    /// 3, 4, 6 and 3 blocks of a 1×1, a 3×3 and a 1×1 convolution. This is version 1.5: the 3×3
    /// convolution has the stride.
    Layers50,
}

impl Depth {
    /// Number of blocks in each stage.
    const fn blocks(self) -> [usize; 4] {
        match self {
            Self::Layers18 => [2, 2, 2, 2],
            Self::Layers50 => [3, 4, 6, 3],
        }
    }

    /// Ratio of a block's output channels to the channels of its 3×3 convolution.
    const fn expansion(self) -> i64 {
        match self {
            Self::Layers18 => 1,
            Self::Layers50 => 4,
        }
    }
}

/// A residual network (He et al. 2015): a stem, segments of blocks, and a linear classifier.
#[derive(Debug)]
pub struct ResNet {
    stem: Unit,
    pools: bool,
    blocks: Vec<Segment<Block>>,
    recomputes: bool,
    fc: Segment<Linear>,
    groups: Groups,
    multiply_adds: f64,
}

impl ResNet {
    /// Builds the network for images of the given shape. It uses the fields `stem`, `batchNorm`,
    /// `ghostBatch` and `zeroInitResidual` of the configuration.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(
        parameters: &mut Parameters,
        depth: Depth,
        config: &ModelConfig,
        shape: &ImageShape,
    ) -> Result<Self, TchError> {
        let groups = Groups::from_config(config);
        let mut builder = Builder::new(parameters, groups, shape);
        let pools = config.stem() == Stem::Imagenet;
        let (side, stride) = if pools { (7, 2) } else { (3, 1) };
        let stem = builder.unit("conv1", "bn1", 64, side, stride, 1.0)?;
        if pools {
            builder.halve();
        }
        let mut blocks = Vec::new();
        for (stage, num_blocks) in (1..).zip(depth.blocks()) {
            for place in 0..num_blocks {
                let stride = if stage > 1 && place == 0 { 2 } else { 1 };
                let name = format!("layer{stage}.{place}");
                let channels = 32 << stage;
                let gain = if config.zero_init_residual() {
                    0.0
                } else {
                    1.0
                };
                blocks.push(builder.block(depth, &name, channels, stride, gain)?);
            }
        }
        let (num_features, mut multiply_adds) = builder.finish();
        multiply_adds += (num_features * shape.num_classes) as f64;
        Ok(Self {
            stem,
            pools,
            blocks,
            recomputes: false,
            fc: Segment::build(parameters, |p| {
                Linear::uniform(p, "fc", num_features, shape.num_classes)
            })?,
            groups,
            multiply_adds,
        })
    }

    /// Returns the network with recomputation on or off. With it each residual block keeps only its
    /// input: see [`Segment::apply`].
    #[must_use]
    pub fn recomputing(self, recomputes: bool) -> Self {
        Self { recomputes, ..self }
    }
}

impl Network for ResNet {
    fn scores(
        &self,
        parameters: &Parameters,
        images_bchw: &Tensor,
        pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let mut x_bchw = self.stem.apply(parameters, images_bchw, pass)?.f_relu_()?;
        if self.pools {
            x_bchw = x_bchw.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?;
        }
        for block in &self.blocks {
            let (mode, ranks) = (pass.mode(), pass.ranks().cloned());
            let run = move |block: &Block, parameters: &Parameters, x_bchw: &Tensor| {
                let mut part = Pass::new(mode).among(ranks.clone());
                let y_bchw = block.apply(parameters, x_bchw, &mut part)?;
                Ok((y_bchw, part))
            };
            let part;
            (x_bchw, part) = block.apply(self.recomputes, parameters, &x_bchw, run)?;
            pass.absorb(part);
        }
        let features_bc = x_bchw.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)?;
        self.fc.apply_alone(parameters, &features_bc, Linear::apply)
    }

    fn sums_over_ranks(&self) -> bool {
        self.groups == Groups::Batch
    }

    /// Counts convolutions and the linear layer, without normalizations, activations and pools:
    /// 4.09 · 10⁹ for 50 layers and images of 224×224, as in torchvision's documentation.
    fn multiply_adds(&self) -> f64 {
        self.multiply_adds
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::trainer::model::ModelName;

    use super::*;
    use crate::models::Classifier;
    use crate::random::seeded;
    use crate::task::{Mode, Task};

    fn network(depth: Depth, side: i64, change: impl FnOnce(&mut ModelConfig)) -> Classifier {
        let mut config = ModelConfig::new(ModelName::Resnet18);
        change(&mut config);
        let shape = ImageShape {
            num_channels: 3,
            height: side,
            width: side,
            num_classes: 1000,
        };
        seeded(1, || {
            Classifier::new(0.0, |p| ResNet::new(p, depth, &config, &shape))
        })
        .unwrap()
    }

    #[test]
    fn resnet_sizes_match_torchvisions_documentation() {
        // Parameters and GFLOPS (multiply-adds) of the IMAGENET1K weights at 224×224.
        for (depth, num_weights, giga_multiply_adds) in [
            (Depth::Layers18, 11_689_512, 1.814),
            (Depth::Layers50, 25_557_032, 4.089),
        ] {
            let network = network(depth, 224, |_| {});
            assert_eq!(network.parameters().num_weights(), num_weights);
            let multiply_adds = network.flops_per_sample().unwrap() / 6e9;
            assert!(
                (multiply_adds - giga_multiply_adds).abs() < 0.001,
                "{multiply_adds}"
            );
        }
    }

    #[test]
    fn stem_for_small_images_keeps_their_size() {
        let small = network(Depth::Layers18, 32, |config| {
            config.stem = Some(Stem::Cifar)
        });
        assert_eq!(small.parameters().at(0).size(), [64, 3, 3, 3]);
        let images = Tensor::zeros([1, 3, 32, 32], tch::kind::FLOAT_CPU);
        let scores = tch::no_grad(|| small.scores(&images, Mode::Evaluate)).unwrap();
        assert_eq!(scores.size(), [1, 1000]);
        // 0.56 · 10⁹ multiply-adds, as published for residual networks of this form on CIFAR.
        let giga = small.flops_per_sample().unwrap() / 6e9;
        assert!((giga - 0.556).abs() < 0.002, "{giga}");
    }

    #[test]
    fn zero_initialized_block_is_the_identity() {
        let gains = |zero| -> Vec<f64> {
            network(Depth::Layers18, 32, |config| {
                config.zero_init_residual = Some(zero)
            })
            .parameters()
            .iter()
            .filter(|(name, _)| name.ends_with("bn2.weight"))
            .map(|(_, tensor)| tensor.abs().max().double_value(&[]))
            .collect()
        };
        assert_eq!(gains(true), [0.0; 8]);
        assert_eq!(gains(false), [1.0; 8]);
    }
}
