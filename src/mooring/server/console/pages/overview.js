// Everything at one glance: what is wrong on top, in words; then every service.

import { h } from "../dom.js";
import { plain } from "../hostile.js";
import { bar, mark, shape } from "../marks.js";
import { serviceLink } from "../names.js";
import { load, picture } from "../picture.js";
import { problemList } from "../problems.js";
import { filterField, Table } from "../tables.js";
import { timeline } from "../timeline.js";
import { lasting, when } from "../times.js";
import { n, percent, sayAll, t } from "../words.js";

const SHOWN = 12;

export function page(app) {
  let filter = "";
  const narrow = (wanted) => {
    filter = wanted;
    app.redraw();
  };
  let all = false;
  const having = (wanted) =>
    new Set(picture.problems.filter(({ kind }) => kind === wanted).map(({ service }) => service));
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
    const every = [...picture.services.values()].sort((a, b) =>
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
      const problems = all ? picture.problems : picture.problems.slice(0, SHOWN);
      return [
        h("h1", {}, headline()),
        picture.problems.length ? problemList(problems) : calm(),
        problems.length < picture.problems.length &&
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
              t("overview.all", { n: picture.problems.length }),
            ),
          ),
        figures(),
        h(
          "h2",
          {},
          t("overview.services"),
          h("span", { class: "count" }, n(picture.services.size)),
        ),
        filterField(t("overview.filter"), narrow),
        table.draw(rows()),
        picture.events.length > 0 && [
          h("h2", {}, t("overview.recent")),
          timeline(picture.events.slice(0, 15)),
        ],
      ];
    },
  };
}

function headline() {
  const wrong = picture.problems.filter(({ severity }) => severity !== "info").length;
  return wrong ? t("overview.wrong", { n: wrong }) : t("overview.title");
}

function calm() {
  return h(
    "div",
    { class: "calm" },
    shape("good"),
    h("span", {}, picture.services.size ? t("overview.calm") : t("overview.start")),
  );
}

function figures() {
  const health = picture.health;
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
      "figure.lag",
      picture.lag?.max == null ? "–" : lasting(picture.lag.max / 1000),
      picture.lag?.p99 != null && `p99 ${lasting(picture.lag.p99 / 1000)}`,
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
      name: "lag",
      title: () => t("column.lag"),
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
