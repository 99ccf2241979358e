//! Whether the watch of pods is late: it does not show a pod that the operator has made, although it should by now.

use k8s_openapi::api::core::v1::Pod;

use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::job::JobKey;
use crate::memory::expectations::{Seen, Written};
use crate::runtime::api::calls::call;
use crate::runtime::api::metadata::OfKind;
use crate::watch::projection;

/// Asks the API server for a pod that was made and is not seen: a plan without it would make another one. All other writes name
/// the version or the UID that was seen, so they fail if it is an old one.
///
/// # Errors
/// It refused, or did not answer.
pub(crate) async fn is_late(
    context: &Context,
    JobKey { namespace, uid }: &JobKey,
    write: &Written,
    seen: Seen,
) -> Result<bool, Error> {
    let (Written::Pod(name), Seen::Absent | Seen::Gone(_)) = (write, seen) else {
        return Ok(false);
    };
    let pods = OfKind::namespaced::<Pod>(&context.client, namespace);
    match call(|| pods.get(name)).await {
        // One that has lost our labels is not watched.
        Ok(live) => Ok(projection::is_child(&live, uid)),
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(Error::Confirm(error)),
    }
}
