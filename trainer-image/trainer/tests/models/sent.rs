//! Number of bytes that a model's gradients send: the table in `trainer-image/README.md`.

use roundhouse_c10d::{CommHook, PowerSgd};
use roundhouse_contract::trainer::ActivationCheckpointing;
use roundhouse_contract::trainer::model::{Model, ModelName};
use roundhouse_trainer::models::{ImageShape, Samples, build};

#[test]
fn gradient_bytes_of_resnet18_per_compression() {
    let samples = Samples::Images(ImageShape {
        num_channels: 3,
        height: 224,
        width: 224,
        num_classes: 1_000,
    });
    let config = Model::new(ModelName::Resnet18);
    let model = build(&config, ActivationCheckpointing::None, samples, 0).unwrap();
    let power_sgd = |rank| {
        CommHook::PowerSgd(PowerSgd {
            rank,
            ..PowerSgd::default()
        })
    };
    for (hook, bytes) in [
        (CommHook::None, 46_796_448),
        (CommHook::Bf16, 23_398_224),
        (CommHook::Fp16, 23_398_224),
        (power_sgd(1), 230_540),
        (power_sgd(2), 380_280),
        (power_sgd(4), 679_760),
    ] {
        let sent = hook.payload_bytes(model.parameters().tensors());
        assert_eq!(sent, bytes, "{hook:?}");
    }
}
