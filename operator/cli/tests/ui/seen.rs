//! Tests the page in a browser: screen sizes, contrast, keyboard, hostile text and lost
//! connections.
//!
//! With `ROUNDHOUSE_PICTURES=DIR` the tests save pictures of the page in DIR.

use std::path::Path;

use serde_json::json;

use crate::browser::Browser;
use crate::fake::Fake;
use crate::plugin::Plugin;
use crate::scenario;

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const LEFT: char = '\u{e012}';
/// Width of a laptop, a tablet, a phone and a small phone.
const WIDTHS: [u32; 4] = [1_160, 720, 360, 320];

const IS_COMPLETE: &str = "document.querySelectorAll('path.curve').length === 3 \
    && document.querySelector('.history li') && document.querySelectorAll('tbody tr').length > 8";

/// Elements whose text has less contrast than WCAG 2.2 requires: 4.5, or 3 for large text.
/// Source of the formula: <https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio>.
const LOW_CONTRAST: &str = r"
const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parse = (text) => text.match(/[\d.]+/g).map(Number);
const behind = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return parse(getComputedStyle(document.body).backgroundColor).slice(0, 3); };
const bad = [];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((it) => it.nodeType === 3 && it.data.trim());
  if (!own || node.closest('[hidden], title, noscript, .hidden') || node.classList.contains('inside')) continue;
  const style = getComputedStyle(node);
  const text = parse(node.namespaceURI.endsWith('svg') ? style.fill : style.color).slice(0, 3);
  const [a, b] = [light(text), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) bad.push(`${ratio.toFixed(2)} ${node.tagName} ${node.textContent.slice(0, 40)}`);
}
return bad;";

/// Interactive elements without a name for screen readers.
const NAMELESS: &str = r"
const named = (node) => node.getAttribute('aria-label') || node.labels?.length || node.textContent.trim();
return [...document.querySelectorAll('a, button, select, input, progress, svg[role=img], ol[tabindex]')]
  .filter((node) => !node.closest('[hidden]') && !named(node)).map((node) => node.outerHTML.slice(0, 80));";

#[tokio::test(flavor = "multi_thread")]
async fn page_fits_all_screens_and_colour_schemes() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui", "gpt2-romeo"]).await;
    let browser = Browser::start().await;
    browser.size(1_160, 900).await;
    browser.open(&page.url).await;
    browser.until(IS_COMPLETE).await;
    for scheme in ["light", "dark"] {
        browser.colours(scheme).await;
        assert_eq!(browser.run(LOW_CONTRAST).await, json!([]), "{scheme}");
    }
    for width in WIDTHS {
        browser.size(width, 800).await;
        browser
            .until(&format!("document.documentElement.clientWidth === {width}"))
            .await;
        let wide = browser
            .run("return document.documentElement.scrollWidth")
            .await;
        assert_eq!(wide, json!(width), "it scrolls sideways");
    }
    assert_eq!(browser.run(NAMELESS).await, json!([]));
    let elsewhere = "return performance.getEntriesByType('resource').map((it) => it.name)\
        .filter((it) => !it.startsWith(location.origin))";
    assert_eq!(browser.run(elsewhere).await, json!([]));
    let messages = browser.console().await;
    assert!(messages.is_empty(), "{messages:?}");
    if let Ok(directory) = std::env::var("ROUNDHOUSE_PICTURES") {
        take_pictures(&browser, &page, Path::new(&directory)).await;
    }
}

async fn take_pictures(browser: &Browser, page: &Plugin, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, scheme, width, height) in [
        ("ui-light.png", "light", 1_160, 1_060),
        ("ui-dark.png", "dark", 1_160, 1_060),
        ("ui-phone.png", "light", 360, 1_060),
    ] {
        browser.colours(scheme).await;
        browser.size(width, 800).await;
        browser
            .until("document.querySelector('.chart svg').clientWidth <= document.querySelector('.chart').clientWidth")
            .await;
        browser.picture(&directory.join(name), width, height).await;
    }
    browser.size(1_160, 800).await;
    browser.run("location.hash = '#/'").await;
    browser
        .until("document.querySelectorAll('tbody tr').length === 4")
        .await;
    browser
        .picture(&directory.join("ui-jobs.png"), 1_160, 600)
        .await;
    browser.open(&page.url).await;
}

/// Chooses the log of rank 0, and waits for its lines.
async fn choose_log(browser: &Browser) {
    let choose = "const choice = document.querySelector('select'); choice.value = 'gpt2-romeo-worker-0-0/0'; \
        choice.dispatchEvent(new Event('change'))";
    browser.run(choose).await;
    browser
        .until("document.querySelectorAll('.log li').length > 300")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_is_usable_by_keyboard() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui"]).await;
    let browser = Browser::start().await;
    browser.open(&page.url).await;
    browser
        .until("document.querySelectorAll('tbody a').length === 4")
        .await;
    // Four presses reach gpt2-romeo: the page's name, bert and digits come first.
    for _ in 0..4 {
        browser.press(TAB).await;
    }
    browser.press(ENTER).await;
    browser.until("location.hash === '#/ml/gpt2-romeo'").await;
    browser.until(IS_COMPLETE).await;
    browser
        .run("document.querySelector('.chart svg').focus()")
        .await;
    let last = browser
        .run("return document.querySelector('.chart output').textContent")
        .await;
    assert!(last.as_str().unwrap().ends_with("now"), "{last}");
    browser.press(LEFT).await;
    browser
        .until("document.querySelector('.chart output').textContent.includes('at step')")
        .await;
    // The page reads a log only after the user has chosen a rank.
    choose_log(&browser).await;
    let text = browser
        .run("return document.querySelector('.log li:last-child').textContent")
        .await;
    assert!(text.as_str().unwrap().contains("rank 0step 4180"), "{text}");
    let is_at_end = "(() => { const log = document.querySelector('.log'); \
        return log.scrollTop + log.clientHeight > log.scrollHeight - 5 })()";
    browser.until(is_at_end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_shown_but_never_run() {
    let api = Fake::start(scenario::cluster()).await;
    let hostile = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>\u{1b}[31m\u{202e}\u{9b}";
    api.change(|all| {
        all.jobs[0]["status"]["conditions"][0]["message"] = json!(hostile);
        all.jobs[0]["status"]["lastFailure"]["message"] = json!(hostile);
        all.pods[0]["spec"]["nodeName"] = json!(hostile);
        for event in &mut all.events {
            event["message"] = json!(format!("generation 1: 2 workers, world size 2; {hostile}"));
            event["involvedObject"]["name"] = json!(hostile);
        }
        let line = all.lines.last_mut().unwrap();
        let time = line.split(' ').next().unwrap().to_owned();
        *line = format!("{time} [rank 0] {hostile}");
    });
    let page = Plugin::start(&api, &["ui", "gpt2-romeo"]).await;
    let browser = Browser::start().await;
    browser.open(&page.url).await;
    browser.until(IS_COMPLETE).await;
    choose_log(&browser).await;
    let text = browser.run("return document.body.innerText").await;
    let text = text.as_str().unwrap();
    let shown = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>\u{241b}[31m\\u{202e}\\u{9b}";
    // The text appears in summary, condition, node, event and log.
    assert!(text.matches(shown).count() >= 5, "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{9b}']));
    assert_eq!(
        browser.run("return window.hacked ?? null").await,
        json!(null)
    );
    let made = "return document.querySelectorAll('main img, main script').length";
    assert_eq!(browser.run(made).await, json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_and_restored_connections_are_shown() {
    let api = Fake::start(scenario::cluster()).await;
    let page = Plugin::start(&api, &["ui", "gpt2-romeo"]).await;
    let browser = Browser::start().await;
    browser.open(&page.url).await;
    browser.until(IS_COMPLETE).await;
    let trouble = "document.querySelector('#trouble:not([hidden])')";
    assert_eq!(browser.run(&format!("return {trouble}")).await, json!(null));
    api.stop_answering();
    browser
        .until(&format!(
            "{trouble}?.textContent.includes('etcd leader changed')"
        ))
        .await;
    browser
        .until(&format!(
            "{trouble}.textContent.includes('This is the state of')"
        ))
        .await;
    // The last known state is still shown.
    browser.until(IS_COMPLETE).await;
    api.answer_again();
    browser.until(&format!("!{trouble}")).await;
    assert_eq!(page.interrupt().await, Some(0));
    browser
        .until(&format!(
            "{trouble}?.textContent.includes('Connection lost')"
        ))
        .await;
}
