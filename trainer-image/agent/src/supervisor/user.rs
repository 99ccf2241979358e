//! Variables of a login for containers whose user has no entry in the image's /etc/passwd. PyTorch
//! looks up the user's name when the first optimizer is created, and fails without one.

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::getuid;

/// The name of a user without an entry.
const NAME: &str = "roundhouse";
/// A directory that every user can write.
const TMP: &str = "/tmp";

/// Returns the variables that a script lacks. Settings of the user have priority.
/// `get` reads the environment.
pub(super) fn variables(get: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut all = Vec::new();
    if !is_known(&users, getuid().as_raw()) {
        let missing = ["USER", "LOGNAME"].into_iter();
        let missing = missing.filter(|name| get(name).is_none_or(|value| value.is_empty()));
        all.extend(missing.map(|name| (name, NAME.to_owned())));
    }
    let can_write = |path: &str| access(Path::new(path), Access::WRITE_OK).is_ok();
    all.extend(home(get("HOME").as_deref(), can_write).map(|home| ("HOME", home.to_owned())));
    all
}

/// Whether one of the lines `name:password:uid:…` contains the user's number.
fn is_known(users: &str, uid: u32) -> bool {
    let uids = users.lines().filter_map(|line| line.split(':').nth(2));
    uids.into_iter().any(|found| found.parse() == Ok(uid))
}

/// Returns another home directory if there is none, or if it is not writable.
fn home(given: Option<&str>, can_write: impl Fn(&str) -> bool) -> Option<&'static str> {
    let is_fine = given.is_some_and(|home| !home.is_empty() && home != "/" && can_write(home));
    (!is_fine && can_write(TMP)).then_some(TMP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_user_gets_a_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:\n";
        assert!(is_known(users, 1_000) && is_known(users, 0));
        assert!(!is_known(users, 1_000_700_000) && !is_known(users, 100));
    }

    #[test]
    fn home_directory_is_writable() {
        let can_write = |path: &str| matches!(path, "/home/me" | "/tmp" | "/");
        for (given, expected) in [
            (Some("/home/me"), None),
            (Some("/root"), Some("/tmp")),
            (Some("/"), Some("/tmp")),
            (Some(""), Some("/tmp")),
            (None, Some("/tmp")),
        ] {
            assert_eq!(home(given, can_write), expected, "{given:?}");
        }
        assert_eq!(home(None, |_| false), None, "nothing is writable");
    }
}
