//! `status`: shows one job in full, or all jobs in a table.

use std::process::ExitCode;

use jiff::Timestamp;

use super::Outcome;
use crate::cluster::Cluster;
use crate::out::{self, Format, heading, plain, style_of, styled, table};
use crate::view::list::{self, or_dash};
use crate::view::{JobView, since};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job. Without it: all jobs of the namespace.
    name: Option<String>,
    /// Jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
    /// Print a document instead of text.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let now = Timestamp::now();
    if let Some(name) = &options.name {
        let facts = cluster.facts(name).await?;
        out::print(&JobView::of(&facts), options.output, |view| text(view, now))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = list::lines(&cluster.jobs(options.all_namespaces).await?);
    if lines.is_empty() && options.output.is_none() {
        let place = if options.all_namespaces {
            "any namespace".to_owned()
        } else {
            format!("namespace {}", cluster.namespace())
        };
        out::aside(&format!(
            "There is no TrainingJob in {place}. Try `kubectl roundhouse submit -f FILE`."
        ));
        return Ok(ExitCode::SUCCESS);
    }
    out::print(&lines, options.output, |lines| {
        list::text(lines, options.all_namespaces, now)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The text for one job.
pub(crate) fn text(view: &JobView, now: Timestamp) -> String {
    let mut parts = vec![head(view)];
    if !view.conditions.is_empty() {
        parts.push(section("Conditions", &conditions(view, now)));
    }
    if !view.ranks.is_empty() {
        parts.push(section("Ranks", &ranks(view, now)));
    }
    if !view.events.is_empty() {
        parts.push(section("Events", &events(view, now)));
    }
    if !view.next.is_empty() {
        let next = view.next.iter().map(|next| format!("- {}", plain(next)));
        parts.push(section("Next", &next.collect::<Vec<_>>().join("\n")));
    }
    parts.join("\n\n")
}

fn head(view: &JobView) -> String {
    let state = styled(style_of(&view.state), &view.state);
    let summary = view.summary.iter().map(|line| format!("  {}", plain(line)));
    let title = heading(&plain(&view.name));
    let title = format!("{title} in namespace {}: {state}", plain(&view.namespace));
    std::iter::once(title)
        .chain(summary)
        .collect::<Vec<_>>()
        .join("\n")
}

fn section(title: &str, body: &str) -> String {
    format!("{}\n{body}", heading(title))
}

fn conditions(view: &JobView, now: Timestamp) -> String {
    let rows = view.conditions.iter().map(|it| {
        vec![
            it.kind.clone(),
            it.status.clone(),
            it.reason.clone(),
            since(Some(it.since), now),
            it.message.clone(),
        ]
    });
    table(&["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], rows)
}

pub(crate) fn ranks(view: &JobView, now: Timestamp) -> String {
    let are_sharded = view.ranks.iter().any(|rank| rank.shard.is_some());
    let have_pods = view.ranks.iter().any(|rank| rank.replica.is_some());
    let rows = view.ranks.iter().map(|rank| {
        let slower = rank.slower.map(|factor| format!(" ({factor:.1} x slower)"));
        let mut cells = vec![
            or_dash(rank.rank),
            rank.pod.clone(),
            or_dash(rank.node.as_ref()),
            format!("{}{}", rank.state, slower.unwrap_or_default()),
            or_dash(rank.step),
            or_dash(rank.lag),
            or_dash(rank.samples_per_second.map(|it| format!("{it:.0}"))),
            rank.restarts.to_string(),
            or_dash(rank.last_exit.as_ref().map(|end| end.cell(now))),
        ];
        if are_sharded {
            cells.insert(1, or_dash(rank.shard.as_ref()));
        }
        if have_pods {
            cells.insert(1, or_dash(rank.replica.as_ref()));
        }
        cells
    });
    let mut columns = vec![
        "RANK",
        "POD",
        "NODE",
        "STATE",
        "STEP",
        "LAG",
        "SAMPLES/S",
        "RESTARTS",
        "LAST EXIT",
    ];
    if are_sharded {
        columns.insert(1, "SHARD");
    }
    if have_pods {
        columns.insert(1, "REPLICA");
    }
    table(&columns, rows)
}

fn events(view: &JobView, now: Timestamp) -> String {
    let rows = view.events.iter().map(|event| {
        vec![
            since(event.at, now),
            event.kind.clone(),
            event.reason.clone(),
            event.about.clone(),
            event.message.clone(),
        ]
    });
    table(&["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"], rows)
}
