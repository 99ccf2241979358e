//! The finalizers that keep a deleted object.

/// The finalizer of Kubernetes itself, which deletes an object's dependents before the object.
const FOREGROUND: &str = "foregroundDeletion";

/// The finalizers that controllers other than Kubernetes itself must remove.
pub fn finalizers_of_others(all: &[String]) -> impl Iterator<Item = &str> {
    let all = all.iter().map(String::as_str);
    all.filter(|name| *name != FOREGROUND)
}
