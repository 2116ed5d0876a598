"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Tables sort by the column whose heading is pressed; cells without a value stay last.
  const sortBy = (heading) => {
    const table = heading.closest("table");
    const place = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending"
      || (!heading.hasAttribute("aria-sort") && heading.classList.contains("n") && !heading.dataset.low);
    all("th", table.tHead).forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[place].dataset.value;
    const numeric = heading.classList.contains("n");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  };
  all("thead th button").forEach((button) => button.addEventListener("click", () => sortBy(button.closest("th"))));

  // Light, dark, or as the system has it.
  const theme = document.getElementById("theme");
  const root = document.documentElement;
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not allowed: fine */ } };
  const recall = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const themes = ["auto", "light", "dark"];
  const show = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    theme.dataset.now = name;
  };
  show(themes.includes(recall("gdod-theme")) ? recall("gdod-theme") : "auto");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length];
    show(next);
    remember("gdod-theme", next);
  });

  // Curves by steps or by time.
  all(".switch").forEach((group) => { group.hidden = false; });
  all(".switch button").forEach((button) => button.addEventListener("click", () => {
    document.body.classList.toggle("by-time", button.value === "time");
    all(".switch button").forEach((other) => other.setAttribute("aria-pressed", String(other.value === button.value)));
  }));

  // Closed parts would be missing on paper.
  addEventListener("beforeprint", () => all("details.model").forEach((part) => { part.open = true; }));

  // Methods singled out in all plots.
  const update = (study) => {
    const chosen = new Set(all('.legend button[data-series][aria-pressed="true"]', study).map((b) => b.dataset.series));
    study.classList.toggle("focused", chosen.size > 0);
    all(".series", study).forEach((line) => line.classList.toggle("chosen", chosen.has(line.dataset.series)));
  };
  all(".legend button[data-series]").forEach((button) => button.addEventListener("click", () => {
    const study = button.closest(".study");
    const pressed = button.getAttribute("aria-pressed") !== "true";
    all(`.legend button[data-series="${button.dataset.series}"]`, study)
      .forEach((same) => same.setAttribute("aria-pressed", String(pressed)));
    update(study);
  }));

  // The value under the pointer.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  const places = new WeakMap();
  const points = (line) => {
    if (!places.has(line)) {
      const numbers = line.getAttribute("d").match(/-?[\d.]+/g).map(Number);
      const found = [];
      for (let i = 0; i < numbers.length; i += 2) found.push([numbers[i], numbers[i + 1]]);
      places.set(line, found);
    }
    return places.get(line);
  };
  const digits = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 5 });
  all("svg.chart").forEach((chart) => {
    const [left, right, top, bottom] = chart.dataset.box.split(" ").map(Number);
    const [x0, x1] = chart.dataset.x.split(" ").map(Number);
    const [y0, y1] = chart.dataset.y.split(" ").map(Number);
    chart.addEventListener("pointermove", (event) => {
      const frame = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / frame.width;
      const [x, y] = [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
      let best = null;
      const focused = chart.closest(".study").classList.contains("focused");
      all(focused ? ".series.chosen" : ".series", chart).forEach((line) => {
        points(line.querySelector(".line")).forEach(([px, py]) => {
          const far = (px - x) ** 2 + (py - y) ** 2;
          if (py >= top - 4 && py <= bottom + 4 && (!best || far < best.far)) best = { far, px, py, line };
        });
      });
      tip.hidden = !best || best.far > 900;
      if (tip.hidden) return;
      const vx = x0 + (best.px - left) / (right - left) * (x1 - x0);
      const vy = y0 + (bottom - best.py) / (bottom - top) * (y1 - y0);
      const name = document.createElement("strong");
      name.textContent = best.line.dataset.name;
      tip.replaceChildren(name, document.createElement("br"),
        `${chart.dataset.ylabel} ${digits(vy)}, ${chart.dataset.xlabel} ${digits(vx)}`);
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 10)}px`;
    });
    chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  });
})();
