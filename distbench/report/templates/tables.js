"use strict";
// The tables: rows on demand, sorting, filtering, and the numbers as files.
(function () {
  const fill = (button) => {
    const table = document.getElementById(button.dataset.more + "-table");
    const rest = JSON.parse(document.getElementById(button.dataset.more + "-rest").textContent);
    const marked = button.dataset.more === "values";
    const body = document.createDocumentFragment();
    rest.forEach((texts) => body.appendChild(row(marked ? [texts[0] + " " + texts[1], ...texts.slice(2)] : texts, table)));
    table.tBodies[0].appendChild(body);
    button.remove();
  };

  function row(texts, table) {
    const made = document.createElement("tr");
    texts.forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.className = table.tHead.rows[0].cells[i].className;
      else cell.scope = texts.length === 1 ? "rowgroup" : "row";
      if (texts.length === 1) cell.colSpan = table.tHead.rows[0].cells.length;
      const apart = document.createElement("bdi");
      apart.textContent = text;
      cell.appendChild(apart);
      made.appendChild(cell);
    });
    return made;
  }

  document.querySelectorAll("button[data-more]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => fill(button));
  });

  // what a link leads into must be open to be seen
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target.hidden) clear();
    if (target.hidden) showAll();
    target.scrollIntoView();
  }

  const table = document.querySelector("#cases table");
  // a page of two runs has none
  if (!table) return;
  const body = table.tBodies[0];
  let rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const find = document.getElementById("case-filter");
  const status = document.getElementById("case-status");
  const count = document.getElementById("case-count");
  // laying out thousands of rows takes seconds, and nobody reads them
  const most = 200;
  const all = document.getElementById("case-all");
  let limit = most;
  let matching = rows;
  const words = new Map(rows.map((each) => [each, each.textContent.toLowerCase()]));
  document.getElementById("cases-tools").hidden = false;
  document.getElementById("cases-tools").addEventListener("submit", (event) => event.preventDefault());

  function filter() {
    const wanted = find.value.trim().toLowerCase();
    matching = rows.filter((each) => (!status.value || each.dataset.status === status.value) && words.get(each).includes(wanted));
    show();
  }

  function show() {
    const shown = new Set(matching.slice(0, limit));
    rows.forEach((each) => { each.hidden = !shown.has(each); });
    const told = (number) => number.toLocaleString("en");
    count.textContent = told(matching.length) + " of " + told(rows.length) + " cases";
    all.hidden = shown.size === matching.length;
    all.textContent = "Show the other " + told(matching.length - shown.size) + " cases";
  }

  function showAll() {
    limit = rows.length;
    show();
  }

  function clear() {
    find.value = status.value = "";
    filter();
  }

  // what a cell sorts by: its number; its text where the column has words; nothing where it is not known
  function key(each, column) {
    if (column < 2) return each.cells[column].textContent;
    const cell = each.cells.length === heads.length ? each.cells[column] : undefined;
    return cell && cell.dataset.value !== undefined ? Number(cell.dataset.value) : undefined;
  }

  const letters = new Intl.Collator("en", { numeric: true });
  function sort(column, direction) {
    const keys = new Map(rows.map((each) => [each, key(each, column)]));
    const compare = (a, b) => (column < 2 ? letters.compare(a, b) : a - b);
    rows = rows.slice().sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      // what is not known is last in either direction
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return direction * compare(x, y);
    });
    body.append(...rows);
    filter();
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : direction > 0 ? "ascending" : "descending"));
  }

  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(column, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
  });
  find.addEventListener("input", filter);
  status.addEventListener("change", filter);
  all.addEventListener("click", showAll);
  window.addEventListener("beforeprint", showAll);
  show();
  window.addEventListener("hashchange", reveal);
  reveal();

  // the cases that were looked for, in the order of the table
  function chosen() {
    const data = JSON.parse(document.getElementById("case-data").textContent);
    const known = new Map(data.cases.map((each) => [each[0][data.facts.indexOf("case_id")], each]));
    data.cases = matching.map((each) => known.get(each.id.slice("case-".length)));
    return data;
  }

  function asJson(data) {
    const cases = data.cases.map(([facts, values]) => {
      const one = Object.fromEntries(data.facts.map((name, i) => [name, facts[i]]));
      const known = data.columns.map((column, i) => [column.name, values[i]]).filter(([, value]) => value);
      one.values = Object.fromEntries(known.map(([name, [value, low, high, n]]) => [name, { value, low, high, n }]));
      return one;
    });
    return JSON.stringify({ run_id: data.run_id, suite: data.suite, columns: data.columns, cases }, null, 1);
  }

  // a spreadsheet takes text that begins like this for a formula, whoever wrote it
  const formula = /^[=+\-@\t\r\n]/;
  function cell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = formula.test(value) ? "'" + value : value;
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }

  function asCsv(data) {
    const names = data.columns.flatMap(({ name }) => [name, name + " low", name + " high", name + " trials"]);
    const lines = data.cases.map(([facts, values]) => [...facts, ...values.flatMap((value) => value || [null, null, null, null])]);
    return [[...data.facts, ...names], ...lines].map((line) => line.map(cell).join(",") + "\r\n").join("");
  }

  const kinds = { csv: ["text/csv", asCsv], json: ["application/json", asJson] };
  document.querySelectorAll("[data-export]").forEach((button) => {
    button.addEventListener("click", () => {
      const [type, made] = kinds[button.dataset.export];
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([made(chosen())], { type }));
      link.download = "cases." + button.dataset.export;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  });
})();
