//! How the operator identifies a job: [`JobKey`] for what belongs to one object, [`JobName`] for
//! where to find it.

use std::fmt;

use kube::core::ObjectMeta;
use roundhouse_planner::JobIdentity;

pub mod existing;

/// One TrainingJob object. A job that is deleted and created again under the same name has another
/// UID, so nothing that is kept by this key passes from one to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The namespace of the job.
    pub namespace: String,
    /// `metadata.uid` of the job.
    pub uid: String,
}

impl JobKey {
    /// The key of the job with this UID in a namespace.
    pub fn new(namespace: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            uid: uid.into(),
        }
    }

    /// The key of the job with this metadata.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }
}

impl From<&JobIdentity> for JobKey {
    fn from(job: &JobIdentity) -> Self {
        Self::new(&job.namespace, &job.uid)
    }
}

/// The name by which a job is queued, read and written. Another job may have it later.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName {
    /// The namespace of the job.
    pub namespace: String,
    /// `metadata.name` of the job.
    pub name: String,
}

impl JobName {
    /// The job of this name in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name of the job with this metadata.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl From<&JobIdentity> for JobName {
    fn from(job: &JobIdentity) -> Self {
        Self::new(&job.namespace, &job.name)
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
