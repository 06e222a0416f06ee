"use strict";
// The drawer: all about one case beside the page, opened from its row or mark, or by a link to it.
(function () {
  const drawer = document.getElementById("drawer");
  const content = drawer.querySelector("div");
  const mostRows = 6;
  let data = null;
  let opener = null;
  let clicked = null;

  // text is only ever set as text: it comes from suites, records and logs
  function make(tag, text, ...children) {
    const made = document.createElement(tag);
    if (text) made.appendChild(document.createElement("bdi")).textContent = text;
    made.append(...children);
    return made;
  }

  function table(headings, rows) {
    const line = (tag, texts) => make("tr", "", ...texts.map((text) => make(tag, text)));
    const made = make("table", "", make("thead", "", line("th", headings)), make("tbody", "", ...rows.map((row) => line("td", row))));
    made.querySelectorAll("th").forEach((head) => { head.scope = "col"; });
    const scroll = make("div", "", made);
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", headings.join(", "));
    return scroll;
  }

  // a single row reads better from top to bottom
  function numbers(headings, rows) {
    if (rows.length > 1) return table(headings, rows);
    const pairs = headings.map((heading, i) => make("div", "", make("dt", heading), make("dd", rows[0][i])));
    const list = make("dl", "", ...pairs);
    list.className = "strip";
    return list;
  }

  function folded(title, ...children) {
    return make("details", "", make("summary", title), ...children);
  }

  function copy(text, button) {
    const done = () => { button.textContent = "Copied"; };
    const byHand = () => {
      getSelection().selectAllChildren(button.nextElementSibling);
      if (document.execCommand("copy")) done();
      else button.textContent = "Selected: press Ctrl+C";
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, byHand);
    else byHand();
  }

  function file([name, text]) {
    const button = make("button", "Copy");
    button.type = "button";
    button.className = "more";
    button.setAttribute("aria-label", "Copy " + name);
    const shown = log(text);
    button.addEventListener("click", () => copy(text, button));
    return make("div", "", make("h4", name), button, shown);
  }

  // beside what is copied, not only where the case's story is
  function warned(caveat) {
    const line = make("p", "Warning: " + caveat);
    line.className = "try bad";
    return line;
  }

  function adopted(one) {
    if (one.problem) return make("p", one.format + ": " + one.problem);
    const notes = make("ul", "", ...one.notes.map((note) => make("li", note)));
    return folded(one.format, file(["launch", one.launch]), ...Object.entries(one.files).map(file), notes);
  }

  function settings(one) {
    const parts = [];
    if (one.differences.length) parts.push(make("p", "Against " + one.reference + ":"), table(["setting", "this case", "reference", "changes"], one.differences));
    else if (one.reference) parts.push(make("p", "As its reference, " + one.reference + "."));
    if (one.settings.length) parts.push(folded("All other settings", table(["setting", "value"], one.settings)));
    return parts.length ? parts : [make("p", "No trial reported its settings.")];
  }

  function log(text) {
    const shown = document.createElement("pre");
    shown.textContent = text;
    shown.tabIndex = 0;
    return shown;
  }

  function chapter(of, rows, left) {
    const shown = numbers(of.headings, rows);
    const parts = [rows.length > mostRows ? folded("Show " + rows.length + " rows", shown) : shown];
    if (left) parts.push(make("p", left.toLocaleString("en") + " more rows: distbench show RUN --view " + of.id + " --csv"));
    return [...parts, folded("What these numbers are", make("p", of.caption))];
  }

  function build(one) {
    const title = make("h2", one.name);
    title.id = "drawer-title";
    title.tabIndex = -1;
    const told = [one.status, one.reason, one.noisy && "noisy: " + one.noisy, ...one.verdicts].filter(Boolean);
    const parts = [title, make("p", told.join(". "))];
    if (one.logs.length) parts.push(make("h3", "End of the log"), ...one.logs.map(log));
    if (one.file) parts.push(make("p", "Log, in the run's folder: " + one.file));
    parts.push(make("h3", "Use it: distbench adopt"), ...one.caveats.map(warned), ...one.adopt.map(adopted));
    parts.push(make("h3", "Settings of the live engine"), ...settings(one));
    data.tables.forEach((of, i) => { if (one.rows[i].length) parts.push(make("h3", of.title), ...chapter(of, one.rows[i], one.left[i])); });
    return parts;
  }

  async function open(id) {
    if (!data) data = JSON.parse(await unpacked("drawer-data"));
    const one = data.cases[id];
    if (!one) return;
    // who came by a mark of a chart, or by a link from elsewhere, goes back to the row
    opener = clicked || document.querySelector("#case-" + CSS.escape(id) + " a");
    clicked = null;
    content.replaceChildren(...build(one));
    drawer.scrollTop = 0;
    if (!drawer.open) drawer.show();
    document.getElementById("drawer-title").focus();
    select(id, one.name);
  }

  // one case at a time, the same in the table and in all charts
  const chip = document.getElementById("selected");
  function select(id, name) {
    document.querySelectorAll(".selected").forEach((each) => each.classList.remove("selected"));
    if (id) document.querySelectorAll("#case-" + CSS.escape(id) + ", [data-case='" + CSS.escape(id) + "']").forEach((each) => each.classList.add("selected"));
    chip.hidden = !id;
    chip.querySelector("bdi").textContent = name;
    document.dispatchEvent(new CustomEvent("case", { detail: id }));
  }

  function close() {
    if (!drawer.open) return;
    drawer.close();
    // the same link must work again
    history.replaceState(null, "", location.pathname + location.search);
    if (opener) opener.focus();
  }

  function follow() {
    const id = location.hash.startsWith("#case-") ? decodeURIComponent(location.hash.slice("#case-".length)) : "";
    if (id) open(id);
  }

  document.addEventListener("click", (event) => {
    const row = event.target.closest("#cases-table tr[id]");
    const link = event.target.closest("a[href^='#case-']") || (row && !event.target.closest("a") && row.querySelector("a"));
    if (!link || !getSelection().isCollapsed) return;
    clicked = link;
    if (row && !event.target.closest("a")) location.hash = link.hash;
    // the same place twice in a row is no change of place, but still a wish to see it
    if (link.hash === location.hash) follow();
  });
  drawer.querySelector("button").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (drawer.open) close();
    else if (!chip.hidden) select("", "");
  });
  chip.addEventListener("click", () => { close(); select("", ""); });
  if (window.DecompressionStream) {
    window.addEventListener("hashchange", follow);
    follow();
  }
})();
