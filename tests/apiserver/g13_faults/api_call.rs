//! A request of the operator to the API server, as far as a fault depends on it.

use http::{Method, Uri};

/// The resource of the Lease of leader election.
pub(crate) const LEASES: &str = "leases";

/// The resource and the verb of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiCall {
    pub(crate) resource: String,
    pub(crate) verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Watch,
    /// The list that precedes a watch.
    List,
    /// Any other read, also a list of the pods of one job.
    Read,
    Write,
}

impl ApiCall {
    pub(crate) fn of(method: &Method, uri: &Uri) -> Self {
        let parts: Vec<_> = uri.path().split('/').collect();
        let namespaced = parts.iter().position(|part| *part == "namespaces");
        let resource = match namespaced {
            // Without a part after the name, the request is for the namespace itself.
            Some(at) => parts.get(at + 2).or(parts.get(at)),
            None => parts.last(),
        };
        let query = uri.query().unwrap_or_default();
        let verb = match *method {
            Method::GET if query.contains("watch=") => Verb::Watch,
            // A list of one job's pods confirms what the cache contains.
            Method::GET if query.contains("limit=") && !query.contains("job-uid") => Verb::List,
            Method::GET => Verb::Read,
            _ => Verb::Write,
        };
        Self {
            resource: resource.copied().unwrap_or_default().to_owned(),
            verb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &Method, uri: &str) -> (String, Verb) {
        let ApiCall { resource, verb } = ApiCall::of(method, &uri.parse().unwrap());
        (resource, verb)
    }

    #[test]
    fn call_is_parsed_from_method_path_and_query() {
        let pods = "/api/v1/namespaces/ml/pods";
        let of = |resource: &str, verb| (resource.to_owned(), verb);
        let watch = format!("{pods}?watch=true&resourceVersion=7");
        assert_eq!(call(&Method::GET, &watch), of("pods", Verb::Watch));
        let list = format!("{pods}?limit=500");
        assert_eq!(call(&Method::GET, &list), of("pods", Verb::List));
        assert_eq!(call(&Method::GET, pods), of("pods", Verb::Read));
        let of_a_job = format!("{pods}?labelSelector=roundhouse.dev%2Fjob-uid%3Du&limit=500");
        assert_eq!(call(&Method::GET, &of_a_job), of("pods", Verb::Read));
        let status = "/apis/roundhouse.dev/v1alpha1/namespaces/ml/trainingjobs/digits/status";
        let expected = of("trainingjobs", Verb::Write);
        assert_eq!(call(&Method::PATCH, status), expected);
        for namespaces in [
            "/api/v1/namespaces?watch=1",
            "/api/v1/namespaces/ml?watch=1",
        ] {
            let expected = of("namespaces", Verb::Watch);
            assert_eq!(call(&Method::GET, namespaces), expected);
        }
        assert_eq!(call(&Method::POST, "/api/v1/pods"), of("pods", Verb::Write));
    }
}
