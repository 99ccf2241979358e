//! A real kube-apiserver with a real etcd on loopback, without nodes: no kubelet runs the pods, the
//! test writes their status instead. The programs come from the directory `ROUNDHOUSE_BIN`, which
//! `make test` sets.

use std::io::{ErrorKind, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use kube::{Client, Config};

use crate::cluster::until;

mod etcd;
mod version;

pub use version::Version;

const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The audit policy: logs the requests of the user `operator`, without their bodies.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
    rules:\n- {level: Metadata, users: [operator]}\n- {level: None}\n";
/// Lines of the token file: token, user, user id, groups.
const TOKENS: &str = "test,test,1,\"system:masters\"\noperator,operator,2,\"system:masters\"\n\
    operator-2,operator,2,\"system:masters\"\n\
    roundhouse-kueue,system:serviceaccount:kueue-system:roundhouse-kueue,3\n";

/// The processes of etcd and kube-apiserver. They are killed when the value is dropped.
pub struct ApiServer {
    children: Mutex<Vec<Child>>,
    directory: PathBuf,
    version: Version,
    port: u16,
    /// The port of etcd for clients, then its port for peers.
    etcd_ports: [u16; 2],
}

impl ApiServer {
    /// Starts etcd and kube-apiserver of the local cluster's version, and waits until they serve.
    ///
    /// # Errors
    /// A program is missing or does not start; the error has the last lines of its log.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_of(Version::Usual, directory).await
    }

    /// Starts another version than [`Self::start`].
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_of(version: Version, directory: &Path) -> anyhow::Result<Self> {
        let bin = std::env::var("ROUNDHOUSE_BIN").context(
            "set ROUNDHOUSE_BIN to the directory that `tests/cluster/cluster build` prints",
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
        let created = Command::new("openssl")
            .args(["genrsa", "-out", &server.path("sa.key"), "2048"])
            .stderr(Stdio::null())
            .status()
            .context("openssl is not installed")?;
        anyhow::ensure!(created.success(), "openssl did not create a key");
        server.serve(Path::new(&bin), 0).await?;
        Ok(server)
    }

    /// Starts both servers and waits until they serve. A `revision` above 0 is etcd's new revision.
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

    /// The configuration of a client whose token is `user`: `test` or `operator`.
    ///
    /// # Errors
    /// None: the URL is valid for every port.
    pub fn config(&self, user: &str) -> anyhow::Result<Config> {
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.port).parse()?);
        // The certificate of the server is self-signed. The connection stays on loopback.
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info.token = Some(user.to_owned().into());
        Ok(config)
    }

    /// A client whose token is `user`: `test` or `operator`.
    ///
    /// # Errors
    /// The client cannot be created.
    pub fn client(&self, user: &str) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config(user)?)?)
    }

    /// Writes a kubeconfig of the user `test`, `operator` or `roundhouse-kueue`, and returns its
    /// path.
    ///
    /// # Errors
    /// The file cannot be written.
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

    /// Runs another program of `ROUNDHOUSE_BIN` until the value is dropped. Returns its process id.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<u32> {
        self.run_with(program, arguments, &[])
    }

    /// [`Self::run`] with environment variables.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run_with(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> anyhow::Result<u32> {
        let bin = std::env::var("ROUNDHOUSE_BIN")?;
        self.spawn(&Path::new(&bin).join(program), arguments, environment)
    }

    /// The last 15 lines of a program's log, newest first.
    #[must_use]
    pub fn last_lines(&self, program: &str) -> String {
        let log = std::fs::read_to_string(self.path(&format!("{program}.log")));
        let log = log.unwrap_or_default();
        log.lines().rev().take(15).collect::<Vec<_>>().join("\n")
    }

    /// The directory of the servers' files and logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The operator's requests so far, as `verb resource`, without watches and lists.
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

/// A free port below the kernel's range of ephemeral ports. A port of that range could be taken by
/// an outgoing connection before a server listens on it.
pub(crate) fn free_port() -> std::io::Result<u16> {
    static NUM_TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(31);
    loop {
        let place = first.wrapping_add(NUM_TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(place).unwrap_or_default();
        match TcpListener::bind(("127.0.0.1", port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map(|_| port),
        }
    }
}
