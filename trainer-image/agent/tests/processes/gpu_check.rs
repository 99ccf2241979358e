//! `tests/gpu` starts trainers without an agent and must give them the same settings.

use std::path::Path;
use std::process::Command;

use roundhouse_contract::environment::{DEFAULT_CONNECT_TIMEOUT_SECONDS, nccl};

#[test]
fn gpu_checks_use_all_settings_of_the_agent() {
    let agent = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"))
        .arg("environment")
        .output()
        .unwrap();
    let bundle = tempfile::tempdir().unwrap();
    std::fs::write(bundle.path().join("environment"), agent.stdout).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu");
    let script = "import machine, pathlib, sys\n\
        settings = machine.settings(pathlib.Path(sys.argv[1]))\n\
        for pair in machine.Machine('cuda', '', '', settings).variables(0).items(): print('='.join(pair))";
    let mut python = Command::new("python3");
    for (name, _) in nccl::settings(0) {
        python.env_remove(name);
    }
    let output = python
        .args(["-c", script])
        .arg(bundle.path())
        .env("PYTHONPATH", tests)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for (name, value) in nccl::settings(DEFAULT_CONNECT_TIMEOUT_SECONDS) {
        assert!(
            text.lines().any(|line| line == format!("{name}={value}")),
            "{name}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(text.contains("NCCL_HOSTID=worker-0"));
}
