// Tables. On a narrow screen each row becomes a card, so that no table scrolls sideways.

import {el} from "./dom.js";

/** A table. A column has a title, a class, and cell(row), which returns text or a node; `null` shows a dash. */
export function table(caption, columns, rows) {
  const cell = (column, row) => {
    const content = column.cell(row);
    const attributes = {role: "cell", class: column.class, "data-label": column.title};
    return el("td", attributes, el("span", {}, content ?? "–"));
  };
  const head = columns.map((column) => el("th", {role: "columnheader", scope: "col", class: column.class}, column.title));
  // With explicit roles it stays a table for screen readers, even where the style turns rows into
  // cards.
  return el("table", {role: "table"},
    el("caption", {class: "hidden"}, caption),
    el("thead", {role: "rowgroup"}, el("tr", {role: "row"}, head)),
    el("tbody", {role: "rowgroup"}, rows.map((row) => el("tr", {role: "row"}, columns.map((column) => cell(column, row))))));
}

/** A section with a heading; its content is `body`. */
export function section(title, body, hint) {
  const id = `about-${title.toLowerCase().replaceAll(" ", "-")}`;
  return el("section", {"aria-labelledby": id},
    el("h2", {id}, title, hint ? el("span", {class: "hint"}, " ", hint) : null), body);
}
