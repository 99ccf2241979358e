//! A real kube-apiserver over a real etcd, on loopback, without nodes: pods are objects, and the test
//! plays the kubelet. Programs come from `ROUNDHOUSE_BIN` (`make test` sets it).

use std::io::{ErrorKind, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::cluster::until;

const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Audit policy: everything that is not a watch, by whom.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
    rules:\n- {level: Metadata, users: [operator]}\n- {level: None}\n";
/// Token, user, uid, groups.
const TOKENS: &str = "test,test,1,\"system:masters\"\noperator,operator,2,\"system:masters\"\n\
    operator-2,operator,2,\"system:masters\"\n\
    roundhouse-kueue,system:serviceaccount:kueue-system:roundhouse-kueue,3\n";

/// Which Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// That of the cluster.
    Usual,
    /// 1.37 with the Workload API, which is in beta and off by default.
    WithGroups,
    /// That of the cluster with mutating admission policies, which are in beta and off by default.
    WithPolicies,
}

impl Version {
    /// A program of Kubernetes.
    #[must_use]
    pub fn program(self, name: &str) -> String {
        match self {
            Self::Usual | Self::WithPolicies => name.to_owned(),
            Self::WithGroups => format!("{name}-with-groups"),
        }
    }

    /// What turns its API on.
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Usual => &[],
            Self::WithGroups => &[
                "--feature-gates=GenericWorkload=true",
                "--runtime-config=scheduling.k8s.io/v1beta1=true",
            ],
            Self::WithPolicies => &[
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            ],
        }
    }
}

/// The two processes; they end with the value.
pub struct ApiServer {
    children: Mutex<Vec<Child>>,
    directory: PathBuf,
    version: Version,
    port: u16,
    /// Port of etcd for clients, and for peers.
    etcd_ports: [u16; 2],
}

impl ApiServer {
    /// Starts both and waits until they serve.
    ///
    /// # Errors
    /// A program is missing or does not start; the end of its log is in the error.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_of(Version::Usual, directory).await
    }

    /// As [`Self::start`], of another version.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_of(version: Version, directory: &Path) -> anyhow::Result<Self> {
        let bin = std::env::var("ROUNDHOUSE_BIN").context(
            "ROUNDHOUSE_BIN is not set: the directory that `tests/cluster/cluster build` prints",
        )?;
        let server = Self {
            children: Mutex::default(),
            directory: directory.to_owned(),
            version,
            port: free_port()?,
            etcd_ports: [free_port()?, free_port()?],
        };
        for (name, text) in [("tokens.csv", TOKENS), ("audit.yaml", AUDIT)] {
            std::fs::File::create(server.path(name))?.write_all(text.as_bytes())?;
        }
        let made = Command::new("openssl")
            .args(["genrsa", "-out", &server.path("sa.key"), "2048"])
            .stderr(Stdio::null())
            .status()
            .context("openssl is not installed")?;
        anyhow::ensure!(made.success(), "openssl could not make a key");
        server.serve(Path::new(&bin), 0).await?;
        Ok(server)
    }

    /// Ends both, as a kill -9 does, lets somebody at the directory of etcd, and starts them again. Nothing of etcd's history
    /// before the revision is left, as after `etcdutl snapshot restore --bump-revision --mark-compacted`.
    ///
    /// # Errors
    /// As [`Self::start`], and those of `change`.
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

    /// Asks etcd itself, through its JSON gateway.
    ///
    /// # Errors
    /// etcd does not answer, or refuses.
    pub async fn ask_etcd(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        let uri = format!("http://127.0.0.1:{}", self.etcd_ports[0]).parse()?;
        let etcd = Client::try_from(Config::new(uri))?;
        let request = http::Request::post(path).body(serde_json::to_vec(&body)?)?;
        Ok(etcd.request::<Value>(request).await?)
    }

    /// The process of etcd, to be stopped and continued.
    ///
    /// # Errors
    /// It does not run.
    pub fn etcd_process(&self) -> anyhow::Result<u32> {
        let children = self.children();
        let etcd = children.first().context("etcd does not run")?;
        Ok(etcd.id())
    }

    /// From now on the operator's first token is refused, and `operator-2` alone is its own. Both processes start anew.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn refuse_old_token(&self) -> anyhow::Result<()> {
        let tokens = TOKENS.lines().filter(|line| !line.starts_with("operator,"));
        let tokens: Vec<_> = tokens.collect();
        std::fs::write(self.path("tokens.csv"), tokens.join("\n"))?;
        self.restart(|_| Ok(()), 0).await
    }

    /// Lets etcd go on from a revision, and forget what was before.
    async fn bump(&self, revision: u64) -> anyhow::Result<()> {
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

    /// Starts both and waits until they serve.
    async fn serve(&self, bin: &Path, revision: u64) -> anyhow::Result<()> {
        let server = self;
        let [etcd_port, peer_port] = server.etcd_ports;
        let etcd = format!("http://127.0.0.1:{etcd_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        server.spawn(
            &bin.join("etcd"),
            &[
                "--data-dir",
                &server.path("etcd"),
                "--unsafe-no-fsync",
                "--log-level",
                "warn",
                "--listen-client-urls",
                &etcd,
                "--advertise-client-urls",
                &etcd,
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster",
                &format!("default={peer}"),
            ],
            &[],
        )?;
        if revision > 0 {
            server.bump(revision).await?;
        }
        let (key, port) = (server.path("sa.key"), server.port);
        let arguments: [&str; 14] = [
            &format!("--etcd-servers={etcd}"),
            "--bind-address=127.0.0.1",
            &format!("--secure-port={port}"),
            &format!("--cert-dir={}", server.path("certs")),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://localhost",
            &format!("--service-account-key-file={key}"),
            &format!("--service-account-signing-key-file={key}"),
            &format!("--token-auth-file={}", server.path("tokens.csv")),
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            &format!("--audit-policy-file={}", server.path("audit.yaml")),
            &format!("--audit-log-path={}", server.path("audit.log")),
            "--profiling=false",
        ];
        let program = server.version.program("kube-apiserver");
        let arguments = [&arguments[..], server.version.arguments()].concat();
        server.spawn(&bin.join(&program), &arguments, &[])?;
        let client = server.client("test")?;
        let ready = until("the API server is ready", STARTS_WITHIN, || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(client.request_text(request).await.ok())
        });
        if ready.await.is_err() {
            let end = server.last_lines(&program);
            bail!("the API server did not start; its last lines, newest first:\n{end}");
        }
        Ok(())
    }

    fn children(&self) -> MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        for mut child in self.children().drain(..).rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Configuration of a client that is `test` or `operator`.
    ///
    /// # Errors
    /// Never for the port it has.
    pub fn config(&self, user: &str) -> anyhow::Result<Config> {
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.port).parse()?);
        // Its certificate is its own; it is on loopback.
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info.token = Some(user.to_owned().into());
        Ok(config)
    }

    /// A client that is `test` or `operator`.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn client(&self, user: &str) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config(user)?)?)
    }

    /// The path of a kubeconfig of `test`, `operator` or `roundhouse-kueue`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn kubeconfig(&self, user: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(format!("{user}.kubeconfig"));
        let server = format!("https://127.0.0.1:{}", self.port);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": user}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, kubeconfig.to_string())?;
        Ok(path)
    }

    /// Runs another program of `ROUNDHOUSE_BIN` beside it, until the value ends. Returns the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<u32> {
        self.run_with(program, arguments, &[])
    }

    /// As [`Self::run`], with variables of the environment. Returns the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_with(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> anyhow::Result<u32> {
        let bin = std::env::var("ROUNDHOUSE_BIN")?;
        self.spawn(&Path::new(&bin).join(program), arguments, environment)
    }

    /// The last lines of a program's log, newest first.
    #[must_use]
    pub fn last_lines(&self, program: &str) -> String {
        let log = std::fs::read_to_string(self.path(&format!("{program}.log")));
        let log = log.unwrap_or_default();
        log.lines().rev().take(15).collect::<Vec<_>>().join("\n")
    }

    /// Where its files are, logs among them.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The operator's calls so far, as `verb resource`; watches and their lists are left out.
    ///
    /// # Errors
    /// The audit log cannot be read.
    pub fn operator_calls(&self) -> anyhow::Result<Vec<String>> {
        let text = std::fs::read_to_string(self.path("audit.log"))?;
        let mut calls = Vec::new();
        for line in text.lines() {
            let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let verb = event["verb"].as_str().unwrap_or_default();
            if !matches!(verb, "watch" | "list") {
                let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
                calls.push(format!("{verb} {resource}"));
            }
        }
        Ok(calls)
    }

    fn spawn(
        &self,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> anyhow::Result<u32> {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let log = std::fs::File::create(self.path(&format!("{name}.log")))?;
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let process = child.id();
        self.children().push(child);
        Ok(process)
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// A port below those that the kernel gives to connections, of which one may come before it is listened on.
pub(crate) fn free_port() -> std::io::Result<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(31);
    loop {
        let place = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(place).unwrap_or_default();
        match TcpListener::bind(("127.0.0.1", port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map(|_| port),
        }
    }
}
