use super::*;

fn job(namespace: &str, name: &str) -> JobName {
    JobName::new(namespace, name)
}

fn queue(num_slots: usize, waiting: &[(&str, &str, Lane)]) -> WorkQueue {
    let mut queue = WorkQueue::new(num_slots);
    for (namespace, name, lane) in waiting {
        queue.add(job(namespace, name), *lane);
    }
    queue
}

/// Names of the jobs that get a slot, until no slot is free or no job waits.
fn given(queue: &mut WorkQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.begin())
        .map(|job| job.name)
        .collect()
}

/// The order in which jobs get the only slot.
fn order(queue: &mut WorkQueue) -> Vec<String> {
    let done = |queue: &mut WorkQueue| {
        let job = queue.begin()?;
        queue.done(&job);
        Some(job.name)
    };
    std::iter::from_fn(|| done(queue)).collect()
}

#[test]
fn incidents_go_before_new_jobs_and_those_before_progress() {
    let waiting = [
        ("ml", "progress", Lane::Rest),
        ("ml", "new", Lane::New),
        ("ml", "incident", Lane::Incident),
    ];
    assert_eq!(
        order(&mut queue(1, &waiting)),
        ["incident", "new", "progress"]
    );
}

#[test]
fn no_lane_starves_however_many_wait_in_the_others() {
    let mut queue = WorkQueue::new(1);
    for n in 0..100 {
        queue.add(job("ml", &format!("incident{n}")), Lane::Incident);
        queue.add(job("ml", &format!("new{n}")), Lane::New);
        queue.add(job("ml", &format!("rest{n}")), Lane::Rest);
    }
    let order = order(&mut queue);
    for (turns, lane, least) in [(16, "incident", 12), (16, "new", 2), (16, "rest", 2)] {
        let first = order
            .iter()
            .take(turns)
            .filter(|name| name.starts_with(lane));
        assert_eq!(first.count(), least, "{lane}: {order:?}");
    }
    assert_eq!(order.len(), 300);
}

#[test]
fn namespace_with_the_fewest_slots_goes_first() {
    let new = Lane::New;
    let waiting = [
        ("a", "a1", new),
        ("a", "a2", new),
        ("a", "a3", new),
        ("b", "b1", new),
        ("b", "b2", new),
    ];
    assert_eq!(
        order(&mut queue(1, &waiting)),
        ["a1", "b1", "a2", "b2", "a3"]
    );
    let mut queue = queue(4, &waiting[..3]);
    assert_eq!(given(&mut queue), ["a1", "a2", "a3"]);
    for name in ["a4", "a5"] {
        queue.add(job("a", name), new);
    }
    for name in ["b1", "b2"] {
        queue.add(job("b", name), new);
    }
    assert_eq!(given(&mut queue), ["b1"]);
    queue.done(&job("a", "a1"));
    assert_eq!(given(&mut queue), ["b2"], "a holds two, and came first");
    queue.done(&job("a", "a2"));
    assert_eq!(given(&mut queue), ["a4"]);
}

#[test]
fn one_namespace_does_not_hold_all_slots() {
    for lane in [Lane::Incident, Lane::New, Lane::Rest] {
        let mut queue = WorkQueue::new(16);
        for n in 0..100 {
            queue.add(job("a", &n.to_string()), lane);
        }
        assert_eq!(given(&mut queue).len(), 14, "{lane:?}");
        queue.add(job("b", "incident"), Lane::Incident);
        assert_eq!(given(&mut queue), ["incident"], "{lane:?}");
    }
}

#[test]
fn other_reconciles_leave_slots_to_incidents() {
    let mut queue = WorkQueue::new(16);
    for n in 0..100 {
        queue.add(job(&format!("ns{n}"), &format!("new{n}")), Lane::New);
        queue.add(job(&format!("ns{n}"), &format!("rest{n}")), Lane::Rest);
    }
    assert_eq!(given(&mut queue).len(), 14);
    for name in ["lost1", "lost2", "lost3"] {
        queue.add(job("b", name), Lane::Incident);
    }
    assert_eq!(given(&mut queue), ["lost1", "lost2"]);
}

#[test]
fn one_slot_is_enough_for_every_lane() {
    for lane in [Lane::Incident, Lane::New, Lane::Rest] {
        assert_eq!(given(&mut queue(1, &[("ml", "only", lane)])), ["only"]);
    }
}

#[test]
fn job_woken_while_it_runs_runs_once_more() {
    let mut queue = queue(
        4,
        &[("ml", "digits", Lane::New), ("ml", "digits", Lane::Rest)],
    );
    assert_eq!(given(&mut queue), ["digits"]);
    queue.add(job("ml", "digits"), Lane::Rest);
    queue.add(job("ml", "digits"), Lane::Incident);
    assert!(given(&mut queue).is_empty());
    queue.add(job("ml", "other"), Lane::New);
    queue.done(&job("ml", "digits"));
    assert_eq!(given(&mut queue), ["digits", "other"], "by its best lane");
    queue.done(&job("ml", "digits"));
    assert!(given(&mut queue).is_empty());
}

#[test]
fn waiting_job_moves_to_better_lanes_only() {
    let waiting = [
        ("a", "trains", Lane::Rest),
        ("a", "new1", Lane::New),
        ("b", "new2", Lane::New),
    ];
    let mut queue = queue(1, &waiting);
    queue.add(job("a", "trains"), Lane::Incident);
    queue.add(job("a", "trains"), Lane::Rest);
    assert_eq!(order(&mut queue), ["trains", "new1", "new2"]);
    assert!(queue.waiting.is_empty() && queue.running.is_empty());
    assert!(
        queue
            .lines
            .iter()
            .all(|line| line.turns.is_empty() && line.jobs.is_empty())
    );
}
