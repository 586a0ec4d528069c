// One service: instances, why each is called or not, metrics, events.

import { find, get } from "../api.js";
import { aggregateTable } from "../metrics.js";
import { h } from "../dom.js";
import { brief, plain, safeText } from "../untrusted_text.js";
import { mark, state, stateOf } from "../status_marks.js";
import { crumbs, instanceLink, serviceName } from "../links.js";
import { brakeAction, forgetAction } from "../actions.js";
import * as paths from "../api_paths.js";
import { load, fleet } from "../fleet.js";
import { problemList } from "../problems.js";
import { filterField, Table } from "../table.js";
import { timeline } from "../timeline.js";
import { lasting, when } from "../time_format.js";
import { n, percent, sayAll, t } from "../i18n.js";

// The maximum number of explained instances. Services with more instances are reloaded less often.
const MOST = 500;

export function page(app, [name]) {
  let service = null;
  let events = [];
  let filter = "";
  const narrow = (wanted) => {
    filter = wanted;
    app.redraw();
  };
  let explained = null;
  const explain = async () => {
    explained = explained ? null : await find(paths.explain(name));
    app.redraw();
  };
  const reasons = () =>
    new Map(service.abnormalInstances.map((instance) => [instance.instanceId, instance.reasons]));
  const table = new Table({
    label: () => t("service.instances"),
    key: (row) => row.instanceId,
    redraw: () => app.redraw(),
    empty: () => (filter ? t("table.nothing") : t("service.none")),
    columns: columns(name, () => reasons()),
  });
  const rows = () => {
    const wanted = filter.toLowerCase();
    const every = service.instances;
    return wanted ? every.filter((instance) => matches(instance, wanted)) : every;
  };
  return {
    service: name,
    title: () => plain(name),
    stays: ([other]) => other === name,
    get look() {
      return (service?.instances.length ?? 0) > MOST ? 30000 : 5000;
    },
    takes(kind, data) {
      if (kind === "services") {
        const summary = data.changed.find((service) => service.serviceName === name);
        if (summary) service = { ...service, ...summary };
      }
      if (kind === "instances" && data.service === name)
        service = { ...service, instances: updated(service.instances, data) };
      return kind === "problems" || kind === "services" || kind === "instances";
    },
    async load(signal) {
      [service, events] = await Promise.all([
        get(paths.service(name), { signal }),
        find(paths.serviceTimeline(name), { signal }),
        fleet.loaded ? null : load(signal),
      ]);
      if (explained) explained = await find(paths.explain(name), { signal });
    },
    draw() {
      const problems = fleet.problems.filter((problem) => problem.service === name);
      return [
        crumbs(h("a", { href: "#/" }, t("frame.overview"))),
        h(
          "div",
          { class: "head" },
          h(
            "div",
            {},
            h("h1", {}, serviceName(name)),
            h("p", { class: "lead" }, t("service.changed"), " ", when(service.lastUpdateTime)),
          ),
          h(
            "div",
            { class: "actions" },
            problems.some(({ kind }) => kind === "brake") && brakeAction(app, name),
            service.totalInstances === 0 && forgetAction(app, name),
            h(
              "button",
              {
                type: "button",
                id: "explain",
                "aria-expanded": explained ? "true" : "false",
                onclick: explain,
              },
              t("explain.do"),
            ),
          ),
        ),
        problems.length > 0 && problemList(problems),
        explained && explanation(explained, name),
        figures(service),
        h(
          "h2",
          {},
          t("service.instances"),
          h("span", { class: "count" }, n(service.totalInstances)),
        ),
        service.instances.length > 10 && filterField(t("service.filter"), narrow),
        table.draw(rows()),
        Object.keys(service.aggregatedMetrics).length > 0 && [
          h("h2", {}, t("service.metrics")),
          aggregateTable(service.aggregatedMetrics),
        ],
        h("h2", {}, t("timeline.title")),
        timeline((events ?? []).toReversed().slice(0, 60), { of: "service" }),
      ];
    },
  };
}

/** Instances in order of their ids, with the changes applied. */
function updated(instances, { changed, removed }) {
  const all = new Map(instances.map((instance) => [instance.instanceId, instance]));
  for (const instance of changed) all.set(instance.instanceId, instance);
  for (const id of removed) all.delete(id);
  return [...all.values()].sort((a, b) => (a.instanceId < b.instanceId ? -1 : 1));
}

function matches(instance, wanted) {
  const text = [
    instance.instanceId,
    instance.host,
    instance.zone,
    instance.version,
    t(`state.${stateOf(instance)}`),
  ];
  return text.some((part) => String(part).toLowerCase().includes(wanted));
}

function figures(service) {
  const figure = (words, ...value) => h("div", {}, h("dt", {}, t(words)), h("dd", {}, value));
  return h(
    "dl",
    { class: "figures" },
    figure(
      "figure.healthy",
      `${n(service.healthyInstances)}/${n(service.totalInstances)} `,
      h("small", {}, service.totalInstances > 0 && percent(service.healthyRate)),
    ),
    figure(
      "figure.enabled",
      `${n(service.enabledInstances)}/${n(service.totalInstances)} `,
      h("small", {}, service.totalInstances > 0 && percent(service.enabledRate)),
    ),
    figure(
      "figure.delay.avg",
      service.avgHeartbeatDelay === null ? "–" : lasting(service.avgHeartbeatDelay / 1000),
    ),
    figure(
      "figure.response",
      service.avgResponseTime === null ? "–" : lasting(service.avgResponseTime / 1000),
    ),
  );
}

function columns(service, reasons) {
  return [
    {
      name: "id",
      title: () => t("column.instance"),
      main: true,
      order: ({ instanceId }) => instanceId,
      cell: (row) => [
        instanceLink(service, row.instanceId, { "data-item": true }),
        reasons().has(row.instanceId) &&
          h("span", { class: "why" }, safeText(sayAll(reasons().get(row.instanceId)))),
      ],
    },
    { name: "state", title: () => t("column.state"), order: stateOf, cell: (row) => state(row) },
    {
      name: "address",
      title: () => t("column.address"),
      cell: (row) =>
        h("span", { class: "mono" }, brief(`${row.protocol} ${row.host}:${row.port}`, 80)),
    },
    {
      name: "weight",
      title: () => t("column.weight"),
      number: true,
      order: ({ weight }) => weight,
      cell: ({ weight }) => n(weight),
    },
    {
      name: "zone",
      title: () => t("column.zone"),
      order: ({ zone }) => zone,
      cell: ({ zone }) => (zone ? brief(zone) : "–"),
    },
    {
      name: "version",
      title: () => t("column.version"),
      order: ({ version }) => version,
      cell: ({ version }) => brief(version, 24),
    },
    {
      name: "delay",
      title: () => t("column.delay"),
      number: true,
      order: ({ heartbeatDelay }) => heartbeatDelay,
      cell: ({ heartbeatDelay }) =>
        heartbeatDelay === null ? "–" : lasting(heartbeatDelay / 1000),
    },
    {
      name: "since",
      title: () => t("column.since"),
      order: ({ registrationTime }) => registrationTime,
      cell: ({ registrationTime }) => when(registrationTime),
    },
  ];
}

function explanation(explained, service) {
  const called = explained.filter((entry) => entry.called).length;
  return h(
    "section",
    { "data-key": "explained" },
    h(
      "h2",
      {},
      t("explain.title"),
      h("span", { class: "count" }, t("explain.count", { n: called, all: explained.length })),
    ),
    h(
      "div",
      { class: "framed" },
      h(
        "dl",
        { class: "pairs" },
        explained
          .slice(0, MOST)
          .map((entry) => [
            h("dt", {}, instanceLink(service, entry.instanceId)),
            h(
              "dd",
              {},
              entry.called ? mark("good", t("explain.chosen")) : mark("off", t("explain.out")),
              entry.messages.length > 0 &&
                h("span", { class: "why" }, safeText(sayAll(entry.messages), { most: 300 })),
            ),
          ]),
      ),
    ),
  );
}
