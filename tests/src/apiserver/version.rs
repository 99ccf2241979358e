//! The builds of Kubernetes that tests run against.

/// A build of Kubernetes, with the APIs that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The version of the local cluster.
    Usual,
    /// Kubernetes 1.37 with the Workload API, which is in beta and off by default.
    WithGroups,
    /// The version of the local cluster with mutating admission policies, which are in beta and
    /// off by default.
    WithPolicies,
}

impl Version {
    /// The file name of a Kubernetes program of this version in `ROUNDHOUSE_BIN`.
    #[must_use]
    pub fn program(self, name: &str) -> String {
        match self {
            Self::Usual | Self::WithPolicies => name.to_owned(),
            Self::WithGroups => format!("{name}-with-groups"),
        }
    }

    /// The arguments of kube-apiserver that enable the APIs of this version.
    pub(super) const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Usual => &[],
            Self::WithGroups => &[
                "--feature-gates=GenericWorkload=true",
                "--runtime-config=scheduling.k8s.io/v1beta1=true",
            ],
            Self::WithPolicies => &[
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            ],
        }
    }
}
