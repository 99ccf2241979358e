//! Whether the watch of pods is late: it does not show a pod that the operator has created,
//! although it should by now.

use k8s_openapi::api::core::v1::Pod;

use super::Staleness;
use crate::job::JobKey;
use crate::memory::expectations::{Seen, Written};
use crate::runtime::api::calls::call;
use crate::runtime::api::error::CallError;
use crate::runtime::api::metadata::OfKind;
use crate::watch::projection;

impl Staleness {
    /// Asks the API server for a pod that was created and that the cache does not show: a plan
    /// without it would create another one. All other writes name the version or the UID that was
    /// observed, so they fail if that version or UID is old.
    ///
    /// # Errors
    /// The API server refused to read the pod, or did not answer.
    pub(super) async fn is_pod_missing(
        &self,
        JobKey { namespace, uid }: &JobKey,
        write: &Written,
        seen: Seen,
    ) -> Result<bool, CallError> {
        let (Written::Pod(name), Seen::Absent | Seen::Gone(_)) = (write, seen) else {
            return Ok(false);
        };
        let pods = OfKind::namespaced::<Pod>(&self.client, namespace);
        match call(|| pods.get(name)).await {
            // The watch does not report a pod that has lost the operator's labels.
            Ok(live) => Ok(projection::is_child(&live, uid)),
            Err(error) if error.code() == Some(404) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
