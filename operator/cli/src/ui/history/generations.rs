//! Generations as a timeline: begin, end and world size of each. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use roundhouse_api::{ConditionType, EventReason, LastFailure};
use serde_json::{Value, json};

use crate::facts::Facts;
use crate::plot::{Moment, Reported};
use crate::view::{since, time_of};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Generation {
    number: u64,
    pub(super) begin: Timestamp,
    /// `None` while the generation trains.
    end: Option<Timestamp>,
    world_size: u32,
}

/// All known generations, oldest first, from the log of rank 0 and from the operator's events. A
/// generation ends at its first incident, or when the next generation begins.
pub(super) fn of(facts: &Facts, moments: &[Moment], incidents: &[LastFailure]) -> Vec<Generation> {
    let logged = moments.iter().filter_map(|moment| match moment.reported {
        Reported::Generation { number, world_size } => Some((number, world_size, moment.at?)),
        Reported::Step { .. } => None,
    });
    let issued = facts
        .events
        .iter()
        .filter(|event| event.reason.as_deref() == Some(EventReason::GenerationIssued.as_str()));
    let issued = issued.filter_map(|event| {
        let (number, size) = parse(event.message.as_deref()?)?;
        Some((number, size, time_of(event)?))
    });
    let mut begins = BTreeMap::<u64, (u32, Timestamp)>::new();
    for (number, size, at) in logged.chain(issued) {
        let known = begins.entry(number).or_insert((size, at));
        known.1 = known.1.min(at);
    }
    let begins: Vec<_> = begins.into_iter().collect();
    let nexts = begins.iter().skip(1).map(|(_, (_, at))| Some(*at));
    let nexts = nexts.chain([end_of_last(facts)]);
    let all = begins.iter().zip(nexts);
    all.map(|((number, (world_size, begin)), next)| {
        let broken = incidents.iter().map(|incident| incident.time.0);
        let broken = broken
            .filter(|at| at > begin && next.is_none_or(|next| *at < next))
            .min();
        Generation {
            number: *number,
            begin: *begin,
            // A generation that still trains has no end, whatever incidents it had.
            end: next.map(|next| broken.unwrap_or(next)),
            world_size: *world_size,
        }
    })
    .collect()
}

/// When the newest generation ended; `None` while it trains.
fn end_of_last(facts: &Facts) -> Option<Timestamp> {
    let status = facts.status();
    if let Some(end) = status.completion_time {
        return Some(end.0);
    }
    let running = ConditionType::Running.as_str();
    let condition = status.conditions.iter().find(|it| it.type_ == running)?;
    (condition.status != "True").then_some(condition.last_transition_time.0)
}

/// Number and world size from the planner's sentence: `generation 3: 2 workers, world size 4`.
fn parse(text: &str) -> Option<(u64, u32)> {
    let (number, rest) = text.strip_prefix("generation ")?.split_once(':')?;
    let (_, size) = rest.split_once("world size ")?;
    let size = size.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((number.parse().ok()?, size.parse().ok()?))
}

impl Generation {
    pub(super) fn document(&self, now: Timestamp) -> Value {
        let Self {
            number,
            begin,
            end,
            world_size,
        } = self;
        json!({
            "number": number, "begin": begin.as_millisecond(), "end": end.map(Timestamp::as_millisecond),
            "worldSize": world_size, "age": since(Some(*begin), now),
            "lasted": since(Some(*begin), end.unwrap_or(now)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::incidents;
    use super::*;
    use crate::testing::{before, job};

    fn begins(number: u64, world_size: u32, seconds: i64) -> Moment {
        Moment {
            at: Some(before(seconds).parse().unwrap()),
            reported: Reported::Generation { number, world_size },
        }
    }

    fn shown(all: &[Generation]) -> Vec<(u64, u32, String, Option<String>)> {
        all.iter()
            .map(|it| {
                let end = it.end.map(|end| end.to_string());
                (it.number, it.world_size, it.begin.to_string(), end)
            })
            .collect()
    }

    #[test]
    fn generation_ends_with_incident_or_next_generation() {
        // The incident of the fixture was 90 s ago.
        let mut case = job().trains(2).last_failure("Killed", 137, "");
        case.events = vec![json!({
            "metadata": {}, "involvedObject": {}, "reason": "GenerationIssued",
            "message": "generation 3: 2 workers, world size 2; more are wanted: x", "lastTimestamp": before(60),
        })];
        let facts = case.facts();
        let moments = [begins(1, 4, 300), begins(2, 8, 200), begins(3, 2, 59)];
        let found = of(&facts, &moments, &incidents::of(&facts));
        assert_eq!(
            shown(&found),
            [
                (1, 4, before(300), Some(before(200))),
                (2, 8, before(200), Some(before(90))),
                (3, 2, before(60), None),
            ]
        );
    }

    #[test]
    fn newest_generation_of_an_idle_job_has_an_end() {
        let waits = job().trains(2).waits("Recovering", "").facts();
        let found = of(&waits, &[begins(3, 2, 300)], &[]);
        assert_eq!(found[0].end.unwrap().to_string(), before(30));
        let ended = job()
            .trains(2)
            .with("status/completionTime", json!(before(10)));
        let found = of(&ended.facts(), &[begins(3, 2, 300)], &[]);
        assert_eq!(found[0].end.unwrap().to_string(), before(10));
    }

    #[test]
    fn new_job_has_no_generation() {
        assert_eq!(of(&job().facts(), &[], &[]), []);
        assert_eq!(parse("generation x"), None);
    }
}
