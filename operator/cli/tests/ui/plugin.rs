//! Runs the plugin, and sends requests to its page as bytes, so that a test can set any Host
//! header.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::fake::Fake;

/// A running `kubectl roundhouse ui`; dropping the value kills it.
pub(crate) struct Plugin {
    pub(crate) url: String,
    pub(crate) port: u16,
    pub(crate) token: String,
    child: Child,
    _home: TempDir,
}

fn command(api: &Fake, home: &TempDir, arguments: &[&str]) -> Command {
    let server = format!("http://127.0.0.1:{}", api.port);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "test"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
    });
    let file = home.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-roundhouse"));
    command
        .args(arguments)
        .env("KUBECONFIG", file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a call that must end by itself; returns its exit code and its standard error.
pub(crate) async fn fails(api: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let home = TempDir::new().unwrap();
    let output = command(api, &home, arguments).output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), error)
}

impl Plugin {
    /// Starts the plugin, and waits for the address that it prints.
    pub(crate) async fn start(api: &Fake, arguments: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let mut child = command(api, &home, arguments).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(url) = lines.next_line().await.unwrap() else {
            let output = child.wait_with_output().await.unwrap();
            panic!("{}", String::from_utf8_lossy(&output.stderr));
        };
        let rest = url.strip_prefix("http://127.0.0.1:").unwrap();
        let mut parts = rest.split('/');
        Self {
            port: parts.next().unwrap().parse().unwrap(),
            token: parts.next().unwrap().to_owned(),
            url,
            child,
            _home: home,
        }
    }

    /// Requests a path with the token; returns status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let host = format!("127.0.0.1:{}", self.port);
        let path = format!("/{}/{path}", self.token);
        get(self.port, &host, &path).await.unwrap()
    }

    /// Requests a document, which must exist.
    pub(crate) async fn document(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Sends SIGINT, as Ctrl-C does, and returns the exit code.
    pub(crate) async fn interrupt(mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
        self.child.wait().await.unwrap().code()
    }
}

/// Sends a GET request; returns status and body.
pub(crate) async fn get(port: u16, host: &str, path: &str) -> std::io::Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(port, &request).await
}

/// Sends a request, and reads an answer with a known length, because some servers keep the
/// connection open in spite of `Connection: close`.
pub(crate) async fn exchange(port: u16, request: &str) -> std::io::Result<(u16, String)> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
    stream.write_all(request.as_bytes()).await?;
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(rest) = line.strip_prefix("content-length:") {
            length = rest.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((status, String::from_utf8(body).unwrap()))
}
