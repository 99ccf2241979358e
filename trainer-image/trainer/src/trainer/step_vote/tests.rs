use std::time::Duration;

use roundhouse_member::world::Saving;
use tch::Device;

use super::*;

const RANK_VOTE: RankVote = RankVote {
    finite: true,
    leaving: true,
    newest_seen: 3,
    saving: Saving {
        stage: roundhouse_elastic::saving::Stage::Idle,
        is_time: false,
        is_stuck: false,
        gives_up: false,
        durable_line: 9,
        is_copying: false,
        copy_failed: false,
    },
    own_time: Duration::from_millis(500),
};

/// The result that a process alone reads for this vote.
fn read(
    loss: f64,
    norms: &[f64],
    loss_sum: Option<f64>,
    dropped: Option<f32>,
) -> Result<Read, Failure> {
    let [loss, norms] = [&[loss], norms].map(Tensor::from_slice);
    let loss_sum = loss_sum.map(|sum| Tensor::from_slice(&[sum]));
    let dropped = dropped.map(|flag| Tensor::from_slice(&[flag]));
    let vote = StepVote {
        rank_vote: &RANK_VOTE,
        loss: &loss,
        norms: &norms,
        loss_sum: loss_sum.as_ref(),
        digest: None,
        dropped: dropped.as_ref(),
    };
    let world = World::alone();
    let agreement = Agreement::launch(&vote, &world)?;
    let flag = agreement.found_inf().double_value(&[0]);
    let end = Event::record(Device::Cpu)?;
    let read = agreement.read(&end, &world)?;
    assert_eq!(read.is_good, flag == 0.0);
    Ok(read)
}

#[test]
fn device_fills_in_the_same_vote_as_the_host() {
    let packing = Packing::new(0, 1);
    for loss in [-2.5, f64::NAN, f64::INFINITY] {
        let read = read(loss, &[0.5], None, None).unwrap();
        assert_eq!(read.sums, packing.pack(&RANK_VOTE, loss));
        assert_eq!(read.is_good, loss.is_finite());
        assert_eq!(read.local_loss.to_bits(), loss.to_bits());
        assert_eq!((read.gradient_norm, read.loss_sum), (0.5, None));
    }
}

#[test]
fn norm_that_is_not_finite_prevents_the_update() {
    let packing = Packing::new(0, 1);
    for (norms, loss_sum, all_finite) in [
        (&[0.5, 7.0][..], Some(4.0), true),
        (&[f64::NAN, 7.0], None, false),
        (&[0.5, f64::INFINITY], None, false),
        (&[0.5], Some(f64::INFINITY), false),
    ] {
        let read = read(1.0, norms, loss_sum, None).unwrap();
        let end = packing.unpack(&read.sums).unwrap();
        assert_eq!(end.agreement.all_finite, all_finite, "{norms:?}");
        assert_eq!(read.is_good, all_finite);
        assert_eq!(read.loss_sum, loss_sum);
        assert!(!packing.has_dropped(&read.sums));
    }
}

#[test]
fn step_after_a_dropped_step_is_dropped() {
    let packing = Packing::new(0, 1);
    for (flag, is_good) in [(0.0, true), (1.0, false)] {
        let read = read(1.0, &[0.5], None, Some(flag)).unwrap();
        assert_eq!(read.is_good, is_good);
        assert_eq!(packing.has_dropped(&read.sums), !is_good);
        // The numbers themselves are finite.
        assert!(packing.unpack(&read.sums).unwrap().agreement.all_finite);
    }
}
