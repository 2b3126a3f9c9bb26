// Asks the worker for a document.
/** @typedef {import("./documents").Documents} Documents */
/** @typedef {Record<string, string> | string[][]} Query */

const MOST_MS = 10_000, ANSWER_MS = 40_000; // a question takes the worker 30 s at most
const QUESTIONS = ["api/explain", "api/what-if"];

/** @param {string} path @param {Query} query */
export const url = (path, query) => `${path}?${new URLSearchParams(query)}`;
/** @template {keyof Documents} P @param {P} path @param {Query} [query] @returns {Promise<{document: Documents[P], everyMs: number}>} */
export const ask = async (path, query = {}) => {
  const signal = AbortSignal.timeout(QUESTIONS.includes(path) ? ANSWER_MS : MOST_MS);
  const answer = await fetch(url(path, query), { cache: "no-store", signal }).catch(error => {
    throw new Error("the worker does not answer", { cause: error });
  });
  if (answer.status === 401) location.reload();
  const document = await answer.json();
  if (!answer.ok || document.problem) throw new Error(document.problem || `the worker answers ${answer.status}`);
  return { document, everyMs: Number(answer.headers.get("X-Made-Every-Ms")) || 500 };
};
