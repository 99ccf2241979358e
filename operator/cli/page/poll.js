// Polls the command that serves the page while the page is visible.

const AGAIN_MILLIS = 3000;
const LONGEST_MILLIS = 60000;

const visible = () => new Promise((done) => {
  if (!document.hidden) return done();
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    done();
  };
  document.addEventListener("visibilitychange", look);
});

async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, {signal: AbortSignal.timeout(LONGEST_MILLIS)});
  } catch {
    throw {kind: "ended", words: "The command that serves this page does not answer. Run kubectl roundhouse ui again, and open the address that it prints."};
  }
  const document = await answer.json().catch(() => ({}));
  if (answer.ok) return document;
  throw {kind: answer.status === 404 ? "missing" : "lost", words: document.error ?? `The answer was ${answer.status}.`};
}

/** Polls a document until the returned function is called. `take` receives each document, and `fail` an error or null. The
 *  kind of an error is `ended` (the command), `lost` (the API server) or `missing`. */
export function poll(path, take, fail) {
  let isActive = true;
  (async () => {
    while (isActive) {
      await visible();
      let pause = AGAIN_MILLIS;
      try {
        const document = await ask(path);
        if (!isActive) return;
        pause = 1000 * (document.pauseSeconds ?? 2);
        take(document);
        fail(null);
      } catch (trouble) {
        if (!isActive) return;
        if (trouble.kind === undefined) console.error(trouble);
        fail(trouble.kind === undefined ? {kind: "lost", words: `The page has a defect: ${trouble}`} : trouble);
      }
      await new Promise((done) => setTimeout(done, pause));
    }
  })();
  return () => { isActive = false; };
}
