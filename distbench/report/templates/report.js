"use strict";
// The charts: drawn when they come into sight, for a page may have dozens and nobody looks at all of them.
(function () {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // paper is white, and as wide whatever the window is: the style makes all that is on it smaller
  const paper = { ink: "#000000", line: "#cccccc", ground: "#ffffff", wide: 1120, half: 550, most: 420 };
  // as in the style: two charts beside each other
  const columns = window.matchMedia("(min-width: 76rem)");
  const slim = window.matchMedia("(max-width: 699px)");
  const slimMost = 290;
  const longestLabel = 20;
  const elements = Array.from(document.querySelectorAll(".chart"));

  function screenLook() {
    const style = getComputedStyle(document.documentElement);
    const look = (name) => style.getPropertyValue(name).trim();
    return { ink: look("--ink"), line: look("--line"), ground: look("--paper") };
  }

  function shortened(text) {
    // an entity is one character, and must not be cut
    const letters = text.match(/&[a-z]+;|./gu) || [];
    if (letters.length <= longestLabel) return text;
    return letters.slice(0, longestLabel / 2).join("") + "…" + letters.slice(1 - longestLabel / 2).join("");
  }

  function axis(given, look, narrow) {
    const fitting = {};
    if (narrow && look !== paper && given.ticktext) fitting.ticktext = given.ticktext.map(shortened);
    if (narrow) fitting.title = { text: given.title.text.replace(" (", "<br>("), font: { size: 12 } };
    return Object.assign({ gridcolor: look.line, zerolinecolor: look.line, automargin: true }, given, fitting);
  }

  // the chosen case stands out in charts that have it
  let chosen = "";
  function marked(trace, figure) {
    if (!chosen || !figure.data.some((each) => each.customdata && each.customdata.includes(chosen))) return trace;
    if (!trace.customdata) return trace;
    const places = trace.customdata.flatMap((id, i) => (id === chosen ? [i] : []));
    if (trace.mode === "lines") return places.length ? trace : Object.assign({}, trace, { opacity: 0.2 });
    return Object.assign({}, trace, { selectedpoints: places });
  }

  function axes(layout, look, narrow) {
    const names = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
    return Object.fromEntries(names.map((name) => [name, axis(layout[name], look, narrow)]));
  }

  function fitted(trace, look, narrow) {
    if (trace.type === "bar" && !trace.base) {
      // gaps in the colour of the ground part what colour alone would
      const marker = Object.assign({}, trace.marker, { line: { width: 1, color: look.ground } });
      return Object.assign({}, trace, { marker });
    }
    return narrow && trace.mode ? Object.assign({}, trace, { mode: trace.mode.replace("+text", "") }) : trace;
  }

  let library = "";
  // running the library takes seconds on a small machine: the page is there, and answers, before that
  function plotly() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = library;
      document.head.append(script);
    }
    return window.Plotly;
  }

  const heights = new Map(elements.map((element) => [element, parseInt(element.style.height, 10)]));
  // a legend of several lines takes its place from the plot: it is added to the height
  function tall(element, entries, perLine) {
    return heights.get(element) + 19 * Math.max(0, Math.ceil(entries / perLine) - 1);
  }

  // names at the ends of lines need room: on paper all of them, on a screen long ones
  const named = (element, look) => {
    const layout = charts[element.dataset.chart].layout;
    const names = (layout.annotations || []).map((each) => each.text.length);
    return (look === paper && layout.pair !== undefined) || names.some((length) => look === paper || length > 26);
  };
  // what has no other beside it is wide, too: on a screen the last of an odd number
  function isWide(element, look) {
    const others = Array.from(element.closest("section").querySelectorAll(".chart")).filter((each) => !named(each, look));
    if (named(element, look) || others.length < 2) return true;
    return look !== paper && others.length % 2 === 1 && element === others[others.length - 1];
  }
  const mark = (element, look) => element.closest("figure").classList.toggle("wide", isWide(element, look));
  const first = screenLook();
  elements.forEach((element) => mark(element, first));

  // names at the ends of lines need as many pixels beside half a page as beside a whole one
  function withLabelSpace(layout, pixels) {
    const names = layout.annotations || [];
    if (!names.length || !layout.xaxis || !layout.xaxis.range) return layout;
    const low = layout.xaxis.range[0];
    const last = Math.max(...names.map((each) => each.x));
    const label = 30 + 6.6 * Math.max(...names.map((each) => each.text.length));
    const range = [low, low + (last - low) * pixels / Math.max(pixels - label, pixels / 3)];
    return Object.assign({}, layout, { xaxis: Object.assign({}, layout.xaxis, { range }) });
  }

  function draw(element, look) {
    const given = charts[element.dataset.chart];
    const figure = pairs.figure(element.dataset.chart, given);
    const wide = mark(element, look);
    const half = look !== paper && columns.matches && !wide;
    const narrow = look === paper ? !wide : slim.matches;
    const above = narrow || half || figure.layout.barmode;
    // a long legend on a narrow screen leaves no room for the chart
    const entries = figure.data.filter((trace) => trace.showlegend !== false).length;
    const showlegend = figure.layout.showlegend && (!narrow || entries <= 12);
    const perLine = look === paper ? (wide ? 4 : 2) : slim.matches ? 1 : half ? 2 : 4;
    const needed = tall(element, above && showlegend ? entries : 0, perLine);
    // places of rows and of names are pixels; all else may be lower
    const most = look === paper ? (named(element, look) ? needed : paper.most) : slim.matches ? slimMost : needed;
    const height = given.layout.yaxis.ticktext || given.layout.pair ? needed : Math.min(needed, most);
    element.style.height = height + "px";
    // lines end behind the names that they pass
    const names = (figure.layout.annotations || []).map((each) => Object.assign({ bgcolor: look.ground + "cc" }, each));
    const layout = Object.assign({}, figure.layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: look.ink, family: "system-ui, sans-serif", size: 13 },
      margin: { t: 16, r: 16, b: 56, l: narrow ? 48 : 64 },
      legend: above ? { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" } : { orientation: "v", y: 1 },
      showlegend,
      hoverlabel: { align: "left", namelength: -1, bgcolor: look.ground, bordercolor: look.line, font: { color: look.ink } },
      hovermode: "closest",
      bargap: 0.3,
      ...axes(half ? withLabelSpace(figure.layout, element.clientWidth - 80) : figure.layout, look, narrow),
      // on a narrow screen names at the ends of lines would take the place of the lines
      annotations: narrow && look !== paper && !given.layout.pair ? [] : names,
      // what is as wide as the paper is not fitted to its place by itself
      width: look === paper ? (wide ? paper.wide : paper.half) : undefined,
      height,
      autosize: look !== paper,
    });
    plotly().react(element, figure.data.map((trace) => fitted(marked(trace, figure), look, narrow)), layout, {
      displaylogo: false,
      responsive: true,
      // these alone: the library comes with more in each version, among them one that uploads a chart
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]],
      plotlyServerURL: "",
    });
    if (!element.dataset.drawn) {
      element.dataset.drawn = "yes";
      pairs.offer(element, given, () => draw(element, screenLook()));
      element.on("plotly_click", visit);
    }
  }

  function visit(event) {
    const id = event.points[0].customdata;
    if (typeof id !== "string") return;
    // the same place twice in a row is no change of place, but still a wish to go there
    if (location.hash === "#case-" + id) location.hash = "";
    location.hash = "#case-" + id;
  }

  function redraw(look) {
    elements.filter((element) => element.dataset.drawn).forEach((element) => draw(element, look));
  }

  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      seen.unobserve(entry.target);
      if (!entry.target.dataset.drawn) draw(entry.target, screenLook());
    }),
    { rootMargin: "300px" },
  );
  if (window.DecompressionStream) {
    window.addEventListener("load", () => unpacked("library").then((text) => {
      library = text;
      elements.forEach((element) => seen.observe(element));
    }));
  } else {
    const sorry = "This browser is too old to draw charts (it has no DecompressionStream). The tables have the same numbers.";
    elements.forEach((element) => { element.textContent = sorry; });
  }

  let closed = [];
  function toPaper() {
    closed = Array.from(document.querySelectorAll("details[data-print]:not([open])"));
    closed.forEach((details) => { details.open = true; });
    if (library) elements.forEach((element) => draw(element, paper));
  }
  function toScreen() {
    closed.forEach((details) => { details.open = false; });
    redraw(screenLook());
  }

  document.addEventListener("case", (event) => {
    chosen = event.detail;
    redraw(screenLook());
  });
  [dark, slim, columns].forEach((query) => query.addEventListener("change", () => redraw(screenLook())));
  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", toScreen);
})();
