//! The history of a job for the page: curves, generations and incidents. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::facts::Facts;
use crate::plot::{Curve, Moment, What, curve};

mod downsample;
mod generations;
mod incidents;

/// The history as a JSON document. Times are in milliseconds since 1970.
pub(super) fn of(facts: &Facts, moments: &[Moment]) -> Value {
    let incidents = incidents::of(facts);
    let generations = generations::of(facts, moments, &incidents);
    let reported = moments.iter().filter_map(|moment| moment.at);
    let end = facts.status().completion_time.map_or(facts.now, |it| it.0);
    let begin = reported
        .clone()
        .chain(generations.iter().map(|it| it.begin))
        .chain(incidents.iter().map(|it| it.time.0))
        .min();
    let curves = [What::Loss, What::Throughput, What::WorldSize];
    let first = reported.clone().next();
    let curves = curves.map(|what| drawn(what, &curve(what, "", moments), first));
    json!({
        "begin": begin.map(Timestamp::as_millisecond),
        "end": end.max(reported.max().unwrap_or(end)).as_millisecond(),
        "curves": curves,
        "generations": generations.iter().map(|it| it.document(facts.now)).collect::<Vec<_>>(),
        "incidents": incidents.iter().map(|it| incidents::document(it, facts.now)).collect::<Vec<_>>(),
    })
}

/// A curve for the page; its seconds count from `begin`.
fn drawn(what: What, curve: &Curve, begin: Option<Timestamp>) -> Value {
    let Curve {
        title,
        x_unit: _,
        points,
        is_stepped,
    } = curve;
    // `curve` writes titles for separate pictures, such as `samples/s of NAME`; NAME is empty here.
    let quantity = title.trim_end_matches(" of ");
    let (title, unit) = match what {
        What::Loss => ("Loss", ""),
        What::Throughput => ("Throughput", quantity),
        What::WorldSize => ("World size", "ranks"),
    };
    let is_over_time = what != What::Loss;
    json!({
        "title": title, "unit": unit, "isOverTime": is_over_time, "isStepped": is_stepped,
        "begin": begin.map(Timestamp::as_millisecond), "points": downsample::points(points),
    })
}
