//! Whether a cache is behind the API server about one object that the operator has written, and that the cache should have seen
//! by now.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use roundhouse_api::TrainingJob;

use crate::cache::Job;
use crate::calls::call;
use crate::context::Context;
use crate::error::Error;
use crate::expectations::{Seen, Written};
use crate::observe::version;
use crate::slim;

/// Asks the API server for the object, and compares it with what the cache shows.
///
/// # Errors
/// It refused, or did not answer.
pub(crate) async fn is_late(
    context: &Context,
    key: &Job,
    job: &TrainingJob,
    write: &Written,
    seen: Seen,
) -> Result<bool, Error> {
    let (client, namespace) = (context.client.clone(), &key.0);
    let live = match write {
        Written::Status => {
            let jobs: Api<TrainingJob> = Api::namespaced(client, namespace);
            let name = job.name_any();
            call(|| jobs.get_metadata(&name))
                .await
                .map(|it| it.metadata)
        }
        Written::Pod(name) => {
            let pods: Api<Pod> = Api::namespaced(client, namespace);
            call(|| pods.get_metadata(name)).await.map(|it| it.metadata)
        }
        // Each of these is made once, under one name, and changed only as it was seen.
        Written::Service | Written::NetworkPolicy | Written::PodGroup => return Ok(false),
    };
    let live = match live {
        Ok(live) => Some(live),
        Err(error) if error.code() == Some(404) => None,
        Err(error) => return Err(Error::Confirm(error)),
    };
    Ok(match seen {
        // One that has lost our labels is not watched.
        Seen::Absent => live.is_some_and(|live| slim::is_child(&live, &key.1)),
        Seen::Version(seen) => {
            live.is_none_or(|live| version(live.resource_version.as_deref()) != seen)
        }
    })
}
