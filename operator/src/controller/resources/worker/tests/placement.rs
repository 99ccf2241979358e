//! Nodes, PodGroups and queues of a worker's pod.

use super::*;
use crate::watch::projection;

#[test]
fn avoided_nodes_do_not_change_the_kueue_shape_of_workers() {
    let template =
        json!({"metadata": {"labels": {gang::KUEUE_GROUP: "digits"}}, "spec": {"containers": []}});
    let avoid = [NodeRef::Hostname("n1".to_owned())];
    let replacement = Place {
        avoid: &avoid,
        ..place(1, 1)
    };
    let role = |template: &Value, place| {
        let pod = build(&job(template), place).unwrap();
        pod.annotations().get(gang::KUEUE_ROLE).cloned()
    };
    let first = role(&template, place(0, 0));
    assert!(first.is_some());
    assert_eq!(role(&template, replacement), first);
    assert_eq!(role(&json!({}), place(0, 0)), None, "it is in no group");
}

#[test]
fn template_overrides_the_architecture_of_our_image() {
    let arm = json!({"nodeSelector": {"kubernetes.io/arch": "arm64", "pool": "a"}});
    let own = json!({"containers": [{"name": "trainer", "image": "mine:1"}]});
    let rule = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    let by_affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [rule]}]}}}});
    for (spec, architecture, expected) in [
        (json!({}), "amd64", json!({"kubernetes.io/arch": "amd64"})),
        (json!({}), "", Value::Null),
        (arm.clone(), "amd64", arm["nodeSelector"].clone()),
        (by_affinity, "amd64", Value::Null),
        // The user who builds an image knows its architecture.
        (own, "amd64", Value::Null),
    ] {
        let place = Place {
            architecture,
            ..place(0, 0)
        };
        let pod = build(&job(&json!({ "spec": spec })), place).unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(
            pod["spec"]["nodeSelector"], expected,
            "{spec} {architecture}"
        );
    }
    // A script has an image of its own, but our agent.
    let pod = script::of_mode("Restart", json!({}));
    let selector = &pod["spec"]["nodeSelector"];
    assert_eq!(selector, &json!({"kubernetes.io/arch": "amd64"}));
}

/// Two nodes with the label for their hostname, and one without.
fn nodes() -> [NodeRef; 3] {
    let label = |node: &str| NodeRef::Hostname(node.to_owned());
    [label("n1"), label("n2"), NodeRef::Name("n3".to_owned())]
}

/// A term that matches neither of them.
fn others() -> Value {
    json!({
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n3"]}],
    })
}

#[test]
fn hostname_labels_are_preferred_to_field_names() {
    let labelled = &nodes()[..2];
    let kept = Place {
        avoid: labelled,
        lost: labelled,
        ..place(0, 0)
    };
    let pod = build(&job(&json!({})), kept).unwrap();
    let pod = serde_json::to_string(&pod).unwrap();
    assert!(!pod.contains("matchFields"), "{pod}");
}

#[test]
fn pod_lists_the_nodes_that_the_operator_named() {
    let named = |avoid: &[NodeRef], lost: &[NodeRef]| {
        let kept = Place {
            avoid,
            lost,
            ..place(0, 0)
        };
        let pod = build(&job(&json!({})), kept).unwrap();
        let text = &pod.metadata.annotations.unwrap()[labels::BUILT_FROM];
        BuiltFrom::parse(text).unwrap().named_nodes
    };
    let other = [NodeRef::Name("n0".to_owned())];
    assert_eq!(named(&nodes(), &other), ["n0", "n3"]);
    assert!(named(&nodes()[..2], &[]).is_empty());
}

#[test]
fn avoided_nodes_are_excluded_from_every_template_term() {
    let zone = |zone: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    let cases = [
        (json!({}), 1),
        (
            json!({"spec": {"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [zone("a"), zone("b")]}}}}}),
            2,
        ),
    ];
    let avoid = nodes();
    for (template, alternatives) in cases {
        let kept = Place {
            avoid: &avoid,
            ..place(0, 0)
        };
        let pod = build(&job(&template), kept).unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        let terms = terms.as_array().unwrap();
        assert_eq!(terms.len(), alternatives);
        for term in terms {
            let expressions = term["matchExpressions"].as_array().unwrap();
            assert_eq!(expressions.last(), Some(&others()["matchExpressions"][0]));
            assert_eq!(term["matchFields"], others()["matchFields"]);
        }
    }
    let free = build(&job(&json!({})), place(0, 0)).unwrap();
    assert!(free.spec.unwrap().affinity.is_none());
}

#[test]
fn lost_nodes_lose_preference_beside_the_templates_own() {
    let own = json!({"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}});
    let template = json!({"spec": {"containers": [], "affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [own]}}}});
    let lost = nodes();
    let elsewhere = Place {
        lost: &lost,
        ..place(0, 0)
    };
    let pod = build(&job(&template), elsewhere).unwrap();
    let affinity = serde_json::to_value(pod).unwrap()["spec"]["affinity"].take();
    let others = json!({"weight": 100, "preference": others()});
    let expected =
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own, others]}});
    assert_eq!(affinity, expected, "and nothing is required");
}

#[test]
fn pod_of_a_further_gang_names_it() {
    let third = |gang: &str| {
        let mut raw = raw(&json!({}));
        raw["spec"]["scheduling"] = json!({"gang": gang});
        let job = validate(&serde_json::from_value(raw).unwrap()).unwrap();
        let place = Place {
            gang: 3,
            ..place(0, 0)
        };
        build(&job, place).unwrap()
    };
    let pod = third("Coscheduling");
    assert_eq!(
        pod.labels()["scheduling.x-k8s.io/pod-group"],
        "digits-gang-3"
    );
    assert_eq!(projection::pod(&pod).gang, 3);
    let pod = third("Volcano");
    assert_eq!(
        pod.annotations()["scheduling.k8s.io/group-name"],
        "digits-gang-3"
    );
}

#[test]
fn pod_names_its_group_and_gang_scheduler() {
    let of = |gang: &str, template: Value| {
        let mut raw = raw(&template);
        raw["spec"]["scheduling"] = json!({"gang": gang, "priorityClassName": "low"});
        pod_of(&validate(&serde_json::from_value(raw).unwrap()).unwrap())
    };
    let pod = of("Coscheduling", json!({}));
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["scheduling.x-k8s.io/pod-group"], "digits");
    assert_eq!(pod["spec"]["schedulerName"], "scheduler-plugins-scheduler");
    assert_eq!(pod["spec"]["priorityClassName"], "low");
    let pod = of("Volcano", json!({"spec": {"schedulerName": "mine"}}));
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["scheduling.k8s.io/group-name"], "digits");
    assert_eq!(pod["spec"]["schedulerName"], "mine");
    let pod = of("Kubernetes", json!({}));
    let meta = pod["metadata"].to_string();
    assert!(
        !meta.contains("pod-group") && !meta.contains("group-name"),
        "{meta}"
    );
    assert_eq!(
        pod["spec"]["schedulerName"],
        Value::Null,
        "its own is the default"
    );
    assert_eq!(pod["spec"]["priorityClassName"], "low");
    let pod = of("None", json!({"metadata": {"labels": {labels::GANG: "7"}}}));
    assert_eq!(pod["metadata"]["labels"][labels::GANG], Value::Null);
    assert_eq!(pod["spec"]["schedulerName"], Value::Null);
    assert_eq!(pod["spec"]["priorityClassName"], "low");
}

#[test]
fn topology_adds_pod_affinity_beside_the_templates() {
    let of = |mode: &str| {
        let theirs = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "data"}}},
        ]}});
        let mut raw = raw(&json!({"spec": {"affinity": theirs}}));
        raw["spec"]["scheduling"] = json!({"topologyKey": "rack", "topologyMode": mode});
        let pod = pod_of(&validate(&serde_json::from_value(raw).unwrap()).unwrap());
        pod["spec"]["affinity"]["podAffinity"].clone()
    };
    let together = json!({"topologyKey": "rack", "labelSelector": {
        "matchLabels": {"roundhouse.dev/job-uid": "u-1"},
        "matchExpressions": [{"key": "roundhouse.dev/left-domain", "operator": "DoesNotExist"}],
    }});
    let required = &of("Required")["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        (&required[0]["topologyKey"], &required[1]),
        (&json!("zone"), &together)
    );
    let preferred = of("Preferred");
    let field = "preferredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        preferred[field],
        json!([{"weight": 100, "podAffinityTerm": together}])
    );
    let required = &preferred["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(required.as_array().unwrap().len(), 1);
}

#[test]
fn pods_of_large_replicas_are_placed_near_their_replica() {
    let of = |mode: &str, replica: Option<u32>| {
        let mut raw = raw(&json!({}));
        raw["spec"]["scheduling"] = json!({"topologyKey": "rack", "topologyMode": mode});
        raw["spec"]["workers"]["podsPerReplica"] = json!(2);
        raw["spec"]["trainer"]["parallel"] = json!({"shard": "Zero1"});
        let job = validate(&serde_json::from_value(raw).unwrap()).unwrap();
        let place = Place {
            replica,
            ..place(6, 0)
        };
        serde_json::to_value(build(&job, place).unwrap()).unwrap()
    };
    let to = |which: &[Value]| {
        let attracts = json!({"key": "roundhouse.dev/left-domain", "operator": "DoesNotExist"});
        let all: Vec<&Value> = std::iter::once(&attracts).chain(which).collect();
        json!({"topologyKey": "rack", "labelSelector": {
            "matchLabels": {"roundhouse.dev/job-uid": "u-1"}, "matchExpressions": all,
        }})
    };
    let index = |operator: &str| json!({"key": "roundhouse.dev/replica-index", "operator": operator, "values": ["3"]});
    let required = of("Required", Some(3));
    assert_eq!(
        required["metadata"]["labels"]["roundhouse.dev/replica-index"],
        "3"
    );
    let is_placed = json!({"key": "roundhouse.dev/replica-index", "operator": "Exists"});
    let others = json!({"weight": 10, "podAffinityTerm": to(&[is_placed, index("NotIn")])});
    assert_eq!(
        required["spec"]["affinity"],
        json!({
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [to(&[index("In")])]},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [others]},
        })
    );
    let preferred = of("Preferred", Some(3));
    let with_replica = json!({"weight": 100, "podAffinityTerm": to(&[index("In")])});
    let with_job = json!({"weight": 10, "podAffinityTerm": to(&[])});
    let both = json!({"preferredDuringSchedulingIgnoredDuringExecution": [with_replica, with_job]});
    assert_eq!(
        preferred["spec"]["affinity"],
        json!({ "podAffinity": both })
    );
    let spare = of("Required", None);
    assert_eq!(
        spare["spec"]["affinity"],
        json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [with_job]}})
    );
    let label = &spare["metadata"]["labels"]["roundhouse.dev/replica-index"];
    assert_eq!(*label, Value::Null);
}
