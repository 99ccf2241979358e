//! `version`: shows the versions of this program, the operator and Kubernetes.

use std::process::ExitCode;

use serde::Serialize;

use super::Outcome;
use crate::cluster::{Cluster, Place};
use crate::out::{self, Format, plain};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Show the version of this program only.
    #[arg(long)]
    client: bool,
    /// Print a document instead of text.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client: &'static str,
    /// Versions of the TrainingJob API that the cluster serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    apis: Vec<String>,
    /// Images of operators, if the user may list Deployments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operators: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes: Option<String>,
    /// The error of the connection to the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) async fn run(place: &Place, options: &Options) -> Outcome {
    let mut versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        apis: Vec::new(),
        operators: Vec::new(),
        kubernetes: None,
        error: None,
    };
    if !options.client {
        match Cluster::connect(place).await {
            Ok(cluster) => match cluster.kubernetes_version().await {
                Ok(version) => {
                    versions.kubernetes = Some(version);
                    versions.apis = cluster.api_versions().await;
                    versions.operators = cluster.operator_images().await;
                }
                Err(error) => versions.error = Some(format!("{error:#}")),
            },
            Err(error) => versions.error = Some(format!("{error:#}")),
        }
    }
    out::print(&versions, options.output, text)?;
    Ok(ExitCode::SUCCESS)
}

fn text(versions: &Versions) -> String {
    let Versions {
        client,
        apis,
        operators,
        kubernetes,
        error,
    } = versions;
    let mut lines = vec![format!("kubectl-roundhouse {client}")];
    lines.extend(
        operators
            .iter()
            .map(|image| format!("operator           {image}")),
    );
    lines.extend(apis.iter().map(|api| format!("TrainingJob API    {api}")));
    lines.extend(
        kubernetes
            .iter()
            .map(|version| format!("Kubernetes         {version}")),
    );
    if kubernetes.is_some() && apis.is_empty() {
        lines.push("TrainingJobs are not installed in this cluster.".to_owned());
    }
    lines.extend(
        error
            .iter()
            .map(|error| format!("The cluster does not answer: {error}")),
    );
    plain_lines(&lines)
}

fn plain_lines(lines: &[String]) -> String {
    let lines = lines.iter().map(|line| plain(line));
    lines.collect::<Vec<_>>().join("\n")
}
