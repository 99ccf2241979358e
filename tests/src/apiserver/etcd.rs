//! Restarts of both servers, and direct access to etcd.

use std::path::Path;

use anyhow::Context;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::{ApiServer, STARTS_WITHIN, TOKENS};
use crate::cluster::until;

impl ApiServer {
    /// Kills both servers with SIGKILL, lets `change` modify etcd's data directory, and starts both
    /// servers again. If `revision` is not 0, etcd continues from at least this revision and its
    /// history before it is compacted, as after
    /// `etcdutl snapshot restore --bump-revision --mark-compacted`.
    ///
    /// # Errors
    /// The errors of [`Self::start`] and of `change`.
    pub async fn restart(
        &self,
        change: impl FnOnce(&Path) -> anyhow::Result<()>,
        revision: u64,
    ) -> anyhow::Result<()> {
        let bin = std::env::var("ROUNDHOUSE_BIN")?;
        self.end();
        change(&self.directory.join("etcd"))?;
        self.serve(Path::new(&bin), revision).await
    }

    /// Posts a request to etcd itself, through its JSON gateway.
    ///
    /// # Errors
    /// etcd does not answer, or it refuses the request.
    pub async fn ask_etcd(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        let uri = format!("http://127.0.0.1:{}", self.etcd_ports[0]).parse()?;
        let etcd = Client::try_from(Config::new(uri))?;
        let request = http::Request::post(path).body(serde_json::to_vec(&body)?)?;
        Ok(etcd.request::<Value>(request).await?)
    }

    /// The process id of etcd, for tests that stop and continue it.
    ///
    /// # Errors
    /// etcd does not run.
    pub fn etcd_process(&self) -> anyhow::Result<u32> {
        let children = self.children();
        let etcd = children.first().context("etcd does not run")?;
        Ok(etcd.id())
    }

    /// Revokes the operator's token `operator`, so that only `operator-2` is valid, and restarts
    /// both servers.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn refuse_old_token(&self) -> anyhow::Result<()> {
        let tokens = TOKENS.lines().filter(|line| !line.starts_with("operator,"));
        let tokens: Vec<_> = tokens.collect();
        std::fs::write(self.path("tokens.csv"), tokens.join("\n"))?;
        self.restart(|_| Ok(()), 0).await
    }

    /// Writes to etcd until its revision is at least `revision`, then compacts the history before
    /// it.
    pub(super) async fn bump(&self, revision: u64) -> anyhow::Result<()> {
        let ask = |path: &'static str, body: Value| self.ask_etcd(path, body);
        // Base64 of "bump".
        let put = json!({"key": "YnVtcA==", "value": ""});
        until("etcd serves", STARTS_WITHIN, || async {
            Ok(ask("/v3/kv/put", put.clone()).await.ok())
        })
        .await?;
        loop {
            let answer = ask("/v3/kv/put", put.clone()).await?;
            let at = answer["header"]["revision"].as_str().unwrap_or_default();
            if at.parse::<u64>()? >= revision {
                let compaction = json!({"revision": at, "physical": true});
                ask("/v3/kv/compaction", compaction).await?;
                return Ok(());
            }
        }
    }
}
