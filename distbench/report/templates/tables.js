"use strict";
// All pages: rows of tables on demand, links into what is folded, and where the reader is.
(function () {
  const fill = async (button) => {
    // a second click while the rows are unpacked would add them twice
    button.disabled = true;
    const table = document.getElementById(button.dataset.more + "-table");
    const rest = JSON.parse(await unpacked(button.dataset.more + "-rest"));
    const marked = button.dataset.more === "values";
    const body = document.createDocumentFragment();
    rest.forEach((texts) => body.appendChild(marked ? markedRow(texts, table) : row(texts, table)));
    table.tBodies[0].appendChild(body);
    button.remove();
  };

  // a row of the table of all values: the name of the case, its mark, the values
  function markedRow([name, mark, ...values], table) {
    const made = row([name, ...values], table);
    if (mark) {
      const link = document.createElement("a");
      link.href = "#not-the-same-work";
      link.textContent = mark;
      made.cells[0].append(" ", link);
    }
    return made;
  }

  function row(texts, table) {
    const made = document.createElement("tr");
    texts.forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.className = table.tHead.rows[0].cells[i].className;
      else cell.scope = texts.length === 1 ? "rowgroup" : "row";
      if (texts.length === 1) cell.colSpan = table.tHead.rows[0].cells.length;
      const apart = document.createElement("bdi");
      // the name of a case may be broken after each part of it
      if (i) apart.textContent = text;
      else text.split("/").forEach((part, n) => apart.append(...(n ? ["/", document.createElement("wbr")] : []), part));
      cell.appendChild(apart);
      made.appendChild(cell);
    });
    return made;
  }

  document.querySelectorAll("button[data-more]").forEach((button) => {
    button.hidden = !window.DecompressionStream;
    button.addEventListener("click", () => fill(button));
  });

  // what a link leads into must be open to be seen
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const folded = target.querySelector(":scope > details.folded");
    if (folded) folded.open = true;
    // a row that was clicked stays where it is
    target.scrollIntoView({ block: target.tagName === "TR" ? "nearest" : "start" });
  }

  // the contents say where the reader is
  const links = new Map(Array.from(document.querySelectorAll("#contents a")).map((link) => [link.getAttribute("href").slice(1), link]));
  const inSight = new Set();
  const reading = new IntersectionObserver((entries) => {
    entries.forEach((entry) => inSight[entry.isIntersecting ? "add" : "delete"](entry.target.id));
    let first = true;
    links.forEach((link, id) => {
      if (first && inSight.has(id)) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      first = first && !inSight.has(id);
    });
  }, { rootMargin: "0px 0px -60% 0px" });
  links.forEach((link, id) => { if (document.getElementById(id)) reading.observe(document.getElementById(id)); });

  window.addEventListener("hashchange", reveal);
  // a second wish for the same place is no change of place
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  reveal();
})();
