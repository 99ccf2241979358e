//! Ranks that compare the bits of their summed gradients.

use roundhouse_c10d::{
    CommHook, PowerSgd, ProcessGroup, Reducer, ReducerOptions, Vote, agree, backward, zero_grad,
};
use tch::nn::Module;
use tch::{Device, Kind, Tensor, nn};

use super::rank::{network, small_buckets};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// With every hook the sums are the same on all ranks in each pass, and all ranks detect one
/// different bit on one rank.
pub fn digests(group: &ProcessGroup) {
    let power_sgd = PowerSgd {
        plain_passes: 1,
        ..PowerSgd::default()
    };
    let hooks = [
        CommHook::None,
        CommHook::Bf16,
        CommHook::Fp16,
        CommHook::PowerSgd(power_sgd),
    ];
    let mut turn = 0;
    for hook in hooks {
        let digests = digests_of_passes(group, hook);
        assert!(digests[0] != digests[1], "{hook:?}: passes of one digest");
        for digest in digests {
            for (spoilt, is_same) in [(0, true), (1, false)] {
                turn += 1;
                let is_last = group.rank() + 1 == group.world_size();
                let own = digest ^ (spoilt * i64::from(is_last));
                assert_agreed(group, &[own, turn], turn.unsigned_abs(), is_same, hook);
            }
        }
    }
    println!("digests ok");
}

fn assert_agreed(group: &ProcessGroup, equal: &[i64], turn: u64, is_same: bool, hook: CommHook) {
    let (values, equal) = (Tensor::from_slice(&[0.5]), Tensor::from_slice(equal));
    let vote = Vote {
        values: &values,
        finite: None,
        equal: Some(&equal),
        aside: Some(&values),
    };
    let agreement = agree(vote, turn, Some(group)).unwrap();
    let agreed = agreement.wait().unwrap();
    let found = (agreed.is_right, agreed.is_same, agreed.is_good);
    assert_eq!(found, (true, is_same, is_same), "{hook:?}");
    let flag = agreement.found_inf().double_value(&[0]);
    assert_eq!(flag, f64::from(u8::from(!is_same)), "{hook:?}");
    assert_eq!(agreed.sums, [0.5 * f64::from(group.world_size())]);
    assert_eq!(agreed.aside, [0.5]);
}

/// The digests of passes over samples that differ between ranks.
fn digests_of_passes(group: &ProcessGroup, hook: CommHook) -> Vec<i64> {
    tch::manual_seed(3);
    let vars = nn::VarStore::new(Device::Cpu);
    let model = network(&vars.root());
    let mut parameters = vars.trainable_variables();
    let options = ReducerOptions {
        hook,
        ..small_buckets()
    };
    let mut reducer = Reducer::new(&parameters, group, &options).unwrap();
    let mut pass = |number: i64| {
        let images = Tensor::randn([8, 64], FLOAT) * (f64::from(group.rank()) + 0.3);
        let labels = Tensor::full([8], number, (Kind::Int64, Device::Cpu));
        zero_grad(&mut parameters).unwrap();
        reducer.prepare_for_forward().unwrap();
        let loss = model.forward(&images).cross_entropy_for_logits(&labels);
        reducer.prepare_for_backward().unwrap();
        backward(&loss).unwrap();
        reducer.digest().unwrap().int64_value(&[])
    };
    (0..3).map(&mut pass).collect()
}
