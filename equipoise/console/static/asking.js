// Asks the worker for a document.
/** @typedef {import("./documents").Documents} Documents */
/** @typedef {Record<string, string> | string[][]} Query */

/** @param {string} path @param {Query} query */
export const url = (path, query) => `${path}?${new URLSearchParams(query)}`;
/** @template {keyof Documents} P @param {P} path @param {Query} [query] @returns {Promise<{document: Documents[P], everyMs: number}>} */
export const ask = async (path, query = {}) => {
  const answer = await fetch(url(path, query), { cache: "no-store" });
  if (answer.status === 401) location.reload();
  const document = await answer.json();
  if (!answer.ok || document.problem) throw new Error(document.problem || `the worker answers ${answer.status}`);
  return { document, everyMs: Number(answer.headers.get("X-Made-Every-Ms")) || 500 };
};
