"use strict";
// The choice of analysis/choice.py for any wish, made in the page: the two must stay the same.
(function () {
  const data = JSON.parse(document.getElementById("picker-data").textContent);
  const section = document.getElementById("picker");
  const form = section.querySelector("form");
  const energy = Array.from(form.elements.goal.options).some((option) => option.value === "tokens-per-joule");
  const MOST_ROWS = 300;

  // an interval is [value, half the width of its logarithm or null, the same for comparisons]
  function isApart(one, other) {
    const known = one[2] !== null && other[2] !== null;
    return Math.abs(Math.log(one[0] / other[0])) > (known ? Math.hypot(one[2], other[2]) : 0);
  }

  function whyNot(one, wish) {
    if (one.exclusion_reason && !one.is_noisy && !one.predicted) return one.exclusion_reason;
    if (wish.avoid.includes(one.label)) return "excluded";
    if (one.predicted) {
      const least = one.predicted_memory;
      return least === null || wish.memory === null || least <= wish.memory ? one.exclusion_reason : "predicted: does not fit (at least " + bytesText(least) + ")";
    }
    if (one.speed === null) return "throughput unknown: " + one.unknown;
    if (wish.goal === "tokens-per-joule" && one.joules === null) return "energy unknown: " + one.joules_unknown;
    if (one.memory === null && (wish.memory !== null || wish.goal === "memory")) return "memory unknown: " + one.memory_unknown;
    if (one.memory !== null && wish.memory !== null && one.memory > wish.memory) return "does not fit";
    return one.exclusion_reason;
  }

  // an estimate, halfway to the worse end of its interval
  function cautious(one, of) {
    return one[of][0] * Math.exp(((of === "joules" ? 1 : -1) * (one[of][1] || 0)) / 2);
  }

  function merit(one, goal) {
    if (goal === "memory") return one.memory;
    return goal === "tokens-per-joule" ? cautious(one, "joules") : -cautious(one, "speed");
  }

  function ranked(candidates, goal) {
    return candidates.slice().sort((one, other) => merit(one, goal) - merit(other, goal));
  }

  function alike(order, goal) {
    if (order.length === 0) return [];
    const best = order[0];
    if (goal === "memory") {
      const lean = order.filter((one) => one.memory <= best.memory * (1 + data.same));
      return alike(ranked(lean, "throughput"), "throughput");
    }
    const of = goal === "throughput" ? "speed" : "joules";
    return order.filter((one) => one === best || !isApart(one[of], best[of]));
  }

  // those of the tied cases whose cautious estimate is within the margin of the first
  function close(tied, goal) {
    const of = goal === "tokens-per-joule" ? "joules" : "speed";
    const best = tied.length === 0 ? 0 : cautious(tied[0], of);
    const isClose = (own) => own >= best * (1 - data.margin) && own <= best * (1 + data.margin);
    return tied.filter((one) => isClose(cautious(one, of)));
  }

  // whether a case that was measured under noise may be better than the best of the others
  function mayBeat(noisy, best, goal) {
    if (goal === "memory" && Math.max(noisy.memory, best.memory) > Math.min(noisy.memory, best.memory) * (1 + data.same)) {
      return noisy.memory < best.memory;
    }
    const of = goal === "tokens-per-joule" ? "joules" : "speed";
    const isWorse = of === "joules" ? noisy[of][0] > best[of][0] : noisy[of][0] < best[of][0];
    const isKnown = noisy[of][2] !== null && best[of][2] !== null;
    return !(isWorse && isKnown && isApart(noisy[of], best[of]));
  }

  function choose(wish) {
    const asked = data.candidates.filter(
      (one) => one.devices === wish.devices && one.work === wish.work && one.precision === wish.precision
    );
    const told = asked.map((one) => [one, whyNot(one, wish)]);
    let fit = told.filter((pair) => !pair[1]).map((pair) => pair[0]);
    const leftOut = told.filter((pair) => pair[1]);
    if (wish.goal === "memory") {
      const least = Math.max(0, ...fit.map((one) => one.speed[0])) * (1 - wish.within);
      leftOut.push(...fit.filter((one) => one.speed[0] < least).map((one) => [one, "too slow"]));
      fit = fit.filter((one) => one.speed[0] >= least);
    }
    const order = ranked(fit, wish.goal);
    const same = alike(order, wish.goal);
    const noisy = leftOut.map((pair) => pair[0]).filter((one) => one.is_noisy && whyNot(one, wish) === one.exclusion_reason);
    // noise slows cases down by different amounts
    const isOpen = noisy.some((one) => same.length === 0 || mayBeat(one, same[0], wish.goal));
    const pick = (isOpen ? [] : close(same, wish.goal)).reduce((best, one) => (best === null || one.simplicity < best.simplicity ? one : best), null);
    const provisional = noisy.length === 0 ? [] : ranked(fit.concat(noisy), wish.goal);
    return { pick, alike: same, ranked: order, leftOut, provisional };
  }

  // how many decimals show so many digits of a value
  function places(value, digits) {
    return value === 0 ? 0 : digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  }

  // as number_text of units.py: two digits of half the width of the interval, if there is one
  function numberText(value, half) {
    if (half > 0) {
      const shown = Math.min(places(half, 2), Math.abs(value) >= 100 ? 0 : places(value, 3));
      const step = Math.pow(10, Math.max(0, -shown));
      const rounded = Math.round(value / step) * step;
      const decimals = Math.max(0, shown);
      return (shown < 0 ? rounded : value).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    }
    if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(3)));
  }

  function halfWidth(interval) {
    return interval[1] === null ? 0 : interval[0] * Math.sinh(interval[1]);
  }

  function rateText(interval) {
    return interval === null ? "–" : numberText(interval[0], halfWidth(interval));
  }

  function bytesText(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = 0;
    // as rounded, so that no text says 1024
    for (; Math.abs(value) >= 1023.5 && power < units.length - 1; power += 1) value /= 1024;
    const digits = power === 0 || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
    return value.toFixed(digits) + " " + units[power];
  }

  function range(interval) {
    if (interval === null || interval[1] === null) return "–";
    const [value, half] = interval;
    return [-half, half].map((end) => numberText(value * Math.exp(end), halfWidth(interval))).join(" to ");
  }

  function value(name) {
    const field = form.elements[name];
    // a field with one value to offer is not there
    return field ? field.value : null;
  }

  function wishOf() {
    const memory = form.elements.memory.valueAsNumber;
    const within = form.elements.within.valueAsNumber;
    const only = data.candidates[0] || {};
    return {
      goal: value("goal"),
      memory: memory > 0 ? memory * Number(form.elements.unit.value) : null,
      devices: Number(value("devices")),
      precision: value("precision") === null ? only.precision : value("precision"),
      work: value("work") === null ? only.work : value("work"),
      avoid: Array.from(form.querySelectorAll("[name=avoid]:checked")).map((box) => box.value),
      within: (Number.isNaN(within) ? data.within * 100 : Math.min(100, Math.max(0, within))) / 100,
    };
  }

  function sentence(wish, choice) {
    const pick = choice.pick;
    if (pick === null && choice.provisional.length > 0) {
      const noisy = choice.provisional.filter((one) => one.is_noisy).length;
      const order = choice.provisional.map((one) => one.name + " " + rateText(one.speed)).slice(0, 6).join(", ");
      return "Not settled: " + noisy + " of " + choice.provisional.length + (choice.provisional.length === 1 ? " case" : " cases") +
        (noisy === 1 ? " was" : " were") + " measured on a noisy machine. Provisional order, best first, in tokens/s: " + order + ".";
    }
    if (pick === null) {
      const lean = choice.leftOut.filter((pair) => pair[1] === "does not fit").map((pair) => pair[0]);
      lean.sort((one, other) => one.memory - other.memory);
      return lean.length === 0
        ? "No recommendation for these constraints."
        : "No measured case fits in " + bytesText(wish.memory) + ": the one with the lowest memory, " + lean[0].name + ", needs " + bytesText(lean[0].memory) + ".";
    }
    const memory = pick.memory === null ? "memory not known" : bytesText(pick.memory);
    const others = choice.alike.length - 1;
    const noise = others === 0 ? "" : " " + others + (others === 1 ? " other is" : " others are") + " statistically tied; " + pick.name + " is the simplest case within " + 100 * data.margin + "% of the best cautious estimate.";
    return "Train with " + pick.name + ": " + rateText(pick.speed) + " tokens/s, " + memory + "." + noise;
  }

  function standing(one, choice) {
    if (one === choice.pick) return "recommended";
    if (choice.pick === null) return "not settled";
    if (choice.alike.includes(one)) return "tied with the best";
    const ratio = one.speed[0] / choice.pick.speed[0];
    const percent = 100 * Math.abs(1 - ratio);
    return percent.toFixed(percent >= 9.95 ? 0 : 1) + (ratio <= 1 ? "% slower" : "% faster");
  }

  function row(one, told, look) {
    const line = document.createElement("tr");
    line.dataset.id = one.id;
    line.className = look;
    const head = line.appendChild(document.createElement("th"));
    head.scope = "row";
    const link = head.appendChild(document.createElement("a"));
    link.href = "#case-" + one.id;
    link.appendChild(document.createElement("bdi")).textContent = one.name;
    const cells = [
      rateText(one.speed),
      range(one.speed),
      one.memory === null ? "–" : bytesText(one.memory),
    ];
    if (energy) cells.push(rateText(one.joules));
    cells.forEach((text) => {
      const cell = line.appendChild(document.createElement("td"));
      cell.className = "n";
      cell.textContent = text;
    });
    line.appendChild(document.createElement("td")).textContent = told;
    return line;
  }

  // a limit that is none must not pass for no limit
  function mistake() {
    const field = form.elements.memory;
    const wrong = field.validity.badInput || (field.value !== "" && !(field.valueAsNumber > 0));
    field.setAttribute("aria-invalid", String(wrong));
    return wrong ? "Memory per device must be a number above 0. Leave the field empty for no limit." : "";
  }

  function show() {
    const wrong = mistake();
    if (wrong) {
      document.getElementById("picked").textContent = wrong;
      section.querySelector("tbody").replaceChildren();
      return;
    }
    const wish = wishOf();
    const choice = choose(wish);
    section.querySelector(".within").hidden = wish.goal !== "memory";
    const picked = document.getElementById("picked");
    picked.textContent = sentence(wish, choice);
    picked.dataset.id = choice.pick === null ? "" : choice.pick.id;
    picked.dataset.alike = choice.alike.map((one) => one.id).join(" ");
    const look = (one) => (one === choice.pick ? "taken" : "");
    const rows = choice.ranked.map((one) => row(one, standing(one, choice), look(one)));
    choice.leftOut.forEach((pair) => rows.push(row(pair[0], pair[1], "left-out")));
    section.querySelector("tbody").replaceChildren(...rows.slice(0, MOST_ROWS));
  }

  // the slider goes over the logarithm of what the cases need, from nothing fits to all fit
  function needs() {
    const known = data.candidates.map((one) => one.memory).filter((memory) => memory > 0);
    return known.length === 0 ? null : [Math.min(...known) * 0.98, Math.max(...known) * 1.02];
  }

  function slide() {
    const place = form.elements.slider.valueAsNumber / 100;
    const ends = needs();
    const unit = Number(form.elements.unit.value);
    const bytes = ends && place < 1 ? ends[0] * Math.pow(ends[1] / ends[0], place) : null;
    form.elements.memory.value = bytes === null ? "" : Number((bytes / unit).toPrecision(4));
  }

  function followMemory() {
    const ends = needs();
    const bytes = form.elements.memory.valueAsNumber * Number(form.elements.unit.value);
    const place = ends && bytes > 0 ? Math.log(bytes / ends[0]) / Math.log(ends[1] / ends[0]) : 1;
    form.elements.slider.value = Math.round(100 * Math.min(1, Math.max(0, place)));
  }

  form.addEventListener("input", (event) => {
    document.getElementById("picker-standings").open = true;
    if (event.target.name === "slider") slide();
    if (event.target.name === "memory" || event.target.name === "unit") followMemory();
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  // the fields have their first values again only after the event
  form.addEventListener("reset", () => setTimeout(begin));

  function begin() {
    const ends = needs();
    form.elements.unit.value = ends && ends[1] >= 2 ** 30 ? "1073741824" : "1048576";
    show();
  }

  section.hidden = data.candidates.length === 0;
  begin();
})();
