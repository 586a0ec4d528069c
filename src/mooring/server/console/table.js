// Sortable tables. Rows are drawn as the user scrolls to them, so that long tables open quickly.

import { h } from "./dom.js";
import { n, t } from "./i18n.js";

const FIRST = 60;
const STEP = 240;

const watching = new IntersectionObserver(
  (entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) entry.target.querySelector("button")?.click();
  },
  { rootMargin: "600px" },
);

/** A filter field; `set` receives its text. */
export function filterField(words, set, value = "") {
  return h(
    "div",
    { class: "filters" },
    h("input", {
      type: "search",
      placeholder: words,
      "aria-label": words,
      value: value || null,
      autocomplete: "off",
      oninput: (event) => set(event.target.value.trim()),
    }),
  );
}

/** Columns are `{name, title, cell(row), order(row)?, number?, main?}`; `key(row)` identifies a row. */
export class Table {
  #shown = FIRST;
  #by;
  #down = false;

  constructor({ label, columns, key, by = null, down = false, redraw, empty }) {
    Object.assign(this, { label, columns, key, redraw, empty });
    this.#by = by;
    this.#down = down;
  }

  draw(rows) {
    if (!rows.length)
      return h("div", { class: "framed" }, h("p", { class: "empty" }, this.empty()));
    const sorted = this.#sorted(rows);
    const some = sorted.slice(0, this.#shown);
    return h(
      "div",
      { class: "framed" },
      h(
        "table",
        { class: "cards", "aria-label": this.label(), "aria-rowcount": rows.length + 1 },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            this.columns.map((column) => this.#head(column)),
          ),
        ),
        h(
          "tbody",
          {},
          some.map((row) => this.#row(row)),
        ),
      ),
      sorted.length > some.length && this.#more(sorted.length),
    );
  }

  #sorted(rows) {
    const column = this.columns.find(({ name }) => name === this.#by);
    if (!column?.order) return rows;
    const compare = (a, b) => {
      const [x, y] = [column.order(a), column.order(b)];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return x < y ? -1 : 1;
    };
    return [...rows].sort((a, b) => (this.#down ? compare(b, a) : compare(a, b)));
  }

  #head(column) {
    const title = column.title();
    const classes = column.number ? "number" : "";
    if (!column.order) return h("th", { scope: "col", class: classes }, title);
    const chosen = this.#by === column.name;
    const press = () => {
      this.#down = chosen ? !this.#down : Boolean(column.number);
      this.#by = column.name;
      this.redraw();
    };
    return h(
      "th",
      {
        scope: "col",
        class: classes,
        "aria-sort": chosen ? (this.#down ? "descending" : "ascending") : null,
      },
      h(
        "button",
        { type: "button", class: "sort", onclick: press },
        title,
        chosen && (this.#down ? " ↓" : " ↑"),
      ),
    );
  }

  #row(row) {
    return h(
      "tr",
      { "data-key": this.key(row) },
      this.columns.map((column) => {
        const cell = column.cell(row);
        const blank = cell === "–" || cell === false || cell?.textContent === "–";
        const classes = [column.number && "number", column.main && "main", blank && "blank"].filter(
          Boolean,
        );
        return h("td", { class: classes.join(" ") || null, "data-label": column.title() }, cell);
      }),
    );
  }

  #more(all) {
    const press = () => {
      this.#shown += STEP;
      this.redraw();
    };
    const row = h(
      "div",
      { class: "more" },
      h(
        "button",
        { type: "button", class: "link", onclick: press },
        t("table.more", { shown: this.#shown, all: n(all) }),
      ),
    );
    watching.observe(row);
    return row;
  }
}
