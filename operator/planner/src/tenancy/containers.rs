//! Finds what a container asks for beyond the job.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, HTTPGetAction, LifecycleHandler, Probe, SELinuxOptions,
    SeccompProfile, SecurityContext, TCPSocketAction, WindowsSecurityContextOptions,
};

use super::allow::{Allow, allows};
use super::finding::Finding;

/// The seccomp and `AppArmor` profile without confinement.
const UNCONFINED: &str = "Unconfined";
/// Types of processes in containers that `SELinux` confines as it does all containers.
const CONTAINER_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

/// Everything that the container at this path asks for and may not use.
pub(super) fn findings(path: &str, container: &Container, allow: &Allow) -> Vec<Finding> {
    let mut all = secrets(path, container, allow);
    for (at, port) in container.ports.iter().flatten().enumerate() {
        if let Some(number) = port.host_port.filter(|number| *number != 0)
            && !allow.host_ports.contains(&number)
        {
            let field = format!("{path}.ports[{at}].hostPort");
            all.push(Finding::new(field, &number, "allow.hostPorts"));
        }
    }
    all.extend(hosts(path, container, allow));
    if let Some(security) = &container.security_context {
        all.extend(of_security(
            &format!("{path}.securityContext"),
            security,
            allow,
        ));
    }
    all
}

fn secrets(path: &str, container: &Container, allow: &Allow) -> Vec<Finding> {
    let variables = container.env.iter().flatten().enumerate();
    let variables = variables.filter_map(|(at, variable)| {
        let source = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
        let field = format!("{path}.env[{at}].valueFrom.secretKeyRef.name");
        Some((field, &source.name))
    });
    let sources = container.env_from.iter().flatten().enumerate();
    let sources = sources.filter_map(|(at, source)| {
        let field = format!("{path}.envFrom[{at}].secretRef.name");
        Some((field, &source.secret_ref.as_ref()?.name))
    });
    let named = variables.chain(sources);
    let refused = named.filter(|(_, name)| !allows(&allow.secrets, name));
    refused
        .map(|(field, name)| Finding::new(field, name, "allow.secrets"))
        .collect()
}

/// Finds hosts to which the kubelet connects for a container. The kubelet is in the network of
/// the node: it reaches the node's own services, those of other nodes and the metadata of the
/// cloud, past every `NetworkPolicy`.
fn hosts(path: &str, container: &Container, allow: &Allow) -> Vec<Finding> {
    if allow.probe_hosts {
        return Vec::new();
    }
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    let probes = probes.into_iter().filter_map(|(name, probe)| {
        let Probe {
            http_get,
            tcp_socket,
            ..
        } = probe.as_ref()?;
        Some((name, http_get.as_ref(), tcp_socket.as_ref()))
    });
    let lifecycle = container.lifecycle.as_ref();
    let hooks = [
        (
            "lifecycle.postStart",
            lifecycle.and_then(|it| it.post_start.as_ref()),
        ),
        (
            "lifecycle.preStop",
            lifecycle.and_then(|it| it.pre_stop.as_ref()),
        ),
    ];
    let hooks = hooks.into_iter().filter_map(|(name, hook)| {
        let LifecycleHandler {
            http_get,
            tcp_socket,
            ..
        } = hook?;
        Some((name, http_get.as_ref(), tcp_socket.as_ref()))
    });
    let named = probes.chain(hooks).flat_map(|(name, http, tcp)| {
        let http = http.and_then(|HTTPGetAction { host, .. }| host.as_deref());
        let tcp = tcp.and_then(|TCPSocketAction { host, .. }| host.as_deref());
        [("httpGet", http), ("tcpSocket", tcp)].map(|(kind, host)| (name, kind, host))
    });
    let given = named.filter_map(|(name, kind, host)| {
        let host = host.filter(|host| !host.is_empty())?;
        let field = format!("{path}.{name}.{kind}.host");
        Some(Finding::new(field, host, "allow.probeHosts"))
    });
    given.collect()
}

fn of_security(path: &str, security: &SecurityContext, allow: &Allow) -> Vec<Finding> {
    let mut all = user(path, security.run_as_user, security.run_as_non_root, allow);
    all.extend(group(
        format!("{path}.runAsGroup"),
        security.run_as_group,
        allow,
    ));
    if security.privileged == Some(true) && !allow.privileged {
        let field = format!("{path}.privileged");
        all.push(Finding::new(field, &true, "allow.privileged"));
    }
    if security.allow_privilege_escalation == Some(true) && !allow.privilege_escalation {
        let field = format!("{path}.allowPrivilegeEscalation");
        all.push(Finding::new(field, &true, "allow.privilegeEscalation"));
    }
    let added = security.capabilities.iter();
    let added = added.flat_map(|it| it.add.iter().flatten());
    for (at, capability) in added.enumerate() {
        if !allows(&allow.capabilities, capability) {
            let field = format!("{path}.capabilities.add[{at}]");
            all.push(Finding::new(field, capability, "allow.capabilities"));
        }
    }
    if let Some(mount) = &security.proc_mount
        && mount != "Default"
        && !allow.unconfined
    {
        let field = format!("{path}.procMount");
        all.push(Finding::new(field, mount, "allow.unconfined"));
    }
    all.extend(confinement(
        path,
        security.seccomp_profile.as_ref(),
        security.app_armor_profile.as_ref(),
        security.se_linux_options.as_ref(),
        security.windows_options.as_ref(),
        allow,
    ));
    all
}

/// Whether a pod or a container asks to run as root.
pub(super) fn user(
    path: &str,
    run_as_user: Option<i64>,
    run_as_non_root: Option<bool>,
    allow: &Allow,
) -> Vec<Finding> {
    let mut all = Vec::new();
    if allow.root {
        return all;
    }
    if run_as_user == Some(0) {
        all.push(Finding::new(format!("{path}.runAsUser"), &0, "allow.root"));
    }
    if run_as_non_root == Some(false) {
        let field = format!("{path}.runAsNonRoot");
        all.push(Finding::new(field, &false, "allow.root"));
    }
    all
}

/// Whether a pod or a container asks for the group of root: files of images and volumes are
/// often accessible to it.
pub(super) fn group(field: String, group: Option<i64>, allow: &Allow) -> Option<Finding> {
    let is_refused = group == Some(0) && !allow.root;
    is_refused.then(|| Finding::new(field, &0, "allow.root"))
}

/// Whether a pod or a container asks to be confined less than others.
pub(super) fn confinement(
    path: &str,
    seccomp: Option<&SeccompProfile>,
    app_armor: Option<&AppArmorProfile>,
    se_linux: Option<&SELinuxOptions>,
    windows: Option<&WindowsSecurityContextOptions>,
    allow: &Allow,
) -> Vec<Finding> {
    let mut all = Vec::new();
    if windows.is_some_and(|it| it.host_process == Some(true)) && !allow.privileged {
        let field = format!("{path}.windowsOptions.hostProcess");
        all.push(Finding::new(field, &true, "allow.privileged"));
    }
    if allow.unconfined {
        return all;
    }
    let profiles = [
        ("seccompProfile", seccomp.map(|it| &it.type_)),
        ("appArmorProfile", app_armor.map(|it| &it.type_)),
    ];
    for (name, kind) in profiles {
        if let Some(kind) = kind.filter(|kind| *kind == UNCONFINED) {
            let field = format!("{path}.{name}.type");
            all.push(Finding::new(field, kind, "allow.unconfined"));
        }
    }
    if let Some(options) = se_linux {
        all.extend(of_se_linux(path, options));
    }
    all
}

fn of_se_linux(path: &str, options: &SELinuxOptions) -> Vec<Finding> {
    let SELinuxOptions {
        level: _,
        role,
        type_,
        user,
    } = options;
    let given = |value: &&str| !value.is_empty();
    let named = [
        ("role", role.as_deref().filter(given)),
        ("user", user.as_deref().filter(given)),
        (
            "type",
            type_
                .as_deref()
                .filter(|kind| !CONTAINER_TYPES.contains(kind)),
        ),
    ];
    let named = named.into_iter().filter_map(|(name, value)| {
        let field = format!("{path}.seLinuxOptions.{name}");
        Some(Finding::new(field, value?, "allow.unconfined"))
    });
    named.collect()
}
