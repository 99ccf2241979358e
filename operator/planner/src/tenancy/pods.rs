//! Finds what a pod template asks for beyond the job.

use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, Toleration};

use super::allow::{Allow, allows};
use super::finding::{Finding, POD, in_pod};
use super::{containers, volumes};
use crate::validate::ValidatedJob;

/// The service account of every pod by default.
const DEFAULT_ACCOUNT: &str = "default";
const SYSTEM: &str = "system-";
/// Annotations from which Volcano reads the queue of a pod.
const QUEUES: [&str; 2] = ["scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"];
/// Taints of nodes that run the control plane.
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// Annotations that free a container from `AppArmor` in older clusters.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Everything that the pods of a job ask for and may not use.
pub(super) fn findings(job: &ValidatedJob, allow: &Allow) -> Vec<Finding> {
    let template = &job.template;
    let metadata = template.metadata.iter();
    let mut all = Vec::new();
    for (key, profile) in metadata.flat_map(|it| it.annotations.iter().flatten()) {
        if key.starts_with(APP_ARMOR) && profile == "unconfined" && !allow.unconfined {
            let field = format!("spec.workers.template.metadata.annotations[{key}]");
            all.push(Finding::new(field, profile, "allow.unconfined"));
        }
    }
    all.extend(queues(job, allow));
    let Some(pod) = &template.spec else {
        return all;
    };
    all.extend(account(pod, allow));
    all.extend(classes(job, pod, allow));
    all.extend(tolerations(pod, allow));
    if let Some(security) = &pod.security_context {
        all.extend(of_security(security, allow));
    }
    all.extend(volumes::of_pod(pod, &job.identity.namespace, allow));
    let lists = [
        ("initContainers", pod.init_containers.as_deref()),
        ("containers", Some(pod.containers.as_slice())),
    ];
    for (name, list) in lists {
        for (at, container) in list.unwrap_or_default().iter().enumerate() {
            let path = format!("{POD}.{name}[{at}]");
            all.extend(containers::findings(&path, container, allow));
        }
    }
    all
}

fn account(pod: &PodSpec, allow: &Allow) -> Vec<Finding> {
    let mut all = Vec::new();
    let names = [
        ("serviceAccountName", &pod.service_account_name),
        ("serviceAccount", &pod.service_account),
    ];
    for (field, name) in names {
        let Some(name) = name.as_deref().filter(|name| !name.is_empty()) else {
            continue;
        };
        if name != DEFAULT_ACCOUNT && !allows(&allow.service_accounts, name) {
            all.push(Finding::new(in_pod(field), name, "allow.serviceAccounts"));
        }
    }
    if pod.automount_service_account_token == Some(true) && !allow.service_account_tokens {
        let field = in_pod("automountServiceAccountToken");
        all.push(Finding::new(field, &true, "allow.serviceAccountTokens"));
    }
    all
}

fn classes(job: &ValidatedJob, pod: &PodSpec, allow: &Allow) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(class) = &pod.priority_class_name
        && !allows_class(&allow.priority_classes, class)
    {
        let field = match &job.scheduling.priority_class_name {
            Some(_) => "spec.scheduling.priorityClassName".to_owned(),
            None => in_pod("priorityClassName"),
        };
        all.push(Finding::new(field, class, "allow.priorityClasses"));
    }
    if let Some(class) = &pod.runtime_class_name
        && !allows(&allow.runtime_classes, class)
    {
        let field = in_pod("runtimeClassName");
        all.push(Finding::new(field, class, "allow.runtimeClasses"));
    }
    all
}

/// Whether an entry of the list allows a priority class. `*` does not include the
/// classes of the system.
fn allows_class(list: &[String], class: &str) -> bool {
    let is_meant = |entry: &&String| !class.starts_with(SYSTEM) || entry.starts_with(SYSTEM);
    let meant: Vec<String> = list.iter().filter(is_meant).cloned().collect();
    allows(&meant, class)
}

/// Finds refused Volcano queues that the job names in its spec or in annotations of its pods.
fn queues(job: &ValidatedJob, allow: &Allow) -> Vec<Finding> {
    let of_job = job.scheduling.queue_name.as_ref();
    let of_job = of_job.map(|queue| ("spec.scheduling.queueName".to_owned(), queue));
    let metadata = job.template.metadata.iter();
    let annotations = metadata.flat_map(|it| it.annotations.iter().flatten());
    let of_pods = annotations
        .filter(|(key, _)| QUEUES.contains(&key.as_str()))
        .map(|(key, queue)| {
            let field = format!("spec.workers.template.metadata.annotations[{key}]");
            (field, queue)
        });
    let named = of_job.into_iter().chain(of_pods);
    let refused = named.filter(|(_, queue)| !allows(&allow.queues, queue));
    refused
        .map(|(field, queue)| Finding::new(field, queue, "allow.queues"))
        .collect()
}

fn tolerations(pod: &PodSpec, allow: &Allow) -> Vec<Finding> {
    let all = pod.tolerations.iter().flatten().enumerate();
    let refused = all.filter_map(|(at, toleration)| {
        let key = control_plane(toleration)?;
        let field = in_pod(&format!("tolerations[{at}].key"));
        let refused = !allows(&allow.tolerations, key);
        refused.then(|| Finding::new(field, key, "allow.tolerations"))
    });
    refused.collect()
}

/// The key of a toleration of the control plane's taints; `*` if it tolerates every taint.
fn control_plane(toleration: &Toleration) -> Option<&str> {
    let key = toleration.key.as_deref().unwrap_or_default();
    if key.is_empty() {
        return Some("*");
    }
    CONTROL_PLANE.contains(&key).then_some(key)
}

fn of_security(security: &PodSecurityContext, allow: &Allow) -> Vec<Finding> {
    let path = in_pod("securityContext");
    let mut all = containers::user(&path, security.run_as_user, security.run_as_non_root, allow);
    let supplemental = security.supplemental_groups.iter().flatten().enumerate();
    let supplemental =
        supplemental.map(|(at, group)| (format!("supplementalGroups[{at}]"), Some(*group)));
    let groups = [
        ("runAsGroup".to_owned(), security.run_as_group),
        ("fsGroup".to_owned(), security.fs_group),
    ];
    for (field, group) in groups.into_iter().chain(supplemental) {
        all.extend(containers::group(format!("{path}.{field}"), group, allow));
    }
    all.extend(containers::confinement(
        &path,
        security.seccomp_profile.as_ref(),
        security.app_armor_profile.as_ref(),
        security.se_linux_options.as_ref(),
        security.windows_options.as_ref(),
        allow,
    ));
    for (at, sysctl) in security.sysctls.iter().flatten().enumerate() {
        if !allows(&allow.sysctls, &sysctl.name) {
            let field = format!("{path}.sysctls[{at}].name");
            all.push(Finding::new(field, &sysctl.name, "allow.sysctls"));
        }
    }
    all
}
