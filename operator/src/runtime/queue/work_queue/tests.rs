use super::*;

fn job(namespace: &str, name: &str) -> JobName {
    JobName::new(namespace, name)
}

fn fair(num_slots: usize, waiting: &[(&str, &str, Lane)]) -> WorkQueue {
    let mut fair = WorkQueue::new(num_slots);
    for (namespace, name, lane) in waiting {
        fair.add(job(namespace, name), *lane);
    }
    fair
}

/// Names of the jobs that get a slot until there is none, or nobody waits.
fn given(fair: &mut WorkQueue) -> Vec<String> {
    std::iter::from_fn(|| fair.begin())
        .map(|job| job.name)
        .collect()
}

/// The order in which jobs get the only slot.
fn order(fair: &mut WorkQueue) -> Vec<String> {
    let done = |fair: &mut WorkQueue| {
        let job = fair.begin()?;
        fair.done(&job);
        Some(job.name)
    };
    std::iter::from_fn(|| done(fair)).collect()
}

#[test]
fn incidents_go_before_new_jobs_and_those_before_progress() {
    let waiting = [
        ("ml", "progress", Lane::Rest),
        ("ml", "new", Lane::New),
        ("ml", "incident", Lane::Incident),
    ];
    assert_eq!(
        order(&mut fair(1, &waiting)),
        ["incident", "new", "progress"]
    );
}

#[test]
fn no_lane_starves_however_many_wait_in_the_others() {
    let mut fair = WorkQueue::new(1);
    for n in 0..100 {
        fair.add(job("ml", &format!("incident{n}")), Lane::Incident);
        fair.add(job("ml", &format!("new{n}")), Lane::New);
        fair.add(job("ml", &format!("rest{n}")), Lane::Rest);
    }
    let order = order(&mut fair);
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
        order(&mut fair(1, &waiting)),
        ["a1", "b1", "a2", "b2", "a3"]
    );
    let mut fair = fair(4, &waiting[..3]);
    assert_eq!(given(&mut fair), ["a1", "a2", "a3"]);
    for name in ["a4", "a5"] {
        fair.add(job("a", name), new);
    }
    for name in ["b1", "b2"] {
        fair.add(job("b", name), new);
    }
    assert_eq!(given(&mut fair), ["b1"]);
    fair.done(&job("a", "a1"));
    assert_eq!(given(&mut fair), ["b2"], "a holds two, and came first");
    fair.done(&job("a", "a2"));
    assert_eq!(given(&mut fair), ["a4"]);
}

#[test]
fn one_namespace_does_not_hold_all_slots() {
    for lane in [Lane::Incident, Lane::New, Lane::Rest] {
        let mut fair = WorkQueue::new(16);
        for n in 0..100 {
            fair.add(job("a", &n.to_string()), lane);
        }
        assert_eq!(given(&mut fair).len(), 14, "{lane:?}");
        fair.add(job("b", "incident"), Lane::Incident);
        assert_eq!(given(&mut fair), ["incident"], "{lane:?}");
    }
}

#[test]
fn other_reconciles_leave_slots_to_incidents() {
    let mut fair = WorkQueue::new(16);
    for n in 0..100 {
        fair.add(job(&format!("ns{n}"), &format!("new{n}")), Lane::New);
        fair.add(job(&format!("ns{n}"), &format!("rest{n}")), Lane::Rest);
    }
    assert_eq!(given(&mut fair).len(), 14);
    for name in ["lost1", "lost2", "lost3"] {
        fair.add(job("b", name), Lane::Incident);
    }
    assert_eq!(given(&mut fair), ["lost1", "lost2"]);
}

#[test]
fn one_slot_is_enough_for_every_lane() {
    for lane in [Lane::Incident, Lane::New, Lane::Rest] {
        assert_eq!(given(&mut fair(1, &[("ml", "only", lane)])), ["only"]);
    }
}

#[test]
fn job_woken_while_it_runs_runs_once_more() {
    let mut fair = fair(
        4,
        &[("ml", "digits", Lane::New), ("ml", "digits", Lane::Rest)],
    );
    assert_eq!(given(&mut fair), ["digits"]);
    fair.add(job("ml", "digits"), Lane::Rest);
    fair.add(job("ml", "digits"), Lane::Incident);
    assert!(given(&mut fair).is_empty());
    fair.add(job("ml", "other"), Lane::New);
    fair.done(&job("ml", "digits"));
    assert_eq!(given(&mut fair), ["digits", "other"], "by its best lane");
    fair.done(&job("ml", "digits"));
    assert!(given(&mut fair).is_empty());
}

#[test]
fn waiting_job_moves_to_better_lanes_only() {
    let waiting = [
        ("a", "trains", Lane::Rest),
        ("a", "new1", Lane::New),
        ("b", "new2", Lane::New),
    ];
    let mut fair = fair(1, &waiting);
    fair.add(job("a", "trains"), Lane::Incident);
    fair.add(job("a", "trains"), Lane::Rest);
    assert_eq!(order(&mut fair), ["trains", "new1", "new2"]);
    assert!(fair.waiting.is_empty() && fair.running.is_empty());
    assert!(
        fair.lines
            .iter()
            .all(|line| line.turns.is_empty() && line.jobs.is_empty())
    );
}
