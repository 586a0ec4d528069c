// The state that several pages share: services, health, problems. It is loaded once and then updated by the
// event stream.

import { get, list } from "./api.js";
import * as paths from "./api_paths.js";

export const fleet = {
  services: new Map(),
  health: null,
  problems: [],
  delay: null,
  events: [],
  loaded: false,
};

/** The problem "the registry is unreachable", or null. */
export const stale = () => fleet.problems.find(({ kind }) => kind === "stale") ?? null;

// Heartbeat delays grow without any event, so all services are reloaded at this interval, in milliseconds.
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
    fleet.services = new Map(services.map((service) => [service.serviceName, service]));
    if (resets === before) read = performance.now(); // otherwise changes may be missing
  }
  fleet.health = overview.health;
  fleet.problems = overview.problems;
  fleet.delay = overview.heartbeatDelay;
  fleet.events = overview.events;
  fleet.loaded = true;
}

/** All items of a paged list. */
export async function everything(url, signal) {
  const items = [];
  for (let next = url; next;) {
    const page = await list(next, { signal });
    items.push(...page.value);
    next = page.next;
  }
  return items;
}

/** Apply an event of the stream. */
export function apply(kind, data) {
  if (kind === "reset") {
    resets += 1;
    read = -LOOK;
  } else if (kind === "services") {
    for (const service of data.changed) fleet.services.set(service.serviceName, service);
    for (const name of data.removed) fleet.services.delete(name);
  } else if (kind === "health") fleet.health = data;
  else if (kind === "problems") fleet.problems = data;
}
