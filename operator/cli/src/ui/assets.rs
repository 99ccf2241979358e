//! The files of the page. The program contains them, and they load nothing from other hosts.

#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    path: &'static str,
    pub(super) kind: &'static str,
    pub(super) text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $file:literal, $kind:expr) => {
        Asset {
            path: $path,
            kind: $kind,
            text: include_str!(concat!("../../page/", $file)),
        }
    };
}

const ASSETS: [Asset; 12] = [
    asset!("/", "index.html", "text/html; charset=utf-8"),
    asset!("/style.css", "style.css", "text/css; charset=utf-8"),
    asset!("/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/app.js", "app.js", SCRIPT),
    asset!("/chart.js", "chart.js", SCRIPT),
    asset!("/dom.js", "dom.js", SCRIPT),
    asset!("/job.js", "job.js", SCRIPT),
    asset!("/list.js", "list.js", SCRIPT),
    asset!("/logs.js", "logs.js", SCRIPT),
    asset!("/poll.js", "poll.js", SCRIPT),
    asset!("/tables.js", "tables.js", SCRIPT),
    asset!("/timeline.js", "timeline.js", SCRIPT),
];

/// The file that is served under `path`.
pub(super) fn find(path: &str) -> Option<Asset> {
    ASSETS.into_iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_load_nothing_from_other_hosts() {
        for Asset { path, text, .. } in ASSETS {
            // Names of XML namespaces are not addresses.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in ["http:", "https:", "src=\"//", "url(", "@import"] {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }

    #[test]
    fn assets_named_by_the_page_are_served() {
        for Asset { path, text, .. } in ASSETS {
            let marks = ["href=\"", "src=\"", "from \"./"];
            for named in marks.iter().flat_map(|mark| text.split(mark).skip(1)) {
                let named = named.split('"').next().unwrap();
                if !named.starts_with('#') {
                    assert!(find(&format!("/{named}")).is_some(), "{path}: {named}");
                }
            }
        }
    }

    #[test]
    fn scripts_never_create_markup_from_text() {
        for Asset { path, text, .. } in ASSETS {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "createContextualFragment",
            ] {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }
}
