//! The logs of a run without a cluster: one file for each worker, across all restarts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;

use crate::cluster::targets;
use crate::logs::{Lines, Listing, Part, Source, Target};

/// Most bytes to read, from the end of a log.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    targets: Vec<Target>,
}

impl Files {
    pub(super) fn new(dir: &Path, pods: &[Pod]) -> Self {
        Self {
            dir: dir.join("logs"),
            targets: targets(pods),
        }
    }
}

impl Source for Files {
    async fn list(&self) -> anyhow::Result<Listing> {
        Ok(Listing {
            targets: self.targets.clone(),
            is_over: false,
        })
    }

    async fn open(&self, pod: &str, part: Part) -> anyhow::Result<Lines> {
        if part.previous {
            bail!(
                "the log of a run without a cluster is one file across restarts: leave out `previous`"
            );
        }
        let path = self.dir.join(format!("{pod}.log"));
        let text = end(&path).with_context(|| path.display().to_string())?;
        let lines: Vec<&str> = text.lines().collect();
        let tail = part.tail.and_then(|tail| usize::try_from(tail).ok());
        let skipped = lines.len().saturating_sub(tail.unwrap_or(lines.len()));
        let lines = lines[skipped..].iter().map(|line| Ok((*line).to_owned()));
        Ok(stream::iter(lines.collect::<Vec<_>>()).boxed())
    }
}

/// The last [`MAX_BYTES`] of a file, without the incomplete first line.
fn end(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(MAX_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if skipped > 0 {
        let begin = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..begin.map_or(0, |begin| begin + 1));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn last_lines_of_a_long_log_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        let lines: Vec<String> = (0..200_000).map(|n| format!("line {n}\n")).collect();
        let text = lines.concat();
        std::fs::write(dir.path().join("logs/p.log"), text).unwrap();
        let files = Files::new(dir.path(), &[]);
        let part = Part {
            tail: Some(2),
            ..Part::default()
        };
        let lines = files.open("p", part).await.unwrap();
        let lines: Vec<String> = lines.try_collect().await.unwrap();
        assert_eq!(lines, ["line 199998", "line 199999"]);
        let all = files.open("p", Part::default()).await.unwrap();
        let all: Vec<String> = all.try_collect().await.unwrap();
        assert!(all[0].starts_with("line ") && all.len() > 50_000);
        assert!(files.open("other", Part::default()).await.is_err());
    }
}
