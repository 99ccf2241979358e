//! What an operator asks of the API server, as far as a fault depends on it.

use http::{Method, Uri};

/// Of the operator's own Lease.
pub(crate) const LEASES: &str = "leases";

/// What is asked of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) resource: String,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Watch,
    /// The list before a watch.
    List,
    Read,
    Write,
}

impl Asked {
    pub(crate) fn of(method: &Method, uri: &Uri) -> Self {
        let parts: Vec<_> = uri.path().split('/').collect();
        let namespaced = parts.iter().position(|part| *part == "namespaces");
        let resource = match namespaced {
            // Without a third part it is about namespaces themselves.
            Some(at) => parts.get(at + 2).or(parts.get(at)),
            None => parts.last(),
        };
        let query = uri.query().unwrap_or_default();
        let what = match *method {
            Method::GET if query.contains("watch=") => What::Watch,
            // One of the pods of a job confirms what is known.
            Method::GET if query.contains("limit=") && !query.contains("job-uid") => What::List,
            Method::GET => What::Read,
            _ => What::Write,
        };
        Self {
            resource: resource.copied().unwrap_or_default().to_owned(),
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &Method, uri: &str) -> (String, What) {
        let Asked { resource, what } = Asked::of(method, &uri.parse().unwrap());
        (resource, what)
    }

    #[test]
    fn a_request_is_known_by_its_method_path_and_query() {
        let pods = "/api/v1/namespaces/ml/pods";
        let of = |resource: &str, what| (resource.to_owned(), what);
        let watch = format!("{pods}?watch=true&resourceVersion=7");
        assert_eq!(asked(&Method::GET, &watch), of("pods", What::Watch));
        let list = format!("{pods}?limit=500");
        assert_eq!(asked(&Method::GET, &list), of("pods", What::List));
        assert_eq!(asked(&Method::GET, pods), of("pods", What::Read));
        let of_a_job = format!("{pods}?labelSelector=roundhouse.dev%2Fjob-uid%3Du&limit=500");
        assert_eq!(asked(&Method::GET, &of_a_job), of("pods", What::Read));
        let status = "/apis/roundhouse.dev/v1alpha1/namespaces/ml/trainingjobs/digits/status";
        let expected = of("trainingjobs", What::Write);
        assert_eq!(asked(&Method::PATCH, status), expected);
        for namespaces in [
            "/api/v1/namespaces?watch=1",
            "/api/v1/namespaces/ml?watch=1",
        ] {
            let expected = of("namespaces", What::Watch);
            assert_eq!(asked(&Method::GET, namespaces), expected);
        }
        assert_eq!(
            asked(&Method::POST, "/api/v1/pods"),
            of("pods", What::Write)
        );
    }
}
