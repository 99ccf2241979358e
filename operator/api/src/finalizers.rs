//! Who keeps an object that is being deleted.

/// Kubernetes' own finalizer: it deletes what an object owns before the object.
const FOREGROUND: &str = "foregroundDeletion";

/// The finalizers that other controllers have to remove.
pub fn finalizers_of_others(all: &[String]) -> impl Iterator<Item = &str> {
    let all = all.iter().map(String::as_str);
    all.filter(|name| *name != FOREGROUND)
}
