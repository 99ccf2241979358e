//! The page about compatibility lists the API versions of the `CustomResourceDefinition`.

use roundhouse_tests::manifests;

use super::Page;

#[test]
fn versions_on_the_page_match_the_crd() {
    let crd = &manifests::read("crds/trainingjobs.yaml").unwrap()[0];
    let yes = |is: &serde_json::Value| if is == true { "yes" } else { "no" };
    let versions = crd["spec"]["versions"].as_array().unwrap().iter();
    let rows = versions.map(|version| {
        let name = version["name"].as_str().unwrap();
        let (served, stored) = (yes(&version["served"]), yes(&version["storage"]));
        format!("| `{name}` | {served} | {stored} |")
    });
    let page = Page::read("docs/reference/compatibility.md").text;
    let listed = page.lines().filter(|line| line.starts_with("| `v"));
    assert_eq!(listed.collect::<Vec<_>>(), rows.collect::<Vec<_>>());
    let conversion = crd["spec"]["conversion"]["strategy"].as_str();
    assert_eq!(
        conversion.unwrap_or("None"),
        "None",
        "the page says that no webhook converts versions"
    );
}
