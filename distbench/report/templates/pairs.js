// Charts that show one case beside another: two fields choose among the cases that the chart knows.
const pairs = (function () {
  const chosen = {};
  // what can be changed: chart, its cases, and the field of the upper one
  const offered = [];

  // the figure with the traces of the chosen cases alone, each in its place
  function figure(id, given) {
    const pair = given.layout.pair;
    if (!pair) return given;
    const layout = Object.assign({}, given.layout, { annotations: [] });
    const data = [];
    (chosen[id] || pair.chosen).forEach((at, slot) => {
      const place = pair.slots[slot];
      const axis = Object.assign({}, layout[place.axis], pair.cases[at].axis);
      layout[place.axis] = axis;
      layout.annotations.push({
        text: "<b>" + pair.cases[at].name + "</b>", showarrow: false,
        xref: "paper", x: 0, xanchor: "left", yref: "paper", y: axis.domain[1], yanchor: "bottom",
      });
      given.data.filter((trace) => trace.meta === at).forEach((trace) => {
        // one entry of the legend for both cases
        const showlegend = !data.some((other) => other.name === trace.name);
        data.push(Object.assign({}, trace, place.trace, { showlegend, legendgroup: trace.name }));
      });
    });
    delete layout.pair;
    return { data, layout };
  }

  function field(id, pair, slot, redraw) {
    const label = document.createElement("label");
    const select = document.createElement("select");
    label.append(pair.slots[slot].label + " ", select);
    // a name is written for the chart, in which a few characters are entities
    const letters = { "&lt;": "<", "&gt;": ">", "&amp;": "&" };
    pair.cases.forEach((one, at) => {
      const name = one.name.replace(/&(lt|gt|amp);/g, (entity) => letters[entity]);
      select.add(new Option(name, at, false, at === pair.chosen[slot]));
    });
    select.addEventListener("change", () => {
      chosen[id] = (chosen[id] || pair.chosen).map((at, place) => (place === slot ? Number(select.value) : at));
      redraw();
    });
    return label;
  }

  function offer(element, given, redraw) {
    const pair = given.layout.pair;
    if (!pair || pair.cases.length < 2) return;
    const line = document.createElement("p");
    line.className = "pair";
    line.append(...pair.slots.map((_, slot) => field(element.dataset.chart, pair, slot, redraw)));
    offered.push({ id: element.dataset.chart, pair, select: line.querySelector("select") });
    element.before(line);
  }

  // a case that is chosen anywhere on the page comes up here; whoever draws listens too
  document.addEventListener("case", (event) => offered.forEach(({ id, pair, select }) => {
    const at = pair.cases.findIndex((one) => one.id === event.detail);
    if (at < 0) return;
    chosen[id] = [at, ...(chosen[id] || pair.chosen).slice(1)];
    select.value = at;
  }));

  return { figure, offer };
})();
