// The overview: current problems, then all services.

import { h } from "../dom.js";
import { plain } from "../untrusted_text.js";
import { bar, mark, shape } from "../status_marks.js";
import { serviceLink } from "../links.js";
import { load, fleet } from "../fleet.js";
import { problemList } from "../problems.js";
import { filterField, Table } from "../table.js";
import { timeline } from "../timeline.js";
import { lasting, when } from "../time_format.js";
import { n, percent, sayAll, t } from "../i18n.js";

const SHOWN = 12;

export function page(app) {
  let filter = "";
  const narrow = (wanted) => {
    filter = wanted;
    app.redraw();
  };
  let all = false;
  const having = (wanted) =>
    new Set(fleet.problems.filter(({ kind }) => kind === wanted).map(({ service }) => service));
  const table = new Table({
    label: () => t("overview.services"),
    key: (row) => row.serviceName,
    redraw: () => app.redraw(),
    empty: () => (filter ? t("table.nothing") : t("overview.none")),
    columns: columns(
      () => having("brake"),
      () => having("no_instances"),
    ),
  });
  const rows = () => {
    const wanted = filter.toLowerCase();
    const every = [...fleet.services.values()].sort((a, b) =>
      a.serviceName < b.serviceName ? -1 : 1,
    );
    return wanted
      ? every.filter(({ serviceName }) => serviceName.toLowerCase().includes(wanted))
      : every;
  };
  return {
    title: () => headline(),
    load,
    takes: () => true,
    draw() {
      const problems = all ? fleet.problems : fleet.problems.slice(0, SHOWN);
      return [
        h("h1", {}, headline()),
        fleet.problems.length ? problemList(problems) : calm(),
        problems.length < fleet.problems.length &&
          h(
            "p",
            {},
            h(
              "button",
              {
                type: "button",
                onclick: () => {
                  all = true;
                  app.redraw();
                },
              },
              t("overview.all", { n: fleet.problems.length }),
            ),
          ),
        figures(),
        h(
          "h2",
          {},
          t("overview.services"),
          h("span", { class: "count" }, n(fleet.services.size)),
        ),
        filterField(t("overview.filter"), narrow),
        table.draw(rows()),
        fleet.events.length > 0 && [
          h("h2", {}, t("overview.recent")),
          timeline(fleet.events.slice(0, 15)),
        ],
      ];
    },
  };
}

function headline() {
  const wrong = fleet.problems.filter(({ severity }) => severity !== "info").length;
  return wrong ? t("overview.wrong", { n: wrong }) : t("overview.title");
}

function calm() {
  return h(
    "div",
    { class: "calm" },
    shape("good"),
    h("span", {}, fleet.services.size ? t("overview.calm") : t("overview.start")),
  );
}

function figures() {
  const health = fleet.health;
  if (!health) return null;
  const figure = (words, value, small) =>
    h("div", {}, h("dt", {}, t(words)), h("dd", {}, value, small && [" ", h("small", {}, small)]));
  return h(
    "dl",
    { class: "figures" },
    figure("figure.services", n(health.totalServices)),
    figure("figure.instances", n(health.totalInstances)),
    figure(
      "figure.healthy",
      n(health.healthyInstances),
      health.totalInstances > 0 && percent(health.healthyRate),
    ),
    figure("figure.active", n(health.activeInstances)),
    figure(
      "figure.delay",
      fleet.delay?.max == null ? "–" : lasting(fleet.delay.max / 1000),
      fleet.delay?.p99 != null && `p99 ${lasting(fleet.delay.p99 / 1000)}`,
    ),
  );
}

function columns(brakes, lost) {
  return [
    {
      name: "name",
      title: () => t("column.service"),
      main: true,
      order: ({ serviceName }) => serviceName,
      cell: (row) => serviceLink(row.serviceName, { "data-item": true }),
    },
    {
      name: "health",
      title: () => t("column.health"),
      order: (row) => (row.totalInstances ? row.healthyRate : -1),
      cell: (row) =>
        row.totalInstances
          ? bar(
              row.healthyInstances,
              row.totalInstances,
              t("column.health.label", { some: row.healthyInstances, all: row.totalInstances }),
            )
          : mark(lost().has(row.serviceName) ? "bad" : "off", t("overview.empty")),
    },
    {
      name: "enabled",
      title: () => t("column.out"),
      number: true,
      order: (row) => row.totalInstances - row.enabledInstances,
      cell: (row) =>
        row.totalInstances > row.enabledInstances
          ? n(row.totalInstances - row.enabledInstances)
          : "–",
    },
    {
      name: "delay",
      title: () => t("column.delay"),
      number: true,
      order: (row) => row.avgHeartbeatDelay,
      cell: (row) => (row.avgHeartbeatDelay === null ? "–" : lasting(row.avgHeartbeatDelay / 1000)),
    },
    {
      name: "response",
      title: () => t("column.response"),
      number: true,
      order: (row) => row.avgResponseTime,
      cell: (row) => (row.avgResponseTime === null ? "–" : lasting(row.avgResponseTime / 1000)),
    },
    {
      name: "state",
      title: () => t("column.notable"),
      cell: (row) => notable(row, brakes()),
    },
    {
      name: "changed",
      title: () => t("column.changed"),
      order: (row) => row.lastUpdateTime,
      cell: (row) => when(row.lastUpdateTime),
    },
  ];
}

function notable(row, brakes) {
  if (brakes.has(row.serviceName)) return mark("bad", t("overview.brake"));
  const first = row.abnormalInstances[0];
  if (!first) return h("span", { class: "muted" }, "–");
  const more = row.abnormalInstances.length - 1;
  return h(
    "span",
    { class: "muted" },
    `${plain(first.instanceId, 40)}: ${plain(sayAll(first.reasons), 80)}`,
    more > 0 && ` ${t("overview.more", { n: more })}`,
  );
}
