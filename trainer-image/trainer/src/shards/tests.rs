use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use roundhouse_contract::trainer::Shard;
use roundhouse_member::rendezvous::{Network, Ranks, Store};
use tch::Kind;

use super::*;
use crate::experts::Experts;
use crate::parameters::Role;
use crate::rendezvous::C10d;
use crate::segment::Segment;

/// The group of a process alone.
fn alone() -> Arc<C10dGroup> {
    let (network, timeout) = (C10d::on(Device::Cpu), Duration::from_secs(10));
    let address = Ipv4Addr::LOCALHOST.into();
    let store = network.host(address, 0, timeout).unwrap();
    let ranks = Ranks {
        generation: 0,
        rank: 0,
        size: 1,
        timeout,
        address,
        own_store_port: Some(store.port()),
    };
    Arc::new(network.connect(store, &ranks).unwrap())
}

/// Four weights and a statistic between them.
fn parameters() -> Parameters {
    let mut parameters = Parameters::default();
    let statistic = Role::Statistic { momentum: 0.1 };
    let weight = Role::Weight;
    for (place, role) in [weight, weight, statistic, weight, weight]
        .iter()
        .enumerate()
    {
        let value = Tensor::arange(6, (Kind::Float, Device::Cpu)) + place as f64 * 10.0;
        let value = value.reshape([2, 3]);
        parameters.push(place.to_string(), *role, &value).unwrap();
    }
    parameters
}

fn divided(parameters: &mut Parameters, shard: Shard) -> Result<(), SyncError> {
    let sharing = Sharing {
        shard: 0,
        num_shards: 1,
        replica: 1,
    };
    let how = ShardOptions {
        shard,
        sums: true,
        spreads_experts: true,
    };
    Shards::divide(parameters, Device::Cpu, alone(), sharing, how)
}

#[test]
fn sharded_weights_are_whole_in_their_segments_alone() {
    for shard in [Shard::Zero2, Shard::Zero3] {
        let mut parameters = parameters();
        let segment = Segment::new(&mut parameters, (), 1..4);
        divided(&mut parameters, shard).unwrap();
        let shards = parameters.shards().unwrap();
        let has: Vec<bool> = (0..5).map(|place| shards.has(place)).collect();
        assert_eq!(has, [false, true, false, true, false]);
        let x = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        let run = |(): &(), own: &Parameters, x: &Tensor| {
            own.at(1).f_add(own.at(2))?.f_add(own.at(3))?.f_add(x)
        };
        let sum = segment.apply_alone(&parameters, &x, run).unwrap();
        assert!((sum.double_value(&[1, 2]) - 75.0).abs() < 1e-6);
        // The statistic and the tensors outside of segments stay.
        for place in [0, 2, 4] {
            let value = parameters.at(place).double_value(&[0, 0]);
            assert!((value - place as f64 * 10.0).abs() < 1e-6);
        }
        let whole = shards.whole(&parameters, true).unwrap();
        for (place, tensor) in whole.tensors().iter().enumerate() {
            assert!((tensor.double_value(&[1, 2]) - (place as f64 * 10.0 + 5.0)).abs() < 1e-6);
        }
    }
}

#[test]
#[should_panic(expected = "1 is used outside of its segment")]
fn sharded_weight_is_not_used_outside_of_its_segment() {
    let mut parameters = parameters();
    let _ = Segment::new(&mut parameters, (), [1]);
    divided(&mut parameters, Shard::Zero3).unwrap();
    let _ = parameters.at(1);
}

#[test]
fn segments_with_a_common_weight_have_the_same_weights() {
    let mut tied = parameters();
    for places in [[1, 4], [4, 1]] {
        let _ = Segment::new(&mut tied, (), places);
    }
    divided(&mut tied, Shard::Zero3).unwrap();
    assert_eq!(tied.shards().unwrap().own().len(), 1);
    let mut overlapping = parameters();
    for places in [[0, 1], [1, 4]] {
        let _ = Segment::new(&mut overlapping, (), places);
    }
    let error = divided(&mut overlapping, Shard::Zero3).unwrap_err();
    assert!(error.to_string().contains("the same weights"), "{error}");
}

/// Weights and a statistic around two experts in one segment.
#[test]
fn spread_experts_are_no_part_of_their_segment() {
    for shard in [Shard::Zero2, Shard::Zero3] {
        let mut parameters = Parameters::default();
        let push = |parameters: &mut Parameters, role, value: f64| {
            let value = Tensor::full([2], value, (Kind::Float, Device::Cpu));
            let name = parameters.tensors().len().to_string();
            parameters.push(name, role, &value)
        };
        let segment = Segment::build(&mut parameters, |parameters| {
            push(parameters, Role::Weight, 1.0)?;
            let experts = Experts::build(parameters, 2, |parameters, number| {
                push(parameters, Role::Weight, 10.0 * (number as f64 + 1.0))
            })?;
            push(parameters, Role::Statistic { momentum: 0.1 }, 5.0)?;
            Ok(experts)
        });
        let segment = segment.unwrap();
        divided(&mut parameters, shard).unwrap();
        let x = Tensor::ones([4, 2], (Kind::Float, Device::Cpu));
        let run = |experts: &Experts<usize>, own: &Parameters, x: &Tensor| {
            let expert = |place: &usize, own: &Parameters, x: &Tensor| x.f_mul(own.at(*place));
            let y = experts.apply(own, x, expert)?;
            y.f_add(own.at(0))?.f_add(own.at(3))
        };
        let shards = Rc::clone(parameters.shards().unwrap());
        shards.sharding().begin_pass().unwrap();
        let y = segment.apply_alone(&parameters, &x, run).unwrap();
        let first = Vec::<f32>::try_from(y.select(1, 0)).unwrap();
        assert_eq!(first, [16.0, 16.0, 26.0, 26.0], "{shard:?}");
        roundhouse_c10d::backward(&y.sum(Kind::Float)).unwrap();
        shards.sharding().end_pass().unwrap();
        let gradients = shards.gradients(0).unwrap().view([-1]);
        let of_experts = gradients.index_select(0, &Tensor::from_slice(&[0_i64, 64]));
        assert_eq!(Vec::<f32>::try_from(of_experts).unwrap(), [2.0, 2.0]);
        let has_whole: Vec<bool> = (0..4).map(|place| shards.has_whole(place)).collect();
        assert_eq!(has_whole, [shard == Shard::Zero2, false, false, true]);
        assert!(shards.needs_replica());
        let whole = shards.whole(&parameters, true).unwrap();
        let values = whole.tensors().iter().map(|it| it.double_value(&[1]));
        assert_eq!(values.collect::<Vec<_>>(), [1.0, 10.0, 20.0, 5.0]);
    }
}
