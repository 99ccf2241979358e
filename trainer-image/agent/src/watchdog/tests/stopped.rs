use super::*;

/// The process cannot answer its peers, which would wait for it in each generation.
#[test]
fn stopped_process_hangs_in_every_phase() {
    for phase in [
        Phase::Training,
        Phase::Lobby,
        Phase::Stranded,
        Phase::Preparing,
    ] {
        for (policy, expected) in [(Policy::Auto, Some(31)), (Policy::Off, None)] {
            let mut watch = Watch::new(policy);
            watch.dog.limits.runs_script = true;
            watch.dog.look(watch.now, [seen(0, None)]);
            let stalls = (1..=60).find_map(|second| {
                watch.now += SECOND;
                let stopped = Seen {
                    is_stopped: true,
                    ..seen(0, Some(status(phase, 1, 9)))
                };
                let stall = watch.dog.look(watch.now, [stopped])?;
                Some((second, stall))
            });
            assert_eq!(stalls.as_ref().map(|(second, _)| *second), expected);
            let words = stalls.map(|(_, stall)| stall.message().message);
            assert!(words.is_none_or(|words| words.contains("a signal has stopped it")));
        }
    }
}

#[test]
fn process_that_continues_in_time_does_not_hang() {
    let mut watch = Watch::new(Policy::Auto);
    for second in 0..100 {
        watch.now += SECOND;
        let stopped = Seen {
            is_stopped: second % 30 != 0,
            ..seen(0, Some(status(Phase::Lobby, 0, 0)))
        };
        assert_eq!(watch.dog.look(watch.now, [stopped]), None);
    }
}
