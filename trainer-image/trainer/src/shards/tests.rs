use std::net::Ipv4Addr;
use std::time::Duration;

use roundhouse_contract::trainer::Shard;
use roundhouse_member::rendezvous::{Network, Ranks, Store};
use tch::Kind;

use super::*;
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
    Shards::divide(parameters, Device::Cpu, alone(), sharing, shard, true)
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
