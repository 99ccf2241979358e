//! Calls of which the operator reads only the metadata of the answers, and a bounded part of that.
//! The client's own types read all of `managedFields`: with one entry whose time Rust cannot parse,
//! a successful write would count as failed.

use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams};
use kube::core::request::Request;
use kube::core::{ListMeta, ObjectMeta};
use kube::{Client, Resource};
use roundhouse_api::metadata::WithMetadata;
use serde::{Deserialize, Serialize};

/// The objects of one kind, in one namespace or in the cluster.
pub(crate) struct OfKind {
    client: Client,
    request: Request,
}

/// One page of a list of objects.
pub(crate) struct Page {
    /// Metadata of the objects.
    pub(crate) objects: Vec<ObjectMeta>,
    /// The token of the next page, if this is not the last one.
    pub(crate) next: Option<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<WithMetadata>,
}

impl OfKind {
    /// The objects of a namespace.
    pub(crate) fn namespaced<K: Resource<DynamicType = ()>>(
        client: &Client,
        namespace: &str,
    ) -> Self {
        Self::at(client, K::url_path(&(), Some(namespace)))
    }

    /// The objects of the cluster.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(client: &Client) -> Self {
        Self::at(client, K::url_path(&(), None))
    }

    fn at(client: &Client, path: String) -> Self {
        Self {
            client: client.clone(),
            request: Request::new(path),
        }
    }

    /// Reads the metadata of one object.
    ///
    /// # Errors
    /// There is no such object (404), the API server refused, or it did not answer.
    pub(crate) async fn get(&self, name: &str) -> kube::Result<ObjectMeta> {
        let request = self.request.get_metadata(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let found: WithMetadata = self.client.request(request).await?;
        Ok(found.metadata.into())
    }

    /// Reads the metadata of a page of objects.
    ///
    /// # Errors
    /// The API server refused, or did not answer.
    pub(crate) async fn list(&self, parameters: &ListParams) -> kube::Result<Page> {
        let request = self.request.list_metadata(parameters);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let List { metadata, items } = self.client.request(request).await?;
        let objects = items.into_iter().map(|item| item.metadata.into());
        let next = metadata.continue_.filter(|token| !token.is_empty());
        Ok(Page {
            objects: objects.collect(),
            next,
        })
    }

    /// Changes one object, and returns its new metadata.
    ///
    /// # Errors
    /// There is no such object (404), it has changed (409), the API server refused, or it did not
    /// answer.
    pub(crate) async fn patch<P: Serialize>(
        &self,
        name: &str,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<ObjectMeta> {
        let request = self.request.patch_metadata(name, parameters, patch);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let changed: WithMetadata = self.client.request(request).await?;
        Ok(changed.metadata.into())
    }

    /// Deletes one object. Returns its metadata if it waits for its finalizers.
    ///
    /// # Errors
    /// There is no such object (404), it is another one (409), the API server refused, or it did
    /// not answer.
    pub(crate) async fn delete(
        &self,
        name: &str,
        parameters: &DeleteParams,
    ) -> kube::Result<Option<ObjectMeta>> {
        let request = self.request.delete(name, parameters);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let answer = self.client.request_status::<WithMetadata>(request).await?;
        Ok(answer.left().map(|left| left.metadata.into()))
    }
}

/// A resourceVersion as a number. Since Kubernetes 1.35 the API promises that these numbers can be
/// compared.
#[must_use]
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
