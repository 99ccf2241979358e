//! `ui`: a read-only web page of the jobs, for this user of this machine alone.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::Context;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::LocalSet;

use super::Outcome;
use crate::cluster::{Cluster, Place};
use crate::out;
use crate::ui::origin::Origin;
use crate::ui::{Desk, Guard, serve};

/// What to show, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job whose page comes first. Left out: the list of jobs.
    name: Option<String>,
    /// Jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["name", "local"])]
    all_namespaces: bool,
    /// Show the run of `run --local` in this directory instead of a cluster. It may be one that has ended.
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    local: Option<PathBuf>,
    /// Port on 127.0.0.1. Default: a free one.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
}

pub(crate) async fn run(place: &Place, options: &Options) -> Outcome {
    let origin = match &options.local {
        Some(dir) => Origin::of_directory(dir)?,
        None => Origin::of_cluster(Cluster::connect(place).await?, options.all_namespaces),
    };
    let first = origin.first_page(options.name.as_deref()).await?;
    let address = (Ipv4Addr::LOCALHOST, options.port);
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "port {} of 127.0.0.1 cannot be used: give another --port, or leave it out",
            options.port
        )
    })?;
    let guard = Guard::new(listener.local_addr()?.port())?;
    let url = guard.url(&first);
    out::write(&url)?;
    out::aside(
        "The page is for you alone: its address holds a secret. It changes nothing. Ctrl-C ends it.",
    );
    // It is removed at the end: the browser has read it long before.
    let _way = options.open.then(|| open(&url)).flatten();
    let tasks = LocalSet::new();
    tokio::select! {
        never = tasks.run_until(serve(listener, guard, Desk::new(origin))) => match never {},
        ended = tokio::signal::ctrl_c() => ended?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the desktop to open the page. Arguments of a process can be seen by all users, so it is given a file that only
/// this user can read, and that leads to the page.
fn open(url: &str) -> Option<NamedTempFile> {
    let opened = way(url).and_then(|way| {
        let program = if cfg!(target_os = "macos") {
            "open"
        } else {
            "xdg-open"
        };
        let mut command = Command::new(program);
        command.arg(way.path());
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::null()).spawn().context(program)?;
        Ok(way)
    });
    match opened {
        Ok(way) => Some(way),
        Err(error) => {
            out::aside(&format!(
                "No browser can be opened ({error:#}): open the address yourself."
            ));
            None
        }
    }
}

/// A file that leads to the page.
fn way(url: &str) -> anyhow::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("roundhouse-").suffix(".html");
    let mut file = builder.tempfile()?;
    writeln!(
        file,
        "<!doctype html><meta charset=utf-8><title>Roundhouse</title>\
         <meta http-equiv=refresh content=\"0; url={url}\"><a href=\"{url}\">Roundhouse</a>"
    )?;
    file.flush()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_that_leads_to_the_page_is_for_its_user_alone() {
        let way = way("http://127.0.0.1:1/abc/#/ml/digits").unwrap();
        let mode = way.as_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        let text = std::fs::read_to_string(way.path()).unwrap();
        assert!(text.contains("url=http://127.0.0.1:1/abc/#/ml/digits"));
    }
}
