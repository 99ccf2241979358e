//! Builds the model, the data and the optimizer of a configuration.

use std::path::Path;
use std::sync::Arc;

use roundhouse_contract::paths::WEIGHTS_DIR;
use roundhouse_contract::trainer::data::{Data, OnCorrupt, Reading};
use roundhouse_contract::trainer::{Model, ModelName};
use roundhouse_data::prefetch::Options;
use roundhouse_data::{Dataset, Item, Splits};
use roundhouse_report::say;
use roundhouse_trainer::memory::InMemory;
use roundhouse_trainer::models::masking::MaskedSource;
use roundhouse_trainer::models::{self, ImageShape, Samples, TokenShape};
use roundhouse_trainer::{Failure, HostSource, Job, Setup, Source, optimizers, weights};

/// Builds the job of a configuration.
///
/// # Errors
/// Returns an error if the model belongs to another program, if the data cannot be read, or if the
/// model does not fit the data.
pub(crate) fn build(setup: &Setup<'_>) -> Result<Job, Failure> {
    let Setup {
        config,
        data_dir,
        device,
    } = *setup;
    config.refuse_custom()?;
    let pixels = roundhouse_data::open::Pixels::Bytes;
    let Splits {
        train,
        validation,
        normalize,
        blocks,
        shares: _,
    } = roundhouse_data::open(
        &config.data,
        data_dir,
        pixels,
        config.seed,
        vocabulary(&config.model),
    )?;
    let samples = samples(train.as_ref());
    let mut task = models::build(
        &config.model,
        config.activation_checkpointing,
        samples,
        config.seed,
    )?;
    if let Some(init_from) = &config.model.init_from {
        let root = match init_from.volume {
            Some(_) => Path::new(WEIGHTS_DIR),
            None => data_dir,
        };
        let path = root.join(&init_from.path);
        let loaded = weights::load(&path, task.parameters_mut(), &init_from.skip)?;
        say(&loaded.words(&path));
    }
    // Tokens are masked in host memory.
    let is_masked = config.model.name == ModelName::Bert;
    let place = if is_masked { tch::Device::Cpu } else { device };
    let source = |dataset: Arc<dyn Dataset>| -> Result<Box<dyn Source>, Failure> {
        // A source that may replace corrupt samples counts them; samples in memory do not.
        let may_skip = config.data.reading.on_corrupt == OnCorrupt::Skip;
        if InMemory::fits(dataset.as_ref()) && !is_augmented(&config.data) && !may_skip {
            let source = InMemory::load(dataset.as_ref(), normalize.as_ref(), place)?;
            return Ok(Box::new(source));
        }
        let normalize = normalize.as_ref();
        let normalize = normalize.map(|(mean, std)| (mean.as_slice(), std.as_slice()));
        let options = reading(&config.data);
        Ok(Box::new(HostSource::new(
            dataset, options, normalize, place,
        )?))
    };
    let (mut train, mut test) = (source(train)?, validation.map(source).transpose()?);
    if is_masked {
        let (vocabulary, seed) = (config.model.vocabulary(), config.seed);
        let masked = |source| MaskedSource::new(source, vocabulary, seed, device);
        train = Box::new(masked(train)?);
        if let Some(source) = test {
            test = Some(Box::new(masked(source)?));
        }
    }
    let optimizer = config.optimizer.clone();
    Ok(Job {
        task,
        train,
        test,
        blocks,
        update: Box::new(move |parameters| optimizers::build(&optimizer, parameters)),
    })
}

/// Number of different tokens that a model takes from the data. `bert` reserves its last
/// token for masked places.
fn vocabulary(model: &Model) -> Option<u32> {
    match model.name {
        ModelName::Gpt2 | ModelName::Llama | ModelName::Switch => Some(model.vocabulary()),
        ModelName::Bert => Some(model.vocabulary().saturating_sub(1)),
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Custom => None,
    }
}

/// Whether samples differ from epoch to epoch.
fn is_augmented(data: &Data) -> bool {
    let image = data.image.as_ref();
    image.is_some_and(|image| !image.augment.is_empty())
}

fn reading(data: &Data) -> Options {
    let Reading {
        on_corrupt,
        threads,
        read_ahead,
        cache_dir: _,
    } = &data.reading;
    let default = Options::default();
    Options {
        num_threads: threads.map_or(default.num_threads, |threads| threads as usize),
        num_ahead: *read_ahead as usize,
        on_corrupt: *on_corrupt,
    }
}

/// Returns the properties of the data that the model needs.
fn samples(dataset: &dyn Dataset) -> Samples {
    let num_classes = dataset.num_classes().unwrap_or_default();
    match *dataset.item() {
        Item::Pixels {
            height,
            width,
            num_channels,
        }
        | Item::Normalized {
            height,
            width,
            num_channels,
        } => Samples::Images(ImageShape {
            num_channels: num_channels.into(),
            height: height.into(),
            width: width.into(),
            num_classes: num_classes.into(),
        }),
        Item::Tokens { context } => Samples::Tokens(TokenShape {
            length: context.into(),
            vocabulary: num_classes.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bert_does_not_take_its_mask_token_from_the_data() {
        let taken = |name| {
            let mut model = Model::new(name);
            model.vocabulary = Some(64);
            vocabulary(&model)
        };
        assert_eq!(taken(ModelName::Gpt2), Some(64));
        assert_eq!(taken(ModelName::Llama), Some(64));
        assert_eq!(taken(ModelName::Switch), Some(64));
        assert_eq!(taken(ModelName::Bert), Some(63));
        assert_eq!(taken(ModelName::Mlp), None);
    }
}
