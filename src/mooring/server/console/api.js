// Client of the admin API. It sends ETags, so that the server does not send unchanged data again.

import { say, t } from "./i18n.js";
import { learn } from "./time_format.js";

export class Failed extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const seen = new Map();
const REMEMBERED = 200;

/** GET a URL. For a page of a list, the result also has the total and the URL of the next page. */
export async function list(url, { signal } = {}) {
  const known = seen.get(url);
  const headers = known ? { "If-None-Match": known.etag } : {};
  const response = await ask(url, { headers, signal, cache: "no-store" });
  if (response.status === 304) return known.answer;
  const answer = {
    value: await response.json(),
    total: Number(response.headers.get("X-Total-Count") ?? NaN),
    next: next(response.headers.get("Link")),
  };
  const etag = response.headers.get("ETag");
  seen.delete(url);
  const secret = (response.headers.get("Cache-Control") ?? "").includes("no-store");
  if (etag && !secret) seen.set(url, { etag, answer });
  if (seen.size > REMEMBERED) seen.delete(seen.keys().next().value);
  return answer;
}

export async function get(url, options) {
  return (await list(url, options)).value;
}

/** Like `get`, but null if the resource does not exist. */
export async function find(url, options) {
  try {
    return await get(url, options);
  } catch (error) {
    if (error instanceof Failed && error.status === 404) return null;
    throw error;
  }
}

/** `expected`: conditional headers, such as those of `over`. */
export async function send(method, url, body, expected = {}) {
  const response = await ask(url, {
    method,
    headers: body === undefined ? expected : { ...expected, "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return response.status === 204 ? null : response.json();
}

/** Headers for a conditional write: replace this revision only, or, without one, create only. */
export const over = (revision) =>
  revision ? { "If-Match": `"${revision}"` } : { "If-None-Match": "*" };

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "unreachable", "");
  }
  learn(response.headers.get("Date"));
  if (response.ok || response.status === 304) return response;
  throw await failure(response);
}

async function failure(response) {
  try {
    const { error } = await response.json();
    return new Failed(response.status, error.code, say({ ...error, text: error.message }));
  } catch {
    const status = String(response.status); // of a proxy: its body is not from the server
    return new Failed(response.status, "unknown", t("error.status", { status }));
  }
}

function next(link) {
  const match = /<([^>]+)>;\s*rel="next"/.exec(link ?? "");
  return match ? match[1] : null;
}
