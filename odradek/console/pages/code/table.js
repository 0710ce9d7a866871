// Tables: sorted by a click on a heading, paged, with the state in the address.

import { h } from "./dom.js";
import { count } from "./format.js";
import { emptyBox } from "./parts.js";
import { addressWith } from "./router.js";

export const ROWS = 100;

/**
 * Return a table. A column is {key, label, cell(row), number, sort(row), server, title, wide, sentence, head}. `sort` and `server` make
 * its heading a link that sorts.
 *
 * Without `paged`, all rows are here: they are sorted and paged here. With `paged`, a page {total, page, pages} of the
 * server: it sorts the columns with `server`, and the others can be sorted only if there is one page.
 */
export function table({ page, columns, rows, keyOf, caption, sorted = "", paged = null, empty, rowClass, detail, size = ROWS }) {
  const isWhole = !paged || paged.pages === 1;
  const order = page.get("sort", sorted);
  const all = isWhole ? inOrder(rows, columns, order) : rows;
  const length = paged ? paged.total : all.length;
  const pages = paged ? paged.pages : Math.max(1, Math.ceil(length / size));
  const at = Math.min(pages, Math.max(1, page.number("page", 1)));
  const drawn = paged ? all : all.slice((at - 1) * size, at * size);
  if (!drawn.length) return empty ?? emptyBox("Nothing here");
  return h(
    "div.table-box",
    { "data-key": `table-${caption}` },
    h(
      "div.table-scroll",
      { tabindex: "0", role: "region", "aria-label": caption },
      h(
        "table",
        {},
        h("caption.unseen", {}, caption),
        h("thead", {}, h("tr", {}, columns.map((column) => heading(column, order, isWhole)))),
        h("tbody", {}, drawn.map((row) => line(row, { columns, keyOf, rowClass, detail }))),
      ),
    ),
    pages > 1 ? pager(at, pages, length, size) : null,
  );
}

function heading(column, order, isWhole) {
  const down = order === `-${column.key}`;
  const up = order === column.key;
  const props = {
    scope: "col",
    class: classOf(column),
    title: column.title,
    "aria-sort": up ? "ascending" : down ? "descending" : undefined,
  };
  if (!column.server && !(column.sort && isWhole)) return h("th", { ...props, "aria-sort": undefined }, column.label);
  // A click on figures shows the largest first, a click on names the first of the alphabet.
  const first = column.number ? `-${column.key}` : column.key;
  const other = column.number ? column.key : `-${column.key}`;
  const next = order === first ? other : first;
  const arrow = h("span.arrow", { "aria-hidden": "true" }, up ? "\u25b2" : down ? "\u25bc" : "");
  return h("th", props, h("a.sorting", { href: addressWith({ sort: next, page: "" }) }, column.label, arrow));
}

function classOf(column) {
  return [column.number ? "number" : "", column.wide ? "wide" : "", column.sentence ? "sentence" : ""].filter(Boolean).join(" ");
}

function line(row, { columns, keyOf, rowClass, detail }) {
  const key = String(keyOf(row));
  const cells = columns.map((column) => {
    const value = column.cell(row);
    return column.head ? h("th", { scope: "row", class: classOf(column) }, value) : h("td", { class: classOf(column) }, value);
  });
  const opened = detail?.(row);
  const first = h("tr", { "data-key": `row-${key}`, class: rowClass?.(row) }, cells);
  if (!opened) return first;
  return [first, h("tr.detail", { "data-key": `detail-${key}` }, h("td", { colspan: String(columns.length) }, opened))];
}

/** Return rows in the order that a parameter such as "-bytes" names. Absent values come last. */
export function inOrder(rows, columns, order) {
  const down = order.startsWith("-");
  const column = columns.find((each) => each.key === order.replace(/^-/, ""));
  if (!column?.sort) return rows;
  const turn = down ? -1 : 1;
  const valued = rows.map((row) => [column.sort(row), row]);
  valued.sort(([one], [other]) => {
    const oneAbsent = one === null || one === undefined;
    const otherAbsent = other === null || other === undefined;
    if (oneAbsent || otherAbsent) return oneAbsent - otherAbsent;
    return turn * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
  });
  return valued.map(([, row]) => row);
}

/** Return the links to other pages of a list. */
export function pager(at, pages, length, size, label = "Pages of this list") {
  const step = (label, to, isOff) =>
    isOff ? h("span.step", { "aria-disabled": "true" }, label) : h("a.step", { href: addressWith({ page: to === 1 ? "" : to }) }, label);
  return h(
    "nav.pager",
    { "aria-label": label },
    step("First", 1, at === 1),
    step("Previous", at - 1, at === 1),
    h("span", {}, `${count((at - 1) * size + 1)} to ${count(Math.min(length, at * size))} of ${count(length)}`),
    step("Next", at + 1, at === pages),
    step("Last", pages, at === pages),
  );
}

/** Return those rows of which one text contains what is searched for. */
export function matching(rows, search, textsOf) {
  const wanted = search.trim().toLowerCase();
  if (!wanted) return rows;
  return rows.filter((row) => textsOf(row).some((text) => String(text ?? "").toLowerCase().includes(wanted)));
}
