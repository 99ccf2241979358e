//! Functions of the local cluster's scripts that work without a cluster.

use std::os::unix::fs::symlink;
use std::process::Command;

use roundhouse_tests::manifests;

#[test]
fn process_lookup_ignores_processes_that_end() {
    let proc = tempfile::tempdir().unwrap();
    let process = |pid: u32, status: &str| {
        let directory = proc.path().join(pid.to_string());
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("status"), status).unwrap();
    };
    process(10, "Name:\tbash\nNSpid:\t10\t1\n");
    process(12, "Name:\tagent\nNSpid:\t12\t7\t1\n");
    process(13, "Name:\tsleep\nNSpid:\t13\t8\n");
    // Process 11 ended after the directory was listed.
    std::fs::create_dir(proc.path().join("11")).unwrap();
    symlink("ended", proc.path().join("11/status")).unwrap();
    let script = manifests::repository().join("tests/cluster/lib/nodes.sh");
    let find = Command::new("bash")
        .args([
            "-euo",
            "pipefail",
            "-c",
            "source \"$0\"; pids_in_box 2 7 \"$1\"",
        ])
        .args([script.as_path(), proc.path()])
        .output()
        .unwrap();
    assert!(find.status.success(), "{find:?}");
    assert_eq!(String::from_utf8(find.stdout).unwrap(), "12\n");
}
