//! Progress that a script posts as Transformers does.

use std::io::{Read, Write};
use std::net::TcpStream;

use roundhouse_contract::Reason;
use roundhouse_contract::environment::kubeflow::{SERVER_TOKEN, SERVER_URL};

use crate::harness::{Agent, until};

/// A shell script in which `post` runs the client.
fn script(lines: &str) -> String {
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/post.py");
    format!("post() {{ python3 {client} \"$@\"; }}\n{lines}")
}

/// Waits until the operator would see a step.
fn wait_for_step(agent: &Agent, step: u64) -> String {
    until("the step is shown", || {
        let (_, progress) = agent.get("/progress");
        progress
            .contains(&format!("\"step\":{step},"))
            .then_some(progress)
    })
}

/// Waits for a file in the run directory.
const WAIT: &str = "wait_for() { until [ -e $ROUNDHOUSE_RUN_DIR/$1 ]; do sleep 0.02; done; }";

#[test]
fn posted_training_is_shown_in_restart_mode() {
    let lines = format!("{WAIT}; post train 8 10 40; wait_for end; post train 11 40 40");
    let mut agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    let progress = wait_for_step(&agent, 10);
    for part in [
        "\"generation\":1,\"worldSize\":1,",
        "\"totalSteps\":40,\"epoch\":1,\"loss\":0.1,",
    ] {
        assert!(progress.contains(part), "{progress}");
    }
    agent.touch("end");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason, message.step),
        (Some(0), Reason::Completed, 40)
    );
    let progress = message.progress.unwrap();
    assert_eq!(
        (progress.loss, progress.samples_per_second),
        (Some(0.025), 17.5)
    );
}

#[test]
fn file_of_the_script_comes_before_its_posts() {
    let lines = format!(
        "{WAIT}; post step 30; wait_for file
        echo '{{\"step\": 7}}' > $ROUNDHOUSE_PROGRESS_FILE; exec sleep 1000"
    );
    let agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    wait_for_step(&agent, 30);
    agent.touch("file");
    wait_for_step(&agent, 7);
}

#[test]
fn next_generation_has_another_token() {
    let lines = format!(
        "[ $ROUNDHOUSE_GENERATION = 1 ] && cp ${SERVER_TOKEN} $ROUNDHOUSE_RUN_DIR/old
        [ $ROUNDHOUSE_GENERATION = 2 ] && post raw '{{}}' $(cat $ROUNDHOUSE_RUN_DIR/old)
        post step $ROUNDHOUSE_GENERATION; trap 'exit 0' TERM; while :; do sleep 0.02; done"
    );
    let agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    wait_for_step(&agent, 1);
    agent.join(2);
    wait_for_step(&agent, 2);
    assert!(
        agent.stdout().contains("status 403\n"),
        "{}",
        agent.stdout()
    );
    let refused = "without the token of a running process";
    until("the refusal is in the log", || {
        (agent.stderr().matches(refused).count() == 1).then_some(())
    });
}

#[test]
fn hang_between_posts_is_found_and_end_is_not_a_hang() {
    let file = "echo '{\"step\": 5}' > $ROUNDHOUSE_PROGRESS_FILE; exec sleep 1000";
    for (lines, reason) in [
        ("post train 1 3 40; exec sleep 1000", Reason::Stalled),
        ("post train 1 3 3; sleep 4", Reason::Completed),
        // The file of a script counts, whatever its first training loop has posted.
        (&format!("post train 1 3 3; {file}"), Reason::Stalled),
    ] {
        let options = ["--stall-timeout-seconds", "2"];
        let mut agent = Agent::start_restarting_with(&script(lines), &options, &[]);
        agent.join(1);
        assert_eq!(agent.finish().1.reason, reason, "{lines}");
    }
}

#[test]
fn end_at_sigterm_keeps_the_posted_step() {
    // Transformers posts the end of its loop, which it leaves for SIGTERM.
    let lines = format!(
        "post train 28 30 1000
        trap 'post end; exit 0' TERM; {WAIT}; while :; do sleep 0.02; done"
    );
    let mut agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    wait_for_step(&agent, 30);
    agent.signal("TERM");
    let (_, message) = agent.finish();
    assert_eq!((message.reason, message.step), (Reason::Left, 30));
}

#[test]
fn script_that_joins_gets_no_endpoint() {
    let script = format!("echo \"server ${{{SERVER_URL}-none}}\"");
    let mut agent = Agent::start_script(1, &script);
    agent.finish();
    assert!(agent.stdout().contains("server none\n"));
}

#[test]
fn bad_posts_are_named_once_and_change_nothing() {
    let deep = "[".repeat(20_000);
    let lines = format!(
        "post step 6
        for body in 'no JSON' '{{\"trainerStatus\": NaN, ' '[1]' '{deep}' \\
            '{{\"trainerStatus\": {{\"metrics\": [{{\"name\": \"current_step\", \"value\": \"-1\"}}]}}}}'; do
            post raw \"$body\"
        done
        post raw '{{}}' wrong; post raw '{{}}' ''
        post raw \"$(head -c 100000 /dev/zero | tr '\\0' x)\"
        post step 7; echo done; exec sleep 1000"
    );
    let agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    wait_for_step(&agent, 7);
    let text = until("the script is done", || {
        Some(agent.stdout()).filter(|text| text.contains("done\n"))
    });
    assert_eq!(text.matches("status 422\n").count(), 5, "{text}");
    assert_eq!(text.matches("status 403\n").count(), 2, "{text}");
    assert_eq!(text.matches("status ").count(), 8, "{text}");
    let log = agent.stderr();
    let named = log.matches("cannot read the progress that process 0 has posted: not JSON");
    assert_eq!(
        (named.count(), log.matches(" post").count()),
        (1, 2),
        "{log}"
    );
}

#[test]
fn silent_and_many_connections_do_not_delay_a_post() {
    let lines = format!(
        "{WAIT}; echo url ${SERVER_URL}; wait_for full; post step 6; echo posted; exec sleep 1000"
    );
    let agent = Agent::start_restarting(&script(&lines));
    agent.join(1);
    let address = until("the script has the URL", || {
        let text = agent.stdout();
        let url = text.split("url http://").nth(1)?;
        Some(url.split('/').next()?.to_owned())
    });
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mut silent = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(&address).unwrap();
        if number % 2 == 0 {
            let head =
                b"POST /trainer-status HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{";
            // The server may have closed the connection for a newer one.
            let _ = stream.write_all(head);
        }
        silent.push(stream);
    }
    agent.touch("full");
    wait_for_step(&agent, 6);
    assert_eq!(agent.get("/healthz").0, 200);
    // A body that never ends costs its client the connection.
    let last = silent.last_mut().unwrap();
    let _ =
        last.write_all(b"POST /trainer-status HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{");
    last.set_read_timeout(Some(crate::harness::DEADLINE))
        .unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn posts_reach_the_agent_although_there_is_a_proxy() {
    let lines = "post step 6; exec sleep 1000";
    // Nothing listens on the port of the proxy.
    let variables = [
        ("http_proxy", "http://127.0.0.2:9"),
        ("NO_PROXY", "10.0.0.1"),
    ];
    let agent = Agent::start_restarting_with(&script(lines), &[], &variables);
    agent.join(1);
    wait_for_step(&agent, 6);
}

#[test]
fn server_of_the_user_and_the_trainer_get_no_endpoint() {
    let script = format!("echo \"server ${{{SERVER_URL}-none}}, token ${{{SERVER_TOKEN}-none}}\"");
    let variables = [(SERVER_URL, "https://collector")];
    let mut agent = Agent::start_restarting_with(&script, &[], &variables);
    agent.join(1);
    agent.finish();
    let text = agent.stdout();
    assert!(
        text.contains("server https://collector, token none\n"),
        "{text}"
    );
    let mut agent = Agent::start(1, &script);
    agent.finish();
    assert!(agent.stdout().contains("server none, token none\n"));
}
