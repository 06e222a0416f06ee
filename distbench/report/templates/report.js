"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // paper is white, and as wide as this whatever the window is
  const paper = { ink: "#000000", line: "#cccccc", width: 680 };

  function screenLook() {
    const style = getComputedStyle(document.documentElement);
    return { ink: style.getPropertyValue("--ink").trim(), line: style.getPropertyValue("--line").trim() };
  }

  function axis(given, look, rangemode) {
    return Object.assign({ gridcolor: look.line, zerolinecolor: look.line, automargin: true, rangemode }, given);
  }

  function draw(element, look) {
    const figure = charts[Number(element.dataset.chart)];
    const narrow = window.innerWidth < 700 || look === paper;
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: look.ink, family: "system-ui, sans-serif", size: 13 },
      margin: { t: 16, r: 16, b: 56, l: 64 },
      legend: narrow ? { orientation: "h", yref: "container", y: 0, yanchor: "bottom" } : { orientation: "v", y: 1 },
      // a long legend below a narrow chart leaves no room for the chart
      showlegend: figure.layout.showlegend && (!narrow || figure.data.length <= 10),
      hoverlabel: { align: "left", namelength: -1 },
      xaxis: axis(figure.layout.xaxis, look, "tozero"),
      yaxis: axis(figure.layout.yaxis, look, element.dataset.zero === "no" ? "normal" : "tozero"),
      width: look.width,
      autosize: look.width === undefined,
    };
    const data = narrow ? figure.data.map((trace) => Object.assign({}, trace, { mode: trace.mode.replace("+text", "") })) : figure.data;
    Plotly.react(element, data, layout, {
      displaylogo: false,
      responsive: true,
      modeBarButtonsToRemove: ["sendDataToCloud", "lasso2d", "select2d"],
    });
  }

  function drawAll(look) {
    document.querySelectorAll(".chart").forEach((element) => draw(element, look));
  }

  drawAll(screenLook());
  dark.addEventListener("change", () => drawAll(screenLook()));
  window.addEventListener("beforeprint", () => drawAll(paper));
  window.addEventListener("afterprint", () => drawAll(screenLook()));
})();
