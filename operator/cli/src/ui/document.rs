//! The JSON documents for the page. Every sentence comes from here, so the page says the same as
//! `status` and `why`. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::source::DataSource;
use crate::facts::Facts;
use crate::logs::Line;
use crate::out::mood_of;
use crate::view::ranks::Rank;
use crate::view::{ConditionView, EventView, JobView, list, since};
use crate::why::{Diagnosis, diagnose};

pub(super) fn jobs(source: &DataSource, jobs: &[list::Line], now: Timestamp) -> Value {
    let jobs = jobs.iter().map(|line| {
        let list::Line {
            namespace,
            name,
            state,
            ready,
            world_size,
            step,
            percent,
            loss,
            samples_per_second,
            incidents,
            created,
        } = line;
        json!({
            "namespace": namespace, "name": name, "state": state, "mood": mood_of(state), "ready": ready,
            "worldSize": world_size, "step": step, "percent": percent, "loss": loss,
            "samplesPerSecond": samples_per_second, "incidents": incidents, "age": since(*created, now),
        })
    });
    json!({"place": source.title(), "isCluster": source.is_cluster(), "jobs": jobs.collect::<Vec<_>>()})
}

pub(super) fn job(source: &DataSource, facts: &Facts) -> Value {
    let now = facts.now;
    let JobView {
        name,
        namespace,
        state,
        summary,
        conditions,
        workers: _,
        generation,
        world_size,
        progress,
        seconds_left: _,
        checkpoint: _,
        incidents: _,
        last_failure: _,
        ranks,
        events,
        next,
    } = JobView::of(facts);
    let progress = progress.filter(|progress| progress.total_steps > 0);
    let progress = progress.map(|it| json!({"step": it.step, "totalSteps": it.total_steps}));
    let conditions = conditions.iter().map(|it| condition(it, now));
    let ranks = ranks.iter().map(|it| rank(it, now));
    // The newest event comes first on the page.
    let events = events.iter().rev().map(|it| event(it, now));
    json!({
        "name": name, "namespace": namespace, "place": source.title(), "isCluster": source.is_cluster(),
        "note": source.note(facts), "state": state, "mood": mood_of(&state), "summary": summary,
        "diagnosis": diagnosis(&diagnose(facts), source), "progress": progress, "generation": generation,
        "worldSize": world_size, "processes": facts.procs(),
        "conditions": conditions.collect::<Vec<_>>(), "next": next,
        "ranks": ranks.collect::<Vec<_>>(), "events": events.collect::<Vec<_>>(),
    })
}

/// A diagnosis, if something is wrong. Its advice applies only to a cluster.
fn diagnosis(diagnosis: &Diagnosis, source: &DataSource) -> Option<Value> {
    let Diagnosis {
        situation: _,
        is_wrong,
        summary,
        evidence,
        advice,
    } = diagnosis;
    let advice: &[String] = if source.is_cluster() { advice } else { &[] };
    is_wrong.then(|| json!({"summary": summary, "evidence": evidence, "advice": advice}))
}

fn condition(condition: &ConditionView, now: Timestamp) -> Value {
    let ConditionView {
        kind,
        status,
        reason,
        message,
        since: at,
    } = condition;
    json!({
        "type": kind, "status": status, "reason": reason, "message": message, "since": since(Some(*at), now),
    })
}

fn rank(rank: &Rank, now: Timestamp) -> Value {
    let Rank {
        rank,
        worker: _,
        local_rank,
        shard,
        replica,
        pod,
        node,
        state,
        step,
        lag,
        samples_per_second,
        slower,
        restarts,
        last_exit,
    } = rank;
    json!({
        "rank": rank, "process": local_rank, "shard": shard, "replica": replica, "pod": pod, "node": node, "state": state, "mood": mood_of(state),
        "step": step, "lag": lag, "samplesPerSecond": samples_per_second, "slower": slower,
        "restarts": restarts, "lastExit": last_exit.as_ref().map(|end| end.cell(now)),
    })
}

fn event(event: &EventView, now: Timestamp) -> Value {
    let EventView {
        at,
        kind,
        about,
        reason,
        message,
    } = event;
    json!({
        "age": since(*at, now), "at": at.map(Timestamp::as_millisecond), "isWarning": kind == "Warning",
        "about": about, "reason": reason, "message": message,
    })
}

pub(super) fn line(line: &Line) -> Value {
    let Line {
        at,
        pod: _,
        speaker,
        text,
    } = line;
    json!({"at": at.map(Timestamp::as_millisecond), "who": speaker.name(), "text": text})
}
