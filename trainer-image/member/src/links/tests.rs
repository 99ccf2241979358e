use std::thread;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn meet(file: &Path, shard: u32, num_shards: u32, timeout: Duration) -> Result<Links, Failure> {
    let met = Links::meet(file, shard, num_shards, timeout, &mut || false)?;
    Ok(met.unwrap())
}

/// The links of all processes of a replica, which meet in threads.
fn replica(num_shards: u32) -> (tempfile::TempDir, Vec<Links>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("replica");
    let begin = |shard| {
        let file = file.clone();
        thread::spawn(move || meet(&file, shard, num_shards, PATIENCE).unwrap())
    };
    // The last one comes first.
    let threads: Vec<_> = (0..num_shards).rev().map(begin).collect();
    let mut links: Vec<Links> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    links.reverse();
    (directory, links)
}

const NOTHING: [f64; NUM_NUMBERS] = [0.0; NUM_NUMBERS];

/// Whether no process has failed before this turn.
fn agrees(links: &mut Links, generation: u64, turn: u64) -> bool {
    let sums = links.sum(generation, turn, NOTHING, PATIENCE);
    sums.unwrap().is_some()
}

/// What each process concludes if the step's sum has succeeded in those of `succeeded`.
fn conclude(links: &mut [Links], generation: u64, step: u64, succeeded: &[bool]) -> Vec<bool> {
    thread::scope(|scope| {
        let threads: Vec<_> = links
            .iter_mut()
            .zip(succeeded)
            .map(|(links, succeeded)| {
                scope.spawn(move || {
                    let commits = *succeeded && agrees(links, generation, step);
                    if !commits {
                        links.fails(generation);
                    }
                    commits
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

#[test]
fn replica_commits_a_step_only_if_all_its_processes_do() {
    for num_shards in 1..=4_u32 {
        let (_directory, mut links) = replica(num_shards);
        for (shard, links) in (0..).zip(&links) {
            assert_eq!((links.shard(), links.num_shards()), (shard, num_shards));
        }
        let mut generation = 0;
        for subset in 0..1_u32 << num_shards {
            let succeeded: Vec<bool> = (0..num_shards).map(|it| subset >> it & 1 == 1).collect();
            let all = succeeded.iter().all(|it| *it);
            generation += 1;
            assert_eq!(
                conclude(&mut links, generation, 5, &vec![true; succeeded.len()]),
                vec![true; succeeded.len()]
            );
            let commits = conclude(&mut links, generation, 6, &succeeded);
            assert_eq!(commits, vec![all; succeeded.len()], "{succeeded:?}");
        }
    }
}

#[test]
fn sums_are_the_same_bits_in_all_processes() {
    let (_directory, links) = replica(3);
    let threads: Vec<_> = links
        .into_iter()
        .map(|mut links| {
            let own = 0.1 + f64::from(links.shard()) / 3.0;
            thread::spawn(move || {
                let first = links.sum(2, 1, [own, -own], PATIENCE).unwrap().unwrap();
                let second = links.sum(2, 2, [1.0, 0.0], PATIENCE).unwrap().unwrap();
                (first.map(f64::to_bits), second)
            })
        })
        .collect();
    let found: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    let sum = 0.1 + (0.1 + 1.0 / 3.0) + (0.1 + 2.0 / 3.0);
    for it in found {
        assert_eq!(it, ([sum, -sum].map(f64::to_bits), [3.0, 0.0]));
    }
}

#[test]
fn process_that_failed_between_steps_is_not_waited_for() {
    let (_directory, mut links) = replica(2);
    // Process 1 fails in an evaluation and joins the next generation.
    links[1].fails(3);
    let early = Vote {
        generation: 4,
        turn: 7,
        succeeded: true,
        numbers: [1.0, 2.0],
    };
    links[1].send(early).unwrap();
    assert!(!agrees(&mut links[0], 3, 7));
    links[0].fails(3);
    // Its vote in the next generation is not lost.
    assert!(agrees(&mut links[0], 4, 7));
    assert!(agrees(&mut links[1], 4, 7));
}

#[test]
fn process_that_forms_a_later_generation_is_not_waited_for() {
    let (_directory, mut links) = replica(2);
    // Process 1 has not formed generation 4, and forms generation 5.
    links[1].enters(4);
    links[1].enters(5);
    links[0].enters(4);
    assert!(!agrees(&mut links[0], 4, 1));
    links[0].enters(5);
    let [first, second] = &mut links[..] else {
        panic!("two processes");
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| agrees(second, 5, 1));
        assert!(agrees(first, 5, 1));
        assert!(other.join().unwrap());
    });
}

#[test]
fn vote_of_a_later_generation_shows_that_the_step_failed() {
    let (_directory, mut links) = replica(2);
    let later = Vote {
        generation: 9,
        turn: 1,
        succeeded: true,
        numbers: [1.0, 2.0],
    };
    links[0].send(later).unwrap();
    assert!(!agrees(&mut links[1], 8, 4));
    assert!(agrees(&mut links[1], 9, 1));
}

#[test]
fn replica_is_lost_with_a_dead_or_silent_sibling() {
    let (_directory, mut links) = replica(2);
    let short = Duration::from_millis(50);
    let silent = links[0].sum(1, 1, NOTHING, short).unwrap_err();
    assert!(
        silent
            .to_string()
            .contains("process 1 of this worker does not answer")
    );
    drop(links.pop());
    let gone = links[0].sum(1, 2, NOTHING, PATIENCE).unwrap_err();
    assert!(matches!(gone, Failure::ReplicaLost(_)), "{gone}");
    assert!(gone.to_string().contains("is gone"), "{gone}");
}

#[test]
fn sibling_that_has_ended_is_noticed_without_a_turn() {
    let (_directory, mut links) = replica(3);
    // An unread vote does not hide the end.
    links[2].enters(4);
    links[0].check().unwrap();
    drop(links.pop());
    let gone = links[0].check().unwrap_err();
    assert!(gone.to_string().contains("process 2"), "{gone}");
    assert!(matches!(gone, Failure::ReplicaLost(_)), "{gone}");
}

#[test]
fn sibling_that_never_comes_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("replica");
    for (shard, missing) in [(0, "process 1"), (1, "process 0")] {
        let failed = meet(&file, shard, 2, Duration::from_millis(50)).unwrap_err();
        assert!(failed.to_string().contains(missing), "{failed}");
        std::fs::remove_file(directory.path().join(format!("{shard}.socket"))).unwrap();
    }
}

#[test]
fn number_of_the_first_process_reaches_all() {
    let (_directory, links) = replica(3);
    let threads: Vec<_> = links
        .into_iter()
        .map(|mut links| {
            let own = 100 + u64::from(links.shard());
            thread::spawn(move || links.of_first(own, PATIENCE).unwrap())
        })
        .collect();
    for it in threads {
        assert_eq!(it.join().unwrap(), 100);
    }
}

#[test]
fn directory_may_have_a_long_path() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let file = deep.join("replica");
    let other = file.clone();
    let thread = thread::spawn(move || meet(&other, 1, 2, PATIENCE).map(|_| ()));
    meet(&file, 0, 2, PATIENCE).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn missing_sibling_is_named_although_another_has_come() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("replica");
    let other = file.clone();
    let short = Duration::from_secs(1);
    let thread = thread::spawn(move || meet(&other, 1, 3, short).map(|_| ()));
    let failed = meet(&file, 0, 3, short).unwrap_err();
    assert!(failed.to_string().contains("process 2"), "{failed}");
    assert!(thread.join().unwrap().is_err());
}

#[test]
fn process_that_is_asked_to_leave_waits_for_no_sibling() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("replica");
    let mut looks = 0;
    let mut is_asked = || {
        looks += 1;
        looks > 3
    };
    let met = Links::meet(&file, 0, 2, PATIENCE, &mut is_asked).unwrap();
    assert!(met.is_none());
}

/// Addresses of two pods on this machine that no other test uses.
fn pods(test: u8, life: &str, pod: u32) -> ReplicaPods {
    let [high, low] = u16::try_from(std::process::id() % 60_000)
        .unwrap()
        .to_be_bytes();
    ReplicaPods {
        life: life.to_owned(),
        pod,
        addresses: [1, 2]
            .map(|pod| format!("127.{}.{high}.{}", 10 + test * 2 + pod, low.max(1)))
            .to_vec(),
        holders: Vec::new(),
    }
}

fn meet_pods(pods: &ReplicaPods, timeout: Duration) -> Result<Links, Failure> {
    let met = Links::meet_pods(pods, 0, 1, timeout, &mut || false)?;
    Ok(met.unwrap())
}

#[test]
fn processes_of_two_pods_meet_and_agree() {
    let other = thread::spawn(|| meet_pods(&pods(0, "a1", 1), PATIENCE).unwrap());
    let first = meet_pods(&pods(0, "a1", 0), PATIENCE).unwrap();
    let mut links = vec![first, other.join().unwrap()];
    assert_eq!([links[0].shard(), links[1].shard()], [0, 1]);
    assert_eq!(conclude(&mut links, 1, 1, &[true, true]), [true, true]);
    assert_eq!(conclude(&mut links, 1, 2, &[true, false]), [false, false]);
}

#[test]
fn processes_of_two_lives_do_not_meet() {
    let short = Duration::from_secs(1);
    let other = thread::spawn(move || meet_pods(&pods(1, "a2", 1), short));
    assert!(matches!(
        meet_pods(&pods(1, "a1", 0), short),
        Err(Failure::ReplicaLost(_))
    ));
    assert!(matches!(
        other.join().unwrap(),
        Err(Failure::ReplicaLost(_))
    ));
}

#[test]
fn silent_and_wrong_clients_keep_no_sibling_out() {
    let first = thread::spawn(|| meet_pods(&pods(2, "a1", 0), PATIENCE).unwrap());
    let address = (
        &*pods(2, "a1", 0).addresses[0],
        roundhouse_contract::ports::REPLICA_LINKS,
    );
    let connect = || loop {
        if let Ok(stream) = std::net::TcpStream::connect(address) {
            return stream;
        }
    };
    let silent = [connect(), connect()];
    let mut wrong = connect();
    std::io::Write::write_all(&mut wrong, &[7; 200]).unwrap();
    let other = meet_pods(&pods(2, "a1", 1), PATIENCE).unwrap();
    let mut links = vec![first.join().unwrap(), other];
    assert_eq!(conclude(&mut links, 1, 1, &[true, true]), [true, true]);
    drop(silent);
}
