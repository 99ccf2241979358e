use super::*;

/// Returns the straggler after a window of steps of these milliseconds.
fn found(procs: u32, milliseconds: &[f64], unevenness: f64) -> Option<u32> {
    let mut times = StepTimes::new(procs);
    let seconds: Vec<f64> = milliseconds.iter().map(|it| it / 1_000.0).collect();
    for _ in 0..WINDOW {
        assert_eq!(times.straggler(), None, "judged before the window is full");
        times.add(&seconds, Some(unevenness));
    }
    times.straggler().map(|it| it.node_rank)
}

#[test]
fn at_most_one_worker_is_a_straggler() {
    // Fields: name, processes per worker, milliseconds of each rank, unevenness, node rank.
    type Case<'a> = (&'a str, u32, &'a [f64], f64, Option<u32>);
    let cases: [Case<'_>; 14] = [
        ("a single rank is not a straggler", 1, &[50.0], 1.0, None),
        ("all are equally fast", 1, &[20.0, 21.0, 19.0], 1.0, None),
        ("one of three is slow", 1, &[20.0, 46.0, 20.0], 1.0, Some(1)),
        (
            "rank 0 can be a straggler",
            1,
            &[46.0, 20.0, 20.0],
            1.0,
            Some(0),
        ),
        ("one of two is slow", 1, &[20.0, 46.0], 1.0, Some(1)),
        (
            "the slower of two slow workers",
            1,
            &[20.0, 40.0, 41.0, 20.0, 20.0],
            1.0,
            Some(2),
        ),
        (
            "none if most workers are slow",
            1,
            &[40.0, 20.0, 41.0, 40.0],
            1.0,
            None,
        ),
        (
            "slightly slower is not a straggler",
            1,
            &[20.0, 29.0, 20.0],
            1.0,
            None,
        ),
        ("just slow enough", 1, &[20.0, 30.0, 20.0], 1.0, Some(1)),
        (
            "noise on tiny steps is ignored",
            1,
            &[0.5, 5.0, 0.5],
            1.0,
            None,
        ),
        (
            "two samples instead of one may take twice as long",
            1,
            &[20.0, 40.0],
            2.0,
            None,
        ),
        ("but not four times as long", 1, &[20.0, 80.0], 2.0, Some(1)),
        (
            "all processes of a worker are slow",
            2,
            &[20.0, 20.0, 46.0, 45.0],
            1.0,
            Some(1),
        ),
        (
            "one process makes its worker slow",
            2,
            &[20.0, 46.0, 20.0, 20.0],
            1.0,
            Some(0),
        ),
    ];
    for (name, procs, milliseconds, unevenness, expected) in cases {
        assert_eq!(found(procs, milliseconds, unevenness), expected, "{name}");
    }
}

#[test]
fn straggler_uses_the_median_not_the_worst_step() {
    let mut times = StepTimes::new(1);
    for step in 0..WINDOW {
        let hiccup = if step % 4 == 0 { 2.0 } else { 0.02 };
        times.add(&[0.02, hiccup], Some(1.0));
    }
    assert_eq!(times.straggler(), None);
}

#[test]
fn recovered_rank_is_not_a_straggler() {
    let mut times = StepTimes::new(1);
    let add = |times: &mut StepTimes, seconds: f64, steps: usize| {
        (0..steps).for_each(|_| times.add(&[0.02, seconds, 0.02], Some(1.0)));
    };
    add(&mut times, 0.046, WINDOW);
    let factor = times.straggler().unwrap().factor();
    assert!((factor - 2.3).abs() < 1e-9, "{factor}");
    add(&mut times, 0.02, WINDOW - 1);
    assert!(times.straggler().is_some(), "the last window still counts");
    add(&mut times, 0.02, 1);
    assert_eq!(times.straggler(), None);
    add(&mut times, 0.046, WINDOW);
    times.begin();
    assert_eq!(times.straggler(), None, "another generation");
}

#[test]
fn steps_without_a_time_of_every_rank_do_not_count() {
    let mut times = StepTimes::new(1);
    for _ in 0..WINDOW {
        times.add(&[0.02, 0.0], Some(1.0));
        times.add(&[0.02, 0.2], None);
    }
    times.add(&[0.02, 0.2], Some(1.0));
    assert_eq!((times.steps.len(), times.straggler()), (1, None));
}

#[test]
fn unevenness_is_the_largest_ratio_of_work() {
    for (samples, world, micro, expected) in [
        (64, 2, None, Some(1.0)),
        (64, 3, None, Some(22.0 / 21.0)),
        (3, 2, None, Some(2.0)),
        // A pass has up to 32 samples: 32 samples need one pass, 33 need two.
        (65, 2, Some(32), Some(2.0)),
        (2, 3, None, None),
    ] {
        assert_eq!(unevenness(samples, world, micro), expected, "{samples}");
    }
}
