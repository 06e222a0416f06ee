"use strict";
// The table of all cases: sorting, filtering, columns, what it is relative to, and its numbers as files.
(function () {
  const table = document.getElementById("cases-table");
  const bodies = Array.from(table.tBodies);
  const rows = Array.from(table.querySelectorAll("tr[id]"));
  const home = new Map(rows.map((each) => [each, each.parentElement]));
  const heads = Array.from(table.tHead.rows[0].cells);
  const get = (id) => document.getElementById(id);
  const [find, status, base, groups, count, all] = ["filter", "status", "base", "groups", "count", "all"].map((name) => get("case-" + name));
  // laying out thousands of rows takes seconds, and nobody reads them
  const most = 200;
  let limit = most;
  let order = rows;
  let matching = rows;
  const words = new Map(rows.map((each) => [each, each.textContent.toLowerCase() + " " + each.querySelector("a").title.toLowerCase()]));

  function filter() {
    const wanted = find.value.trim().toLowerCase();
    const found = order.filter((each) => (!status.value || each.dataset.status === status.value) && words.get(each).includes(wanted));
    matching = groups.checked ? bodies.flatMap((body) => found.filter((each) => home.get(each) === body)) : found;
    show();
  }

  function show() {
    const shown = new Set(matching.slice(0, limit));
    rows.forEach((each) => { each.hidden = !shown.has(each); });
    bodies.forEach((body) => { body.rows[0].hidden = !groups.checked || !Array.from(shown).some((each) => home.get(each) === body); });
    const told = (number) => number.toLocaleString("en");
    count.textContent = told(matching.length) + " of " + told(rows.length) + " cases";
    all.hidden = shown.size === matching.length;
    all.textContent = "Show the other " + told(matching.length - shown.size) + " cases";
  }

  function showAll() {
    limit = rows.length;
    show();
  }

  // a group says what its names have in common; without groups each name says all
  const short = new Map(rows.map((each) => [each, each.querySelector("a bdi").textContent]));
  function arrange() {
    order.forEach((each) => {
      (groups.checked ? home.get(each) : bodies[0]).append(each);
      each.querySelector("a bdi").textContent = groups.checked ? short.get(each) : each.querySelector("a").title;
    });
    filter();
  }

  // what a cell sorts by: its number; its text where the column has words; nothing where it is not known
  function key(each, column) {
    const cell = each.cells.length === heads.length || column === 0 ? each.cells[column] : undefined;
    if (heads[column].dataset.type === "text") return cell && cell.textContent;
    return cell && cell.dataset.value !== undefined ? Number(cell.dataset.value) : undefined;
  }

  const letters = new Intl.Collator("en", { numeric: true });
  function sort(column, direction) {
    const keys = new Map(rows.map((each) => [each, key(each, column)]));
    const compare = (a, b) => (heads[column].dataset.type === "text" ? letters.compare(a, b) : a - b);
    order = order.slice().sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      // what is not known is last in either direction
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return direction * compare(x, y);
    });
    arrange();
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : direction > 0 ? "ascending" : "descending"));
  }

  const chosen = Array.from(document.querySelectorAll("#cases-tools [name=column]"));
  const look = document.head.appendChild(document.createElement("style"));
  function choose() {
    const hidden = chosen.filter((box) => !box.checked).map((box) => "#cases-table .c" + box.value);
    look.textContent = hidden.length ? hidden.join(",") + "{display:none}" : "";
    const wide = 1 + chosen.length - hidden.length;
    bodies.forEach((body) => { body.rows[0].cells[0].colSpan = wide; });
    table.querySelectorAll("td.reason").forEach((cell) => { cell.colSpan = wide - 1; });
  }

  // throughput of each case over that of the chosen one, with otherwise the same work
  function relate() {
    const column = heads.findIndex((head) => head.dataset.name === "relative");
    if (!base.value || column < 0) return;
    const speeds = new Map(rows.filter((each) => each.dataset.speed && each.dataset.label === base.value).map((each) => [each.dataset.work, Number(each.dataset.speed)]));
    heads[column].querySelector("button").textContent = "× " + base.value;
    rows.filter((each) => each.cells.length === heads.length).forEach((each) => {
      const ratio = Number(each.dataset.speed) / speeds.get(each.dataset.work);
      const cell = each.cells[column];
      if (Number.isFinite(ratio)) cell.dataset.value = ratio;
      else delete cell.dataset.value;
      cell.textContent = Number.isFinite(ratio) ? ratio.toFixed(2) : "–";
    });
  }

  // a link to a case that was not looked for ends the search
  function reveal() {
    const target = location.hash.startsWith("#case-") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.hidden) return;
    find.value = status.value = "";
    filter();
    if (target.hidden) showAll();
  }

  const tools = get("cases-tools");
  tools.hidden = false;
  tools.addEventListener("submit", (event) => event.preventDefault());
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(column, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
  });
  find.addEventListener("input", filter);
  status.addEventListener("change", filter);
  groups.addEventListener("change", arrange);
  if (base) base.addEventListener("change", relate);
  chosen.forEach((box) => box.addEventListener("change", choose));
  all.addEventListener("click", showAll);
  window.addEventListener("beforeprint", showAll);
  window.addEventListener("hashchange", reveal);
  choose();
  show();
  reveal();

  // the cases that were looked for, in the order of the table
  async function looked() {
    const data = JSON.parse(await unpacked("case-data"));
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
    button.hidden = !window.DecompressionStream;
    button.addEventListener("click", async () => {
      const [type, made] = kinds[button.dataset.export];
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([made(await looked())], { type }));
      link.download = "cases." + button.dataset.export;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  });
})();
