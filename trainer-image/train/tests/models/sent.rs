//! How many bytes of a model's gradients travel: the table in `trainer-image/README.md`.

use roundhouse_c10d::{CommHook, PowerSgd};
use roundhouse_contract::trainer::ActivationCheckpointing;
use roundhouse_contract::trainer::model::{Model, ModelName};
use roundhouse_trainer::Task;
use roundhouse_trainer::models::{ImageShape, Samples, build};

#[test]
fn bytes_of_the_gradients_of_a_resnet18_with_each_compression() {
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
        (CommHook::None, 46_758_048),
        (CommHook::Bf16, 23_379_024),
        (CommHook::Fp16, 23_379_024),
        (power_sgd(1), 192_140),
        (power_sgd(2), 341_880),
        (power_sgd(4), 641_360),
    ] {
        let sent = hook.payload_bytes(model.parameters().tensors());
        assert_eq!(sent, bytes, "{hook:?}");
    }
}
