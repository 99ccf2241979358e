//! Controls a headless Chromium through its driver. Protocol: <https://www.w3.org/TR/webdriver2/>.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::plugin::exchange;

/// Longest wait for a condition; it is far longer than needed.
const SOON: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    port: u16,
    session: String,
    _driver: Child,
    _home: TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("chromedriver: {error}: run make test-ui, which installs it")
            });
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').parse().unwrap();
            }
        };
        // Keep reading, so that the driver does not block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let profile = format!("--user-data-dir={}", home.path().display());
        let mut browser = Self {
            port,
            session: String::new(),
            _driver: driver,
            _home: home,
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--lang=en",
            // The browser resolves no other host.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &profile,
        ];
        let options = json!({"args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = browser.call("POST", "/session", &wanted).await;
        made["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        browser
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" {
            String::new()
        } else {
            body.to_string()
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            body.len()
        );
        let (status, answer) = exchange(self.port, &request).await.unwrap();
        assert_eq!(status, 200, "{path}: {answer}");
        let mut answer: Value = serde_json::from_str(&answer).unwrap();
        answer["value"].take()
    }

    async fn post(&self, what: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{what}", self.session);
        self.call("POST", &path, body).await
    }

    pub(crate) async fn open(&self, url: &str) {
        self.post("url", &json!({"url": url})).await;
    }

    /// Runs a script, and returns the value of its `return`.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.post("execute/sync", &body).await
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let begun = Instant::now();
        let script = format!("return Boolean({expression})");
        while self.run(&script).await != true {
            if begun.elapsed() > SOON {
                let text = self.run("return document.body.innerText").await;
                panic!("{expression} is not true of\n{text}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Presses a key, given as its character or as the protocol's private character for it.
    pub(crate) async fn press(&self, key: char) {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.post("actions", &body).await;
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.post("goog/cdp/execute", &body).await
    }

    /// Sets the colour scheme: `light` or `dark`.
    pub(crate) async fn colours(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let parameters = json!({"features": features});
        self.devtools("Emulation.setEmulatedMedia", &parameters)
            .await;
    }

    /// Sets the size of the window in pixels.
    pub(crate) async fn size(&self, width: u32, height: u32) {
        let parameters =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &parameters)
            .await;
    }

    /// Messages of the console since the last call.
    pub(crate) async fn console(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "browser"})).await;
        let entries = log.as_array().unwrap().iter();
        entries
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Saves a PNG picture of the page, cut at `max_height`.
    pub(crate) async fn picture(&self, path: &Path, width: u32, max_height: u32) {
        let height = self
            .run("return document.documentElement.scrollHeight")
            .await;
        let height = height.as_u64().unwrap().min(max_height.into());
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let parameters = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.devtools("Page.captureScreenshot", &parameters).await;
        let bytes = decoded(answer["data"].as_str().unwrap());
        std::fs::write(path, smaller(&bytes)).unwrap();
    }
}

/// Compresses a PNG picture better.
fn smaller(bytes: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    let mut small = Vec::new();
    let mut encoder = png::Encoder::new(&mut small, frame.width, frame.height);
    encoder.set_color(frame.color_type);
    encoder.set_depth(frame.bit_depth);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().unwrap();
    writer
        .write_image_data(&pixels[..frame.buffer_size()])
        .unwrap();
    writer.finish().unwrap();
    small
}

/// Bytes of base64 text (RFC 4648).
fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => 0,
    };
    let text = text.as_bytes();
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.chunks(4) {
        let bits = group.iter().fold(0, |bits, byte| bits << 6 | digit(*byte));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - padding);
    bytes
}
