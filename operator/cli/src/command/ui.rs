//! `ui`: serves a read-only web page of the jobs, which only this user of this machine can open.

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
use crate::ui::source::DataSource;
use crate::ui::{Guard, QueryCache, serve};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job whose page comes first. Left out: the list of jobs.
    name: Option<String>,
    /// Jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["name", "local"])]
    all_namespaces: bool,
    /// Show the run of `run --local` in this directory instead of a cluster. The run may have
    /// ended.
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
    let source = match &options.local {
        Some(dir) => DataSource::of_directory(dir)?,
        None => DataSource::of_cluster(Cluster::connect(place).await?, options.all_namespaces),
    };
    let first = source.first_page(options.name.as_deref()).await?;
    let address = (Ipv4Addr::LOCALHOST, options.port);
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot use port {} of 127.0.0.1: give another --port, or leave it out",
            options.port
        )
    })?;
    let guard = Guard::new(listener.local_addr()?.port())?;
    let url = guard.url(&first);
    out::write(&url)?;
    out::aside(
        "Keep the address to yourself: it contains a secret. The page is read-only. Ctrl-C ends it.",
    );
    // Dropping the file removes it. The browser reads it right after the start.
    let _redirect = options.open.then(|| open(&url)).flatten();
    let tasks = LocalSet::new();
    tokio::select! {
        never = tasks.run_until(serve(listener, guard, QueryCache::new(source))) => match never {},
        ended = tokio::signal::ctrl_c() => ended?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the page in the desktop's browser. All users can see the arguments of a process, so the
/// argument is not the address but a file that only this user can read and that redirects to the
/// page.
fn open(url: &str) -> Option<NamedTempFile> {
    let opened = redirect(url).and_then(|redirect| {
        let program = if cfg!(target_os = "macos") {
            "open"
        } else {
            "xdg-open"
        };
        let mut command = Command::new(program);
        command.arg(redirect.path());
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::null()).spawn().context(program)?;
        Ok(redirect)
    });
    match opened {
        Ok(redirect) => Some(redirect),
        Err(error) => {
            out::aside(&format!(
                "Cannot open a browser ({error:#}): open the address yourself."
            ));
            None
        }
    }
}

/// A temporary HTML file that redirects to the page.
fn redirect(url: &str) -> anyhow::Result<NamedTempFile> {
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
    fn redirect_file_is_readable_only_by_its_user() {
        let redirect = redirect("http://127.0.0.1:1/abc/#/ml/digits").unwrap();
        let mode = redirect.as_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        let text = std::fs::read_to_string(redirect.path()).unwrap();
        assert!(text.contains("url=http://127.0.0.1:1/abc/#/ml/digits"));
    }
}
