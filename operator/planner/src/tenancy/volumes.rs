//! Finds what the volumes of a job reach beyond it.

use k8s_openapi::api::core::v1::{CSIVolumeSource, PodSpec, Volume, VolumeProjection};
use serde_json::Value;

use super::allow::{Allow, allows};
use super::finding::{Finding, in_pod};
use crate::validate::ValidatedJob;

/// The kind of volumes that can be allowed by driver.
const CSI: &str = "csi";
/// A placeholder for the namespace of the job.
const NAMESPACE: &str = "{namespace}";

/// The directory of the node for the job's checkpoints, if it is not allowed.
pub(super) fn of_checkpoint(job: &ValidatedJob, allow: &Allow) -> Option<Finding> {
    let path = &job.checkpoint.as_ref()?.volume.host_path.as_ref()?.path;
    let field = "spec.checkpoint.volume.hostPath.path".to_owned();
    directory(field, path, &job.identity.namespace, allow)
}

/// Everything that the volumes of a pod reach and may not.
pub(super) fn of_pod(pod: &PodSpec, namespace: &str, allow: &Allow) -> Vec<Finding> {
    let mut all = Vec::new();
    for (at, volume) in pod.volumes.iter().flatten().enumerate() {
        let path = in_pod(&format!("volumes[{at}]"));
        if let Some(host) = &volume.host_path {
            let field = format!("{path}.hostPath.path");
            all.extend(directory(field, &host.path, namespace, allow));
        }
        let secret = volume.secret.as_ref();
        if let Some(name) = secret.and_then(|secret| secret.secret_name.as_ref()) {
            all.extend(secret_of(format!("{path}.secret.secretName"), name, allow));
        }
        if let Some(csi) = &volume.csi {
            all.extend(of_csi(&path, csi, allow));
        }
        let projected = volume.projected.iter();
        let sources = projected.flat_map(|it| it.sources.iter().flatten());
        for (at, source) in sources.enumerate() {
            let path = format!("{path}.projected.sources[{at}]");
            all.extend(of_projection(&path, source, allow));
        }
        all.extend(secrets_of_other_kinds(&path, volume, allow));
        all.extend(other_kinds(&path, volume, allow));
    }
    all
}

fn of_csi(path: &str, csi: &CSIVolumeSource, allow: &Allow) -> Vec<Finding> {
    let mut all = Vec::new();
    let driver = &csi.driver;
    if !allows(&allow.csi_drivers, driver) && !allows(&allow.volume_types, CSI) {
        let field = format!("{path}.csi.driver");
        all.push(Finding::new(field, driver, "allow.csiDrivers"));
    }
    if let Some(source) = &csi.node_publish_secret_ref {
        let field = format!("{path}.csi.nodePublishSecretRef.name");
        all.extend(secret_of(field, &source.name, allow));
    }
    all
}

fn of_projection(path: &str, source: &VolumeProjection, allow: &Allow) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(token) = &source.service_account_token
        && !allow.service_account_tokens
    {
        let field = format!("{path}.serviceAccountToken.path");
        let key = "allow.serviceAccountTokens";
        all.push(Finding::new(field, &token.path, key));
    }
    if let Some(certificate) = &source.pod_certificate
        && !allow.service_account_tokens
    {
        let field = format!("{path}.podCertificate.signerName");
        let key = "allow.serviceAccountTokens";
        all.push(Finding::new(field, &certificate.signer_name, key));
    }
    if let Some(secret) = &source.secret {
        all.extend(secret_of(
            format!("{path}.secret.name"),
            &secret.name,
            allow,
        ));
    }
    all
}

/// Secrets that volumes of other kinds name: file and block servers need a password.
fn secrets_of_other_kinds(path: &str, volume: &Volume, allow: &Allow) -> Vec<Finding> {
    let Ok(Value::Object(kinds)) = serde_json::to_value(volume) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (kind, source) in kinds {
        // The functions above check these fields.
        if matches!(&*kind, "name" | "secret" | "csi" | "projected") {
            continue;
        }
        if let Some(name) = source["secretName"].as_str() {
            all.extend(secret_of(format!("{path}.{kind}.secretName"), name, allow));
        }
        if let Some(name) = source["secretRef"]["name"].as_str() {
            all.extend(secret_of(
                format!("{path}.{kind}.secretRef.name"),
                name,
                allow,
            ));
        }
    }
    all
}

/// Checks the kind of a volume, including kinds that are unknown here: kinds that are not listed
/// may reach any server or node.
fn other_kinds(path: &str, volume: &Volume, allow: &Allow) -> Vec<Finding> {
    let Ok(Value::Object(fields)) = serde_json::to_value(volume) else {
        return Vec::new();
    };
    let kinds = fields
        .keys()
        .filter(|key| !matches!(&***key, "name" | "hostPath" | "secret" | CSI));
    let refused = kinds.filter(|kind| !allows(&allow.volume_types, kind));
    refused
        .map(|kind| Finding::new(format!("{path}.{kind}"), kind, "allow.volumeTypes"))
        .collect()
}

fn secret_of(field: String, name: &str, allow: &Allow) -> Option<Finding> {
    let refused = !allows(&allow.secrets, name);
    refused.then(|| Finding::new(field, name, "allow.secrets"))
}

fn directory(field: String, path: &str, namespace: &str, allow: &Allow) -> Option<Finding> {
    let mut entries = allow.host_paths.iter();
    let is_allowed = entries.any(|entry| is_in(path, &entry.replace(NAMESPACE, namespace)));
    (!is_allowed).then(|| Finding::new(field, path, "allow.hostPaths"))
}

/// Whether an entry allows a directory. `/data/*` allows all directories below `/data`, and
/// `/data` only that one.
fn is_in(path: &str, entry: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        let parts = path
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".");
        parts.map(str::to_owned).collect()
    };
    let asked = parts(path);
    if !path.starts_with('/') || asked.iter().any(|part| part == "..") {
        return false;
    }
    match entry.strip_suffix("/*") {
        Some(above) => {
            let above = parts(above);
            asked.len() > above.len() && asked.starts_with(&above)
        }
        None => asked == parts(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_entry_allows_itself_or_its_subdirectories() {
        let cases = [
            ("/data", "/data", true),
            ("/data/", "/data", true),
            ("//data/./x", "/data/*", true),
            ("/data/a/b", "/data/*", true),
            ("/data", "/data/*", false),
            ("/database", "/data/*", false),
            ("/data/../etc", "/data/*", false),
            ("/data/a", "/data", false),
            ("/etc", "/*", true),
            ("/", "/*", false),
            ("data", "/*", false),
        ];
        for (path, entry, expected) in cases {
            assert_eq!(is_in(path, entry), expected, "{path} in {entry}");
        }
    }
}
