//! How a process reaches the endpoint: its variables and the file with its token.

use std::fs::{OpenOptions, remove_file};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use roundhouse_contract::environment::kubeflow::{SERVER_TOKEN, SERVER_URL};
use roundhouse_contract::paths;
use rustix::rand::{GetRandomFlags, getrandom};

/// Address of the endpoint, as users write it into lists of hosts without a proxy.
pub(super) const HOST: &str = "127.0.0.1";
/// Hosts without a proxy. Clients use the first name if both are set.
const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// Whether the user has left the server to the agent. `get` reads the environment.
pub(super) fn is_free(get: impl Fn(&str) -> Option<String>) -> bool {
    get(SERVER_URL).is_none()
}

/// Creates the token of a process, in a file that only its user can read.
pub(super) fn grant(run_dir: &Path, local_rank: u32) -> io::Result<String> {
    let token = random()?;
    let path = paths::rank_progress_token(run_dir, local_rank);
    match remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o400)
        .open(&path)?;
    file.write_all(token.as_bytes())?;
    Ok(token)
}

/// Returns 128 random bits in hexadecimal digits.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    let num_bytes = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if num_bytes < bytes.len() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Returns the variables of a process. `get` reads the environment.
pub(super) fn variables(
    url: &str,
    run_dir: &Path,
    local_rank: u32,
    get: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let token = paths::rank_progress_token(run_dir, local_rank);
    let mut all = vec![
        (SERVER_URL, url.to_owned()),
        (SERVER_TOKEN, token.display().to_string()),
    ];
    all.extend(no_proxy(get).map(|hosts| (NO_PROXY[0], hosts)));
    all
}

/// Adds the endpoint to the hosts without a proxy. Otherwise each post would go to the proxy of the
/// cluster, and the training loop would wait for its answer. The script itself may set the proxy,
/// so this does not depend on it.
fn no_proxy(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_given = |hosts: &String| !hosts.trim().is_empty();
    let given = NO_PROXY
        .into_iter()
        .find_map(|name| get(name).filter(is_given));
    let Some(hosts) = given else {
        return Some(HOST.to_owned());
    };
    // Clients take a `*` for all hosts only if it stands alone.
    let is_there = hosts.trim() == "*" || hosts.split(',').any(|host| host.trim() == HOST);
    (!is_there).then(|| format!("{hosts},{HOST}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn tokens_are_private_and_new_for_each_start() {
        let directory = tempfile::tempdir().unwrap();
        let first = grant(directory.path(), 1).unwrap();
        let second = grant(directory.path(), 1).unwrap();
        assert_ne!(first, second);
        let path = paths::rank_progress_token(directory.path(), 1);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o400);
        assert_eq!(std::fs::read_to_string(path).unwrap(), second);
        assert_eq!(second.len(), 32);
    }

    #[test]
    fn posts_do_not_go_through_a_proxy() {
        for (given, expected) in [
            (&[][..], Some("127.0.0.1")),
            (&[("NO_PROXY", "a,.b")], Some("a,.b,127.0.0.1")),
            (&[("no_proxy", "b"), ("NO_PROXY", "a")], Some("b,127.0.0.1")),
            (&[("no_proxy", ""), ("NO_PROXY", "a")], Some("a,127.0.0.1")),
            (&[("no_proxy", "a, 127.0.0.1")], None),
            (&[("no_proxy", "a,*")], Some("a,*,127.0.0.1")),
            (&[("no_proxy", " * ")], None),
        ] {
            let get = |name: &str| {
                let found = given.iter().find(|(given, _)| *given == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(no_proxy(get).as_deref(), expected, "{given:?}");
        }
    }

    #[test]
    fn server_of_the_user_has_priority() {
        let get = |name: &str| (name == SERVER_URL).then(|| "https://collector".to_owned());
        assert!(!is_free(get) && is_free(|_| None));
    }
}
