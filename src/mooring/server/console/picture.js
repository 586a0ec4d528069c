// What everybody may want to know at once: services, their health, what is wrong. Read whole once,
// then kept by the stream.

import { get, list } from "./api.js";
import * as paths from "./paths.js";

export const picture = {
  services: new Map(),
  health: null,
  problems: [],
  lag: null,
  events: [],
  loaded: false,
};

/** The problem that says that the registry cannot be read, while that is so. */
export const stale = () => picture.problems.find(({ kind }) => kind === "stale") ?? null;

// Beside what the stream says, delays grow: all services are read again so often, in milliseconds.
const LOOK = 20000;
let read = -LOOK;
let resets = 0;

export async function load(signal) {
  const all = performance.now() - read > LOOK;
  const before = resets;
  const [services, overview] = await Promise.all([
    all ? everything(paths.services(), signal) : null,
    get(paths.overview(), { signal }),
  ]);
  if (services) {
    picture.services = new Map(services.map((each) => [each.serviceName, each]));
    if (resets === before) read = performance.now(); // else changes may be missing already
  }
  picture.health = overview.health;
  picture.problems = overview.problems;
  picture.lag = overview.heartbeatLag;
  picture.events = overview.events;
  picture.loaded = true;
}

/** Every page of a list. */
export async function everything(url, signal) {
  const found = [];
  for (let next = url; next;) {
    const page = await list(next, { signal });
    found.push(...page.value);
    next = page.next;
  }
  return found;
}

/** What the stream says. */
export function apply(kind, data) {
  if (kind === "reset") {
    resets += 1;
    read = -LOOK;
  } else if (kind === "services") {
    for (const each of data.changed) picture.services.set(each.serviceName, each);
    for (const name of data.removed) picture.services.delete(name);
  } else if (kind === "health") picture.health = data;
  else if (kind === "problems") picture.problems = data;
}
