// One instance: state, metrics over time, events, details.

import { find, get } from "../api.js";
import { chart, unitOf } from "../charts.js";
import { h } from "../dom.js";
import { brief, plain, safeText } from "../untrusted_text.js";
import { mark, state } from "../status_marks.js";
import { series } from "../metrics.js";
import { crumbs, pairs, serviceHref, serviceName } from "../links.js";
import { instanceActions } from "../actions.js";
import * as paths from "../api_paths.js";
import { stale } from "../fleet.js";
import { timeline } from "../timeline.js";
import { when } from "../time_format.js";
import { n, say, t } from "../i18n.js";

const CHARTS = 24;

export function page(app, [service, id]) {
  let instance = null;
  let events = [];
  let samples = [];
  return {
    service,
    title: () => plain(id),
    stays: ([other, same]) => other === service && same === id,
    wants: (kind, data) =>
      kind === "instances" &&
      data.service === service &&
      (data.removed.includes(id) || data.changed.some((changed) => changed.instanceId === id)),
    async load(signal) {
      // Instances that are gone still have a page, because their events explain why.
      [instance, events, samples] = await Promise.all([
        find(paths.instance(service, id), { signal }),
        find(paths.timeline(service, id), { signal }),
        find(paths.history(service, id), { signal }),
      ]);
      if (!instance && !events?.length) await get(paths.instance(service, id), { signal });
    },
    draw() {
      return [
        crumbs(
          h("a", { href: "#/" }, t("frame.overview")),
          h("a", { href: serviceHref(service) }, serviceName(service)),
        ),
        h(
          "div",
          { class: "head" },
          h(
            "div",
            {},
            h("h1", { class: "mono" }, brief(id, 200)),
            h("p", { class: "lead" }, instance ? state(instance) : mark("bad", t("instance.gone"))),
          ),
          instance && instanceActions(app, service, instance),
        ),
        instance && figures(instance),
        charts(samples ?? []),
        h(
          "div",
          { class: "columns" },
          h(
            "section",
            {},
            h("h2", {}, t("timeline.title")),
            timeline((events ?? []).toReversed().slice(0, 100), { of: "instance" }),
          ),
          instance && h("section", {}, details(instance)),
        ),
      ];
    },
  };
}

function figures(instance) {
  const figure = (words, value) => h("div", {}, h("dt", {}, t(words)), h("dd", {}, value));
  return h(
    "dl",
    { class: "figures" },
    figure("figure.delay.one", when(instance.lastHeartbeat)),
    figure("column.weight", n(instance.weight)),
    figure("column.zone", instance.zone ? brief(instance.zone, 24) : "–"),
    figure("column.version", brief(instance.version, 24)),
    figure("column.since", when(instance.registrationTime)),
  );
}

function charts(samples) {
  const lines = series(samples);
  if (!lines.length) return null;
  return [
    h("h2", {}, t("instance.metrics")),
    h(
      "div",
      { class: "charts" },
      lines
        .slice(0, CHARTS)
        .map(([name, points]) =>
          chart(plain(name), points, { unit: unitOf(name), title: brief(name, 60) }),
        ),
    ),
    lines.length > CHARTS &&
      h("p", { class: "muted" }, t("instance.charts", { n: lines.length - CHARTS })),
  ];
}

const CHECKS = { passing: "good", failing: "warn", not_checked: "off" };

function checked({ result, message }) {
  return [
    mark(stale() ? "old" : CHECKS[result], t(`check.${result}`)),
    message && h("span", { class: "why" }, safeText(say(message))),
  ];
}

function details(instance) {
  const section = (words, rows) => {
    const entries = rows.filter(Boolean);
    if (!entries.length) return false;
    return [h("h2", {}, t(words)), h("div", { class: "framed" }, pairs(entries))];
  };
  return [
    section("instance.about", [
      [
        t("column.address"),
        h(
          "span",
          { class: "mono" },
          safeText(`${instance.protocol}://${instance.host}:${instance.port}`),
        ),
      ],
      ...Object.entries(instance.ports).map(([name, port]) => [
        `${t("instance.port")} ${plain(name, 40)}`,
        String(port),
      ]),
      [t("instance.updated"), when(instance.lastMetadataUpdate)],
      instance.check && [t("instance.check"), checked(instance.check)],
      [t("instance.lasting"), instance.ephemeral ? t("instance.ephemeral") : t("instance.stays")],
    ]),
    section("instance.metadata", Object.entries(instance.metadata)),
    section("instance.config", Object.entries(instance.config)),
  ];
}
