//! Members that die one at a time, each in another way. The survivors hold the state, so no
//! committed step is lost.

use std::time::Duration;

use fastrand::Rng;
use roundhouse_tests::local::{LocalRun, job};
use roundhouse_tests::processes::send;
use roundhouse_tests::weights::difference;
use rustix::process::Signal;
use serde_json::json;

const DEATHS: u32 = 12;
const MEMBERS: usize = 3;
/// Enough steps that training outlasts all deaths.
const STEPS: u64 = 2_000;
/// Milliseconds added to each step until all members have died.
const PAUSE_MILLIS: u64 = 30;
/// The largest allowed difference, as a fraction of the largest weight of a tensor.
const TOLERANCE: f32 = 1e-5;

/// The newest generation, if all its members train in it.
fn settled(run: &LocalRun) -> Option<u64> {
    let agents = run.agents();
    let newest = agents.iter().map(|agent| agent.generation).max()?;
    let members = agents.iter().filter(|agent| agent.generation == newest);
    (newest > 0 && members.count() == MEMBERS).then_some(newest)
}

/// Ends one member: kills its process, which its agent restarts in place, or kills its agent, or
/// terminates its agent with SIGTERM.
fn end_member(rng: &mut Rng, run: &LocalRun, generation: u64) -> bool {
    let agents = run.agents();
    let members = agents.iter().filter(|it| it.generation == generation);
    let Some(member) = rng.choice(members.collect::<Vec<_>>()) else {
        return false;
    };
    match (rng.u8(..4), member.ranks.first()) {
        (0 | 1, Some(rank)) => send(*rank, Signal::KILL),
        (2, _) => send(member.pid, Signal::KILL),
        _ => send(member.pid, Signal::TERM),
    }
}

#[test]
fn single_member_deaths_lose_no_step() {
    let mut undisturbed = LocalRun::start(&job(1, STEPS), &[]).unwrap();
    let mut wanted = job(3, STEPS);
    wanted["spec"]["workers"]["spares"] = json!(1);
    wanted["spec"]["elastic"]["joinWindowSeconds"] = json!(0);
    wanted["spec"]["failurePolicy"] = json!({"backoffLimit": 1_000});
    let mut run = LocalRun::start(&wanted, &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    let seed = fastrand::u64(..1_000_000);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut last = 0;
    for _ in 0..DEATHS {
        run.wait_for("all members in a later generation", |run| {
            settled(run).is_some_and(|generation| generation > last)
        })
        .unwrap();
        last = settled(&run).unwrap_or(last);
        let step = run.step();
        run.wait_for("a step", |run| run.step() > step).unwrap();
        // The member dies at a random moment of a step.
        std::thread::sleep(Duration::from_micros(rng.u64(..2_000 * PAUSE_MILLIS)));
        assert!(end_member(&mut rng, &run, last), "{}", run.output());
    }
    assert!(run.step() < STEPS, "all deaths must find the job training");
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    let audit = run.audit().unwrap();
    assert!(!audit.contains("lost"), "{audit}\n{}", run.output());
    assert!(undisturbed.end().unwrap().success());
    let apart = difference(&undisturbed.weights().unwrap(), &run.weights().unwrap()).unwrap();
    assert!(apart <= TOLERANCE, "{apart:e}");
}
