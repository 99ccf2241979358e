//! Security contexts of a worker's containers.

use super::*;

#[test]
fn pod_meets_the_restricted_standard() {
    let spec = &built(json!({}))["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let security = &spec["containers"][0]["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn kubelet_changes_volume_groups_only_on_root_mismatch() {
    let security = |template| built(template)["spec"]["securityContext"].clone();
    let ours = security(json!({}));
    assert_eq!(ours["fsGroup"], 65_532);
    assert_eq!(ours["fsGroupChangePolicy"], "OnRootMismatch");
    let theirs = security(json!({"spec": {"securityContext": {"fsGroup": 5}}}));
    assert_eq!(theirs["fsGroup"], 5);
    assert!(theirs.get("fsGroupChangePolicy").is_none(), "{theirs}");
    let always = json!({"fsGroupChangePolicy": "Always"});
    let always = security(json!({"spec": {"securityContext": always}}));
    assert_eq!(always["fsGroupChangePolicy"], "Always");
}

#[test]
fn no_container_has_a_user_if_the_platform_chooses_users() {
    let mut chosen = place(1, 2);
    chosen.fixed_users = false;
    let script = script::raw("Restart", json!({}));
    for job in [raw(&json!({})), script] {
        let job = validate(&serde_json::from_value(job).unwrap()).unwrap();
        let pod = serde_json::to_value(build(&job, chosen).unwrap()).unwrap();
        let text = pod["spec"].to_string();
        for field in ["runAsUser", "runAsGroup", "fsGroup"] {
            assert!(!text.contains(field), "{field}: {text}");
        }
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    }
}

#[test]
fn template_containers_are_restricted_except_named_fields() {
    let spec = &built(json!({"spec": {
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {"name": "proxy", "image": "proxy:1"},
            {"name": "trusted", "image": "trusted:1", "securityContext": {
                "allowPrivilegeEscalation": true, "capabilities": {"add": ["NET_ADMIN"]}}},
            {"name": "trainer"},
        ],
    }}))["spec"];
    for container in [&spec["initContainers"][0], &spec["containers"][0]] {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        assert!(security.get("readOnlyRootFilesystem").is_none());
    }
    let trusted = &spec["containers"][1]["securityContext"];
    assert_eq!(trusted["allowPrivilegeEscalation"], true);
    assert_eq!(
        trusted["capabilities"],
        json!({"add": ["NET_ADMIN"], "drop": ["ALL"]})
    );
}

#[test]
fn capabilities_that_are_not_named_are_dropped() {
    for (theirs, dropped) in [
        (json!({}), json!(["ALL"])),
        (json!({"drop": []}), json!(["ALL"])),
        (json!({"drop": ["NET_RAW"]}), json!(["NET_RAW", "ALL"])),
        (json!({"drop": ["ALL"]}), json!(["ALL"])),
    ] {
        let container = json!({"name": "trainer", "securityContext": {"capabilities": theirs}});
        let spec = &built(json!({"spec": {"containers": [container]}}))["spec"];
        let security = &spec["containers"][0]["securityContext"];
        assert_eq!(security["capabilities"], json!({"drop": dropped}));
    }
}

#[test]
fn container_with_all_capabilities_keeps_them() {
    let theirs = json!({"add": ["ALL"]});
    let container = json!({"name": "trainer", "securityContext": {"capabilities": theirs}});
    let spec = &built(json!({"spec": {"containers": [container]}}))["spec"];
    let security = &spec["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"], theirs);
}

#[test]
fn privileged_container_is_accepted_by_the_api_server() {
    let admin = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    for security in [json!({"privileged": true}), admin] {
        let container = json!({"name": "trainer", "securityContext": security});
        let spec = &built(json!({"spec": {"containers": [container]}}))["spec"];
        let built = &spec["containers"][0]["securityContext"];
        assert!(
            built.get("allowPrivilegeEscalation").is_none(),
            "{security}"
        );
    }
}
