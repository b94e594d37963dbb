// The viewer of attention maps: pickers, the map, patches over a picture, a row as text, and what the map is.
"use strict";
(() => {
  const { $, read, css, stops, CONFIG, layoutBase, option, short, fill, shade, ink, unpacking, grid, tickAxis,
    onChange } = Page;
  const data = read("map-data");
  if (!data) return;
  const numbers = unpacking(data);
  const state = { example: null, site: null, step: 0, head: "all", view: "weights", row: null };
  const of = (example, site) => data.records.filter((r) => r.example === example && r.site === site);
  const current = () => of(state.example, state.site)[state.step];
  const name = (tokens, i) => `“${tokens[i]}”`;

  function fillPickers() {
    const examples = new Map(data.records.map((r) => [r.example, r.title]));
    state.example = fill($("pick-example"), [...examples].map((entry) => option(...entry)), state.example);
    const sites = new Map();
    data.records.filter((r) => r.example === state.example).forEach((r) => sites.set(r.site, r));
    const records = [...sites.values()];
    const several = new Set(records.map((r) => r.operation)).size > 1;
    const layer = (r) => `layer ${r.layer}${several ? `, ${r.operation}` : ""}`;
    const entries = records.map((r) => {
      const alone = records.filter((other) => layer(other) === layer(r)).length === 1; // two stacks may look the same
      return option(r.site, alone ? layer(r) : `${layer(r)} (${r.site})`);
    });
    state.site = fill($("pick-site"), entries, state.site);
    const moments = of(state.example, state.site);
    state.step = Math.min(state.step, moments.length - 1);
    const slider = $("pick-step");
    slider.max = moments.length - 1;
    slider.value = state.step;
    slider.disabled = $("play").disabled = moments.length < 2;
    const record = current();
    const heads = record.heads.map(String);
    state.head = fill($("pick-head"), [option("all", `all ${heads.length} heads`),
      ...heads.map((h) => option(h, `head ${h}`))], state.head);
    const views = $("pick-view");
    views.disabled = !record.scores;
    if (!record.scores) state.view = "weights";
    views.querySelectorAll("input").forEach((input) => { input.checked = input.value === state.view; });
    // over a picture CLS is first asked for; in a text the last position, which has seen all
    if (state.row === null || state.row >= record.shape[1]) state.row = record.grid ? 0 : record.shape[1] - 1;
  }

  // One scale for every head and step of a layer, so that pictures can be compared
  function range(view) {
    let largest = 0;
    of(state.example, state.site).forEach((record) => {
      if (record[view]) numbers(record, view).values.forEach((v) => {
        if (Math.abs(v) > largest && Number.isFinite(v)) largest = Math.abs(v);
      });
    });
    if (view === "scores") return [-(largest || 1), largest || 1];
    return [0, [0.05, 0.1, 0.2, 0.5, 1].find((top) => largest <= top + 1e-6) || largest];
  }

  function drawMap() {
    const record = current();
    const [, T, S] = record.shape;
    const { values } = numbers(record, state.view);
    const [low, high] = range(state.view);
    const colours = stops(state.view === "weights" ? "--ramp" : "--diverging");
    const queries = data.labels[record.queries];
    const keys = data.labels[record.keys];
    const all = state.head === "all" && record.heads.length > 1;
    const shown = all ? record.heads.map((_, i) => i) : [Math.max(0, record.heads.indexOf(Number(state.head)))];
    const room = $("map").clientWidth;
    const narrow = room < 480;
    const lines = Math.ceil(shown.length / (all ? (narrow ? 2 : room < 800 ? 3 : 4) : 1));
    const columns = Math.ceil(shown.length / lines);
    const longest = narrow ? 8 : 16;
    const width = (tokens) => Math.min(longest, Math.max(...tokens.map((t) => t.length)));
    const upright = width(keys) === 1;
    const font = Math.min(13, Math.max(9, (0.8 * room) / Math.max(S, T)));
    const gap = all ? 14 : 0;
    const left = all ? 1 : width(queries) * font * 0.66 + 12;
    const bottom = all ? 6 : upright ? 22 : width(keys) * font * 0.66 + 12;
    const top = all ? 20 : 4;
    const free = (room - left - 2 - gap * (columns - 1)) / columns;
    const cell = Math.min(free / S, all ? 40 : 44, (all ? 400 : 760) / T);
    const w = Math.max(cell * S, 24);
    const h = Math.max(cell * T, 24);
    const step = h + (all ? gap + 14 : 0);
    const total = { w: left + columns * w + gap * (columns - 1) + 2, h: top + (lines - 1) * step + h + bottom };
    const layout = {
      ...layoutBase(),
      width: total.w,
      height: total.h,
      margin: { l: 0, r: 0, t: 0, b: 0 },
      plot_bgcolor: css("--ground"), // hidden cells are holes; the style sheet hatches what shows through
      dragmode: false,
      annotations: [],
      coloraxis: { cmin: low, cmax: high, colorscale: colours, showscale: false },
    };
    const traces = shown.map((head, n) => {
      const x = left + (n % columns) * (w + gap);
      const y = top + Math.floor(n / columns) * step;
      const suffix = n ? String(n + 1) : "";
      const axis = { showgrid: false, zeroline: false, fixedrange: true, ticks: "", showline: true, mirror: true,
        linecolor: css("--soft"), linewidth: 1, tickfont: { size: font, family: css("--mono"), color: css("--ink") },
        showticklabels: !all };
      layout[`xaxis${suffix}`] = { ...axis, ...tickAxis(keys, w, longest), tickangle: upright ? 0 : -90,
        range: [-0.5, S - 0.5], domain: [x / total.w, (x + w) / total.w], anchor: `y${suffix}` };
      layout[`yaxis${suffix}`] = { ...axis, ...tickAxis(queries, h, longest), range: [T - 0.5, -0.5],
        domain: [1 - (y + h) / total.h, 1 - y / total.h], anchor: `x${suffix}` };
      if (all) layout.annotations.push({ text: `head ${record.heads[head]}`, showarrow: false, xref: "paper",
        yref: "paper", x: x / total.w, y: 1 - (y - 1) / total.h, xanchor: "left", yanchor: "bottom",
        font: { size: 12, color: css("--ink") } });
      return { type: "heatmap", z: grid(values, head * T * S, T, S), coloraxis: "coloraxis", hoverinfo: "none",
        xaxis: `x${suffix}`, yaxis: `y${suffix}` };
    });
    Plotly.react($("map"), traces, layout, CONFIG);

    $("scale-low").textContent = short(low);
    $("scale-high").textContent = short(high);
    $("scale-bar").style.background = `linear-gradient(90deg, ${colours.map(([at, c]) => `${c} ${at * 100}%`).join(", ")})`;
    $("scale-name").textContent = state.view === "weights" ? record.stage.replace("weights", "weight") : "score before softmax";
    $("scale-mask").hidden = !numbers(record, state.view).hidden.includes(1);
    $("hint-one").hidden = all;
    $("hint-all").hidden = !all;
    drawCaption(record);
    drawRow(record, state.row);
    drawPatches(record, state.row);
  }

  // ---------------------------------------------------------------- patches of a picture
  // The picture, and over it, head by head, what one position attends to; a click on a patch asks for its row
  function drawPatches(record, row) {
    $("patches").hidden = !record.grid;
    if (!record.grid) return;
    const [rows, columns] = record.grid;
    const [, T, S] = record.shape;
    const prefix = S - rows * columns;
    const labels = data.labels[record.queries];
    const one = record.heads.indexOf(Number(state.head));
    const heads = one < 0 ? record.heads.map((_, i) => i) : [one];
    const { values } = numbers(record, "weights");
    const at = (head, patch) => values[(head * T + row) * S + prefix + patch];
    $("prefix").replaceChildren(...labels.slice(0, prefix).map((token, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = token;
      button.setAttribute("aria-pressed", String(i === row));
      button.addEventListener("click", () => { state.row = i; refresh(); toAddress(); });
      return button;
    }));
    let top = 0;
    record.heads.forEach((_, head) => {
      for (let patch = 0; patch < rows * columns; patch++) top = Math.max(top, at(head, patch) || 0);
    });
    const strong = document.createElement("b");
    strong.textContent = name(labels, row);
    $("patches-title").replaceChildren(...(record.outcome ? [`${record.outcome}. `] : []), "What ", strong,
      ` (${row < prefix ? "a token without a place" : "row,column of the patch"}) attends to; the brightest patch has ${short(top)}. Click a patch to see its row.`);
    Patches.load(data.pictures[record.picture], (image) => {
      if (current() !== record) return;
      const cell = Math.max(6, Math.floor((heads.length > 1 ? 190 : 340) / Math.max(rows, columns)));
      const shown = [[null, "picture"], ...heads.map((head) => [head, `head ${record.heads[head]}`])];
      $("overlays").replaceChildren(...shown.map(([head, title]) => {
        const figure = document.createElement("figure");
        const caption = document.createElement("figcaption");
        caption.textContent = title;
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [columns * cell, rows * cell];
        Patches.paint(canvas.getContext("2d"), image, head === null ? null : (patch) => at(head, patch) / (top || 1), rows, columns,
          cell, row - prefix);
        canvas.title = "click a patch to see its row";
        canvas.addEventListener("click", (event) => {
          const box = canvas.getBoundingClientRect();
          const x = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
          const y = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
          state.row = prefix + Math.max(0, y) * columns + Math.max(0, x);
          refresh();
          toAddress();
        });
        figure.append(caption, canvas);
        return figure;
      }));
    });
  }

  function entropy(record, heads) {
    const { values, hidden } = numbers(record, "weights");
    const [, T, S] = record.shape;
    let sum = 0;
    let rows = 0;
    for (const head of heads) {
      for (let i = 0; i < T; i++) {
        let bits = 0;
        let seen = false;
        for (let j = 0, at = (head * T + i) * S; j < S; j++, at++) {
          seen = seen || !hidden[at];
          if (values[at] < 0) return NaN; // no shares: entropy does not apply
          if (values[at] > 0) bits -= values[at] * Math.log2(values[at]);
        }
        if (seen) { sum += bits; rows += 1; }
      }
    }
    return rows ? sum / rows : NaN;
  }

  function drawCaption(record) {
    const one = record.heads.indexOf(Number(state.head));
    const heads = state.head === "all" ? record.heads.map((_, i) => i) : [one];
    const which = state.head === "all" ? `${record.heads.length} heads` : `head ${state.head}`;
    const stage = state.view === "weights" ? record.stage : "scores before softmax";
    const at = record.checkpoint ? `checkpoint ${record.checkpoint}` : `step ${record.step.toLocaleString("en")}`;
    const operation = record.operation.charAt(0).toUpperCase() + record.operation.slice(1);
    $("map-title").textContent = `${operation}, layer ${record.layer}, ${which}: ${stage}, ${at}`;
    const moments = of(state.example, state.site);
    $("step-shown").textContent = `${record.step.toLocaleString("en")} (${state.step + 1} of ${moments.length})`;
    $("pick-step").setAttribute("aria-valuetext", `step ${record.step}`);
    const facts = [
      ["Operation", record.operation], ["Layer", `${record.layer} (${record.site})`], ["Head", which], ["Shows", stage],
      ["Mask", record.mask], ["Score", record.score], ["Example", record.title],
      ...(record.outcome ? [["Outcome", record.outcome]] : []),
      ["Step", record.step.toLocaleString("en")],
      ["Parameters", record.checkpoint ? `of ${record.checkpoint}` : "as they were in training"],
      ["Data", record.data.slice(0, 12)], ["Backend", `${record.backend} (${record.kernel})`], ["Dtype", record.dtype],
      ["Capture error", record.capture_error === null ? "not a number" : record.capture_error.toExponential(1)],
      ...(Number.isNaN(entropy(record, heads)) ? [] : [["Row entropy", `mean ${short(entropy(record, heads))} bits (0: one key has all)`]]),
    ];
    $("caption").replaceChildren(...facts.flatMap(([term, text]) => {
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = text;
      if (term === "Example") dd.title = record.example;
      return [dt, dd];
    }));
  }

  // One row of the map as text: the keys, shaded by the weight that this query gives them
  function drawRow(record, row) {
    const [, T, S] = record.shape;
    const head = record.heads.indexOf(Number(state.head));
    $("row").hidden = head < 0;
    if (head < 0) return;
    const { values, hidden } = numbers(record, "weights");
    const queries = data.labels[record.queries];
    const keys = data.labels[record.keys];
    const offset = (head * T + row) * S;
    const best = Array.from({ length: S }, (_, j) => j).filter((j) => values[offset + j] > 0)
      .sort((a, b) => values[offset + b] - values[offset + a]).slice(0, 3);
    const strong = document.createElement("b");
    strong.textContent = `query ${row} ${name(queries, row)}`;
    $("row-title").replaceChildren("Weights of ", strong, best.length
      ? `: ${best.map((j) => `${short(values[offset + j])} on ${name(keys, j)} (${j})`).join(", ")}`
      : ": none, the mask hides every key");
    const ramp = stops("--ramp");
    const [, top] = range("weights");
    $("row-tokens").className = Math.max(...keys.map((k) => k.length)) > 1 ? "words" : "";
    $("row-tokens").replaceChildren(...keys.map((token, j) => {
      const span = document.createElement("span");
      const value = values[offset + j];
      span.textContent = token;
      span.title = hidden[offset + j] ? "hidden by the mask" : `key ${j}: ${short(value)}`;
      if (hidden[offset + j]) span.className = "hidden";
      else if (Number.isFinite(value)) {
        const [r, g, b] = shade(ramp, value / top);
        span.style.background = `rgb(${r},${g},${b})`;
        span.style.color = ink([r, g, b]);
      }
      if (record.kind === "self" && j === row) span.classList.add("self");
      return span;
    }));
  }

  function point(event) {
    const record = current();
    const [, T, S] = record.shape;
    const { x: j, y: i, curveNumber } = event.points[0];
    const head = state.head === "all" ? curveNumber : record.heads.indexOf(Number(state.head));
    const at = (head * T + i) * S + j;
    return { record, head, i, j, at };
  }

  function showTip(event) {
    const { record, head, i, j, at } = point(event);
    const { values, hidden } = numbers(record, state.view);
    const value = hidden[at] ? "hidden by the mask" : `${state.view === "weights" ? "weight" : "score"} ${short(values[at])}`;
    const tip = $("tip");
    tip.textContent = `${state.head === "all" ? `head ${record.heads[head]}\n` : ""}` +
      `query ${i} ${name(data.labels[record.queries], i)}\nkey ${j} ${name(data.labels[record.keys], j)}\n${value}`;
    tip.hidden = false;
    const { clientX: x, clientY: y } = event.event;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18}px`;
    drawRow(record, i);
  }

  function refresh() {
    fillPickers();
    drawMap();
  }

  // The address says what is shown, so a map can be pointed at: report.html#site=...&head=3&step=4000&view=scores
  function toAddress() {
    const { example, site, head, view, row } = state;
    const query = new URLSearchParams({ example, site, head, view, row, step: current().step });
    try {
      history.replaceState(null, "", `#${query}`);
    } catch { /* a page inside a dashboard's frame has no address of its own */ }
  }

  function fromAddress() {
    const query = new URLSearchParams(location.hash.slice(1));
    ["example", "site", "head", "view"].forEach((field) => { state[field] = query.get(field) || state[field]; });
    if (!["weights", "scores"].includes(state.view)) state.view = "weights";
    state.row = /^\d+$/.test(query.get("row")) ? Number(query.get("row")) : null;
    const steps = [...new Set(data.records.map((r) => r.step))];
    state.step = query.has("step") ? steps.indexOf(Number(query.get("step"))) : -1;
    if (state.step < 0) state.step = Infinity; // the latest moment
  }

  function startMaps() {
    fromAddress();
    refresh();
    const picks = { "pick-example": "example", "pick-site": "site", "pick-head": "head" };
    Object.entries(picks).forEach(([id, field]) => $(id).addEventListener("change", () => {
      state[field] = $(id).value;
      if (field === "example") state.row = null;
    }));
    $("pick-view").addEventListener("change", (event) => { state.view = event.target.value; });
    $("pick-step").addEventListener("input", () => { state.step = Number($("pick-step").value); refresh(); });
    $("pickers").addEventListener("change", () => { refresh(); toAddress(); }); // after the listeners of its fields
    $("pickers").addEventListener("submit", (event) => event.preventDefault());
    let timer = null;
    $("play").addEventListener("click", () => {
      const last = of(state.example, state.site).length - 1;
      clearInterval(timer);
      state.step = 0;
      refresh();
      timer = setInterval(() => {
        state.step = Math.min(state.step + 1, last);
        if (state.step >= last) clearInterval(timer);
        refresh();
      }, 800);
    });
    $("map").on("plotly_hover", showTip);
    $("map").on("plotly_unhover", () => { $("tip").hidden = true; drawRow(current(), state.row); });
    $("map").on("plotly_click", (event) => {
      const { record, head, i } = point(event);
      if (state.head === "all") state.head = String(record.heads[head]);
      state.row = i;
      $("tip").hidden = true;
      refresh();
      toAddress();
    });
  }

  startMaps();
  onChange(drawMap);
})();
