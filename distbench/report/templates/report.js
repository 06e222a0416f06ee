"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return { ink: style.getPropertyValue("--ink").trim(), line: style.getPropertyValue("--line").trim() };
  }

  function axis(given, look) {
    const shared = { gridcolor: look.line, zerolinecolor: look.line, automargin: true, rangemode: "tozero" };
    return Object.assign(shared, given);
  }

  function draw(element) {
    const figure = charts[Number(element.dataset.chart)];
    const look = colours();
    const isLoss = element.parentElement.id === "loss";
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: look.ink, family: "system-ui, sans-serif", size: 13 },
      margin: { t: 16, r: 16, b: 56, l: 72 },
      legend: { orientation: window.innerWidth < 700 ? "h" : "v", y: window.innerWidth < 700 ? -0.25 : 1 },
      hoverlabel: { align: "left" },
      xaxis: axis(figure.layout.xaxis, look),
      yaxis: axis(figure.layout.yaxis, look),
    };
    if (isLoss) {
      layout.yaxis.rangemode = "normal";
    }
    Plotly.react(element, figure.data, layout, {
      displaylogo: false,
      responsive: true,
      modeBarButtonsToRemove: ["sendDataToCloud", "lasso2d", "select2d"],
    });
  }

  function drawAll() {
    document.querySelectorAll(".chart").forEach(draw);
  }

  drawAll();
  dark.addEventListener("change", drawAll);
})();
