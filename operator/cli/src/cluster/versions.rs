//! Reads the versions of Kubernetes, the TrainingJob API and the operators.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::ListParams;
use roundhouse_contract::labels;

use super::Cluster;

impl Cluster {
    /// Version of Kubernetes, such as `v1.35.0`.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn kubernetes_version(&self) -> anyhow::Result<String> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// Served versions of the TrainingJob API; none if it is not installed.
    pub(crate) async fn api_versions(&self) -> Vec<String> {
        let groups = self.client.list_api_groups().await;
        let groups = groups.map(|groups| groups.groups).unwrap_or_default();
        let ours = groups
            .into_iter()
            .filter(|group| group.name == labels::GROUP);
        ours.flat_map(|group| group.versions)
            .map(|version| version.group_version)
            .collect()
    }

    /// Images of the operators in all namespaces; none if the user may not list Deployments.
    pub(crate) async fn operator_images(&self) -> Vec<String> {
        let deployments: Api<Deployment> = Api::all(self.client.clone());
        let selector = format!(
            "{}={},{}=operator",
            labels::APP_NAME,
            labels::ROUNDHOUSE,
            labels::APP_COMPONENT
        );
        let listed = deployments
            .list(&ListParams::default().labels(&selector))
            .await;
        let specs = listed
            .into_iter()
            .flatten()
            .filter_map(|it| it.spec?.template.spec);
        let containers = specs.flat_map(|spec| spec.containers);
        containers.filter_map(|container| container.image).collect()
    }
}
