//! Requests of a browser and of other clients to the page of a run's directory.

use http_body_util::BodyExt;
use hyper::header::{self, HOST};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::answer;
use super::source::DataSource;
use super::{Guard, QueryCache};
use crate::testing::{Case, before, job, progress};

const PORT: u16 = 8_001;

struct Stage {
    dir: TempDir,
    guard: Guard,
    queries: QueryCache,
}

impl Stage {
    fn new(case: Case) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        case.record().write(dir.path()).unwrap();
        Self {
            guard: Guard::new(PORT).unwrap(),
            queries: QueryCache::new(DataSource::of_directory(dir.path()).unwrap()),
            dir,
        }
    }

    async fn send(&self, method: &str, host: &str, path: &str) -> Response<String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .body(())
            .unwrap();
        let (head, body) = answer(&self.guard, &self.queries, &request)
            .await
            .into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Sends a request with the token and this machine's Host header.
    async fn get(&self, path: &str) -> Response<String> {
        let url = self.guard.url(path);
        let path = url.strip_prefix("http://127.0.0.1:8001").unwrap();
        self.send("GET", "127.0.0.1:8001", path).await
    }

    async fn document(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{}", answer.body());
        serde_json::from_str(answer.body()).unwrap()
    }
}

const DIGITS: &str = "namespace=ml&name=digits";

#[tokio::test]
async fn other_clients_and_other_methods_are_refused() {
    let stage = Stage::new(job().trains(2));
    let url = stage.guard.url("api/jobs");
    let path = url.strip_prefix("http://127.0.0.1:8001").unwrap();
    let own = "127.0.0.1:8001";
    for (method, host, path, status) in [
        ("GET", own, path, 200),
        ("GET", "evil.example:8001", path, 421),
        ("GET", own, "/api/jobs", 403),
        ("GET", own, "/", 403),
        (
            "GET",
            own,
            "/00000000000000000000000000000000/api/jobs",
            403,
        ),
        ("POST", own, path, 405),
        ("DELETE", own, path, 405),
    ] {
        let answer = stage.send(method, host, path).await;
        assert_eq!(answer.status(), status, "{method} {host} {path}");
        let names_the_job = answer.body().contains("digits");
        assert_eq!(names_the_job, status == 200, "{}", answer.body());
    }
}

#[tokio::test]
async fn every_answer_has_security_headers() {
    let stage = Stage::new(job());
    for (path, kind) in [
        ("", "text/html; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("api/jobs", "application/json"),
        ("nothing", "text/plain; charset=utf-8"),
    ] {
        let answer = stage.get(path).await;
        let header = |name| answer.headers()[&name].to_str().unwrap().to_owned();
        assert_eq!(header(header::CONTENT_TYPE), kind, "{path}");
        let policy = header(header::CONTENT_SECURITY_POLICY);
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
        assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header(header::REFERRER_POLICY), "no-referrer");
        assert_eq!(header(header::CACHE_CONTROL), "no-store");
    }
}

#[tokio::test]
async fn path_without_last_slash_redirects_to_the_page() {
    let stage = Stage::new(job());
    let url = stage.guard.url("");
    let place = url.strip_prefix("http://127.0.0.1:8001").unwrap();
    let answer = stage
        .send("GET", "localhost:8001", place.trim_end_matches('/'))
        .await;
    assert_eq!(answer.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(answer.headers()[header::LOCATION], place);
}

#[tokio::test]
async fn training_job_is_served_completely() {
    let step = "roundhouse_train_step{rank=\"0\"} 480\n";
    let mut case = job().trains(2).reports(0, progress(), step);
    case = case.last_failure("Killed", 137, "killed by SIGKILL");
    case.events = vec![json!({
        "metadata": {}, "involvedObject": {"kind": "TrainingJob", "name": "digits"}, "type": "Normal",
        "reason": "GenerationIssued", "message": "generation 3: 2 workers, world size 2", "lastTimestamp": before(50),
    })];
    let stage = Stage::new(case);
    let log = "[rank 0] step 480 of 1000\n[worker 0.0] loads\ngeneration 3: joins\n";
    std::fs::write(stage.dir.path().join("logs/digits-worker-0-0.log"), log).unwrap();

    let jobs = stage.document("api/jobs").await;
    assert_eq!(jobs["jobs"][0]["state"], "Training");
    assert_eq!(jobs["jobs"][0]["mood"], "good");
    assert!(jobs["pauseSeconds"].as_f64().unwrap() >= 2.0);

    let page = stage.document(&format!("api/job?{DIGITS}")).await;
    assert_eq!(page["progress"], json!({"step": 480, "totalSteps": 1000}));
    assert_eq!(page["ranks"][0]["step"], 480);
    assert_eq!(page["ranks"][1]["pod"], "digits-worker-1-0");
    assert_eq!(page["conditions"][0]["reason"], "Training");
    assert_eq!(page["events"][0]["reason"], "GenerationIssued");
    let summary = page["summary"].to_string();
    assert!(summary.contains("Step 480 of 1000"), "{summary}");
    // No process runs in the directory, and the job has not ended.
    let note = page["note"].as_str().unwrap();
    assert!(note.contains("stopped"), "{note}");

    let history = stage.document(&format!("api/history?{DIGITS}")).await;
    assert_eq!(history["generations"][0]["number"], 3);
    assert_eq!(history["incidents"][0]["exit"], "ended by SIGKILL");
    assert_eq!(history["curves"].as_array().unwrap().len(), 3);

    let asked = format!("api/log?{DIGITS}&pod=digits-worker-0-0&process=0");
    let log = stage.document(&asked).await;
    let said: Vec<_> = log["lines"].as_array().unwrap().iter().collect();
    assert_eq!(said[0]["who"], "rank 0");
    assert_eq!(said[1]["text"], "loads");
    assert_eq!(said.len(), 3);
}

#[tokio::test]
async fn missing_object_is_explained() {
    let stage = Stage::new(job());
    for (path, status, words) in [
        (
            "api/job?namespace=ml&name=other",
            404,
            "There is no TrainingJob other",
        ),
        ("api/job?namespace=ml", 400, "name"),
        ("api/job?namespace=ml&name=../x", 400, "name"),
        ("api/other?namespace=ml&name=digits", 404, "other"),
        (
            "api/log?namespace=ml&name=digits&pod=etc",
            404,
            "no pod etc",
        ),
    ] {
        let answer = stage.get(path).await;
        assert_eq!(answer.status(), status, "{path}");
        let document: Value = serde_json::from_str(answer.body()).unwrap();
        let error = document["error"].as_str().unwrap();
        assert!(error.contains(words), "{error}");
    }
    std::fs::remove_dir_all(stage.dir.path()).unwrap();
    // This query is new, so the cache has no answer.
    let answer = stage.get("api/jobs").await;
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn hostile_text_stays_json() {
    let hostile = "</script><script>alert(1)</script>\u{1b}[2J\u{202e}";
    let case = job().waits("Unschedulable", hostile);
    let stage = Stage::new(case);
    let answer = stage.get(&format!("api/job?{DIGITS}")).await;
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
    assert!(!answer.body().contains('\u{1b}'), "it is escaped");
    let page: Value = serde_json::from_str(answer.body()).unwrap();
    assert_eq!(page["conditions"][0]["message"], hostile);
}
