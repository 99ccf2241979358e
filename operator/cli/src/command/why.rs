//! `why`: explains a job by one diagnosis with its evidence and advice.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use super::{Outcome, WRONG};
use crate::cluster::Cluster;
use crate::out::{self, Format, heading, plain, styled};
use crate::why::{Diagnosis, diagnose};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job.
    name: String,
    /// Print a document instead of text.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let diagnosis = diagnose(&cluster.facts(&options.name).await?);
    out::print(&diagnosis, options.output, text)?;
    Ok(if diagnosis.is_wrong {
        ExitCode::from(WRONG)
    } else {
        ExitCode::SUCCESS
    })
}

fn text(diagnosis: &Diagnosis) -> String {
    let Diagnosis {
        situation,
        is_wrong,
        summary,
        evidence,
        advice,
    } = diagnosis;
    let colour = if *is_wrong {
        AnsiColor::Red
    } else {
        AnsiColor::Green
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let title = styled(style, &format!("{situation:?}"));
    let list = |title: &str, lines: &[String]| {
        let lines: Vec<String> = lines
            .iter()
            .map(|line| format!("- {}", plain(line)))
            .collect();
        (!lines.is_empty()).then(|| format!("{}\n{}", heading(title), lines.join("\n")))
    };
    let head = format!("{title}: {}", plain(summary));
    let parts = [
        Some(head),
        list("Evidence", evidence),
        list("What to do", advice),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}
