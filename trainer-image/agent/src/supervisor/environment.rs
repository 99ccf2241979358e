//! The environment of a process that stays for all generations.

use std::collections::BTreeMap;

use roundhouse_contract::environment::{TERMINATION_GRACE_SECONDS, nccl};

use crate::options::Options;

/// cuBLAS needs this variable for matrix products if only deterministic kernels are allowed
/// (`trainer.deterministic`). It must be set before the first product.
const WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// Lets the allocator's segments grow. Otherwise batch sizes that change with the number of
/// workers fragment its memory.
const ALLOCATOR: (&str, &str) = ("PYTORCH_ALLOC_CONF", "expandable_segments:True");
/// The name before PyTorch 2.9, which PyTorch still reads if the other one is not set.
const ALLOCATOR_BEFORE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Returns settings of NCCL, cuBLAS and PyTorch's allocator that must be in the environment
/// when a process starts.
#[must_use]
pub fn device_settings(connect_timeout_seconds: u64) -> Vec<(&'static str, String)> {
    let others = [WORKSPACE, ALLOCATOR].map(|(name, value)| (name, value.to_owned()));
    let nccl = nccl::settings(connect_timeout_seconds);
    nccl.into_iter().chain(others).collect()
}

/// Whether the user has left the variable unset; `is_set` checks a name.
fn is_free(name: &str, is_set: impl Fn(&str) -> bool) -> bool {
    let has_older_name = name == ALLOCATOR.0 && is_set(ALLOCATOR_BEFORE);
    !is_set(name) && !has_older_name
}

/// Returns the variables that a process gets beside those of the agent.
pub(super) fn of_process(options: &Options, local_rank: u32) -> BTreeMap<&'static str, String> {
    let mut environment = options.launch_environment(local_rank).to_pairs();
    let timeouts = options.timeouts();
    environment.extend(timeouts.to_pairs());
    let grace = options.termination_grace_seconds;
    environment.extend(grace.map(|seconds| (TERMINATION_GRACE_SECONDS, seconds.to_string())));
    // A setting of the user has priority.
    let is_free =
        |(name, _): &(&str, String)| is_free(name, |name| std::env::var_os(name).is_some());
    let settings = device_settings(timeouts.connect.as_secs());
    environment.extend(settings.into_iter().filter(is_free));
    let log = nccl::log_settings(&options.run_dir, local_rank, |name| std::env::var_os(name));
    environment.extend(log);
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_settings_of_the_user_have_priority() {
        let names: Vec<_> = device_settings(7)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        for set in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
            let left: Vec<_> = names
                .iter()
                .filter(|name| !is_free(name, |known| known == set))
                .collect();
            assert_eq!(left, [&"PYTORCH_ALLOC_CONF"], "{set}");
        }
        assert!(
            names
                .iter()
                .all(|name| is_free(name, |known| known == "PATH"))
        );
    }
}
