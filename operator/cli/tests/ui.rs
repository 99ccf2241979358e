//! Tests the page of `kubectl roundhouse ui`: runs the program with a fake API server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

#[cfg(feature = "browser")]
#[path = "ui/browser.rs"]
mod browser;
#[path = "ui/fake.rs"]
mod fake;
#[path = "ui/plugin.rs"]
mod plugin;
#[path = "ui/scenario.rs"]
mod scenario;
#[cfg(feature = "browser")]
#[path = "ui/seen.rs"]
mod seen;

use fake::Fake;
use plugin::Plugin;
use serde_json::Value;

const GPT: &str = "namespace=ml&name=gpt2-romeo";

/// A field of each element of an array.
fn each<'a>(array: &'a Value, field: &str) -> Vec<&'a Value> {
    let all = array.as_array().unwrap().iter();
    all.map(|it| &it[field]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn page_combines_api_server_agents_and_logs() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui", "gpt2-romeo"]).await;
    assert!(page.url.ends_with("/#/ml/gpt2-romeo"), "{}", page.url);

    let jobs = page.document("api/jobs").await;
    let names = each(&jobs["jobs"], "name");
    assert_eq!(names, ["bert", "digits", "gpt2-romeo", "resnet50"]);
    assert_eq!(jobs["jobs"][0]["mood"], "bad");

    let job = page.document(&format!("api/job?{GPT}")).await;
    let ranks = job["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 8);
    assert_eq!(ranks[0]["step"], 4_180);
    assert_eq!(ranks[5]["lag"], 1);
    assert_eq!(ranks[5]["restarts"], 1);
    assert_eq!(ranks[5]["node"], "gpu-5");

    let history = page.document(&format!("api/history?{GPT}")).await;
    assert_eq!(each(&history["generations"], "number"), [1, 2, 3, 4]);
    assert_eq!(each(&history["generations"], "worldSize"), [6, 8, 7, 8]);
    let incidents = each(&history["incidents"], "reason");
    assert_eq!(incidents, ["Killed", "HardwareFault"]);
    let loss = &history["curves"][0];
    assert_eq!(loss["title"], "Loss");
    let points = loss["points"].as_array().unwrap();
    assert_eq!(points.last().unwrap()[0], 4_180.0);
    assert_eq!(history["curves"][1]["unit"], "tokens/s");

    let asked = format!("api/log?{GPT}&pod=gpt2-romeo-worker-0-0&process=0");
    let log = page.document(&asked).await;
    let text = each(&log["lines"], "text");
    let last = text.last().unwrap().as_str().unwrap();
    assert!(last.starts_with("step 4180 of 10000"), "{last}");

    // The page changes nothing and reads no Secret.
    for call in api.calls() {
        assert!(call.starts_with("GET "), "{call}");
        assert!(!call.contains("secrets"), "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_missing_tokens_are_refused() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui"]).await;
    let own = format!("127.0.0.1:{}", page.port);
    let path = format!("/{}/api/jobs", page.token);
    for (host, path, status) in [
        (own.as_str(), path.as_str(), 200),
        ("rebound.example", &path, 421),
        (&own, "/api/jobs", 403),
        (&own, "/0123456789abcdef0123456789abcdef/api/jobs", 403),
    ] {
        let (found, body) = plugin::get(page.port, host, path).await.unwrap();
        assert_eq!(found, status, "{host} {path}");
        assert_eq!(body.contains("gpt2-romeo"), status == 200);
    }
    // A server that listens on all addresses would answer on 127.0.0.2, too.
    let other = tokio::net::TcpStream::connect(("127.0.0.2", page.port)).await;
    assert!(other.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn page_explains_errors_and_ctrl_c_succeeds() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui", "-n", "ml"]).await;
    let (status, body) = page.get("api/job?namespace=ml&name=missing").await;
    assert_eq!(status, 404);
    assert!(body.contains("There is no TrainingJob missing"), "{body}");
    api.stop_answering();
    // This query is new, so the cache has no answer.
    let (status, body) = page.get(&format!("api/job?{GPT}")).await;
    assert_eq!(status, 502);
    assert!(body.contains("etcd leader changed"), "{body}");
    assert_eq!(page.interrupt().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_job_or_run_fails_before_serving() {
    let api = Fake::start(scenario::cluster()).await;
    let (code, error) = plugin::fails(&api, &["ui", "missing"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("there is no TrainingJob missing"), "{error}");
    let (code, error) = plugin::fails(&api, &["ui", "--local", "/nowhere"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("run --local --dir"), "{error}");
}
