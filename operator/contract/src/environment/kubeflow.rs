//! Variables with which a training loop finds the endpoint for its progress. Names and meanings are
//! those of Kubeflow's KEP-2779, for which Transformers has a client.
//!
//! Reference: <https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress>.

/// URL to which a process posts its progress.
pub const SERVER_URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
/// Path of the file with the token that each post has to carry.
pub const SERVER_TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
