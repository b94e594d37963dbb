// Several runs: a table to sort, one line per run in the curves, and the maps of one example side by side.
"use strict";
(() => {
  const { $, read, css, stops, plain, CONFIG, layoutBase, option, element, short, fill, shade, unpacking, onChange } = Page;
  const { metric, best, runs } = read("curve-data");
  if (!runs.length) return;
  const lines = [...$("runs").tBodies[0].rows];
  const ticked = (run) => lines.find((line) => Number(line.dataset.run) === run).querySelector("input").checked;

  // Seeds of one configuration share a colour; where there is but one configuration, every run has its own.
  const several = new Set(runs.map((run) => run.group)).size > 1;
  const colour = (run) => {
    const place = several ? runs[run].group - 1 : run;
    if (place < 4) return css(`--series-${place}`);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return `hsl(${Math.round(place * 137.5) % 360} 55% ${dark ? 68 : 42}%)`; // the golden angle: neighbours differ
  };
  const paintKeys = () => lines.forEach((line) => {
    line.querySelector(".key").style.background = colour(Number(line.dataset.run));
  });

  // ---------------------------------------------------------------- sorting the table
  function sortBy(head) {
    const column = Number(head.querySelector("button").dataset.column) + 1; // behind the boxes to tick
    const up = head.getAttribute("aria-sort") !== "ascending";
    [...head.parentElement.cells].forEach((cell) => cell.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const by = (line) => line.cells[column].dataset.by;
    const compared = (a, b) => {
      const [x, y] = [Number(a), Number(b)];
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // numbers before words
      return Number.isNaN(x) ? a.localeCompare(b) : x - y;
    };
    const [known, unknown] = [lines.filter((line) => by(line) !== ""), lines.filter((line) => by(line) === "")];
    known.sort((a, b) => (up ? 1 : -1) * compared(by(a), by(b)));
    $("runs").tBodies[0].replaceChildren(...known, ...unknown);
  }
  $("runs").tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) sortBy(button.closest("th"));
  });

  // ---------------------------------------------------------------- learning curves
  function drawCurves() {
    const name = $("pick-metric").value;
    const axis = $("pick-axis").value;
    const traces = runs.flatMap((run, i) => run.curves.filter((curve) => curve.name === name && ticked(i)).map((curve) => ({
      type: "scatter",
      mode: curve.values.length > 60 ? "lines" : "lines+markers",
      name: plain(run.name),
      x: curve[axis] || curve.steps,
      y: curve.values,
      line: { color: colour(i), width: i === best ? 3 : 1.6 },
      marker: { size: 5 },
      hovertemplate: "%{y:.4g} at %{x}",
    })));
    const grid = { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true };
    const base = layoutBase();
    Plotly.react($("curve"), traces, {
      ...base,
      hoverlabel: { ...base.hoverlabel, namelength: -1 },
      width: $("curves").clientWidth,
      height: 380,
      margin: { l: 44, r: 8, t: 8, b: 44 },
      hovermode: "closest",
      showlegend: traces.length <= ($("curves").clientWidth < 480 ? 4 : 12), // more would leave no room; point at a line
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: { ...grid, title: { text: axis === "seconds" ? "wall time (s)" : "step" } },
      yaxis: { ...grid, title: { text: plain(name) } },
    }, CONFIG);
  }

  function startCurves() {
    const names = [...new Set(runs.flatMap((run) => run.curves.map((curve) => curve.name)))];
    names.sort((a, b) => (b === metric) - (a === metric) || (b === "val/loss") - (a === "val/loss") || a.localeCompare(b));
    $("curves").hidden = !names.length;
    if (!names.length) return;
    names.forEach((name) => $("pick-metric").append(option(name, name)));
    $("pick-axis").parentElement.hidden = !runs.some((run) => run.curves.some((curve) => curve.seconds));
    $("curve-pickers").addEventListener("change", drawCurves);
    drawCurves();
    onChange(drawCurves);
  }

  // ---------------------------------------------------------------- maps side by side
  const data = read("map-data");
  const numbers = data && unpacking(data);
  const state = { example: null, layer: null, head: "mean", cell: null };

  // An example is the same only where its labels and its picture are: seeds may split the data differently.
  const identity = (record) => JSON.stringify([record.example, record.queries, record.keys, record.picture]);
  const layers = new Map(); // record -> the name of its layer, the same in models of different shape
  function nameLayers() {
    const taken = new Set();
    data.records.forEach((record) => {
      const place = (n) => `layer ${record.layer}, ${record.operation}${n > 1 ? ` (${n})` : ""}`; // two stacks may look alike
      let n = 1;
      while (taken.has(`${record.run} ${record.example} ${place(n)}`)) n += 1;
      taken.add(`${record.run} ${record.example} ${place(n)}`);
      layers.set(record, place(n));
    });
  }

  function fillPickers() {
    const examples = new Map();
    data.records.forEach((record) => {
      const key = identity(record);
      examples.set(key, { name: record.title, runs: (examples.get(key)?.runs || new Set()).add(record.run) });
    });
    const ordered = [...examples].sort(([, a], [, b]) => b.runs.size - a.runs.size);
    state.example = fill($("pick-example"), ordered.map(([key, { name, runs: of }]) =>
      option(key, `${name} (${of.size} of ${runs.length} runs)`)), state.example);
    const shown = data.records.filter((record) => identity(record) === state.example);
    state.layer = fill($("pick-layer"), [...new Set(shown.map((record) => layers.get(record)))].map((l) => option(l, l)), state.layer);
    const heads = [...new Set(shown.filter((r) => layers.get(r) === state.layer).flatMap((r) => r.heads))].sort((a, b) => a - b);
    state.head = fill($("pick-head"), [option("mean", "mean over the heads"), option("all", "every head"),
      ...heads.map((head) => option(String(head), `head ${head}`))], state.head);
  }

  const chosen = () => data.records.filter((record) =>
    identity(record) === state.example && layers.get(record) === state.layer && ticked(record.run));

  // What is shown of a record: [{title, at(i, j)}], one for each head or one for their mean
  function sheetsOf(record) {
    const { values } = numbers(record, "weights");
    const [H, T, S] = record.shape;
    const one = (h) => (i, j) => values[(h * T + i) * S + j];
    if (state.head === "mean") {
      const mean = (i, j) => {
        let sum = 0;
        for (let h = 0; h < H; h++) sum += values[(h * T + i) * S + j];
        return sum / H;
      };
      return [{ title: `mean over ${H} heads`, at: mean }];
    }
    const places = record.heads.map((_, h) => h).filter((h) => state.head === "all" || record.heads[h] === Number(state.head));
    return places.map((h) => ({ title: `head ${record.heads[h]}`, at: one(h) }));
  }

  // One scale for all that is shown; a delta rule's weights may be negative, and then 0 stands in its middle
  function scaleOf(records) {
    let [low, high] = [0, 0];
    records.forEach((record) => sheetsOf(record).forEach(({ at }) => {
      for (let i = 0; i < record.shape[1]; i++) {
        for (let j = 0; j < record.shape[2]; j++) {
          const value = at(i, j);
          if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
        }
      }
    }));
    const most = Math.max(high, -low);
    const top = [0.05, 0.1, 0.2, 0.5, 1].find((limit) => most <= limit + 1e-6) || most;
    return low < 0 ? { low: -top, top, colours: stops("--diverging") } : { low: 0, top, colours: stops("--ramp") };
  }

  function hatching(context) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 5;
    const ink = tile.getContext("2d");
    ink.fillStyle = css("--ground");
    ink.fillRect(0, 0, 5, 5);
    ink.strokeStyle = css("--hatching");
    ink.beginPath();
    ink.moveTo(-1, 6);
    ink.lineTo(6, -1);
    ink.stroke();
    return context.createPattern(tile, "repeat");
  }

  // One matrix; `frame` draws it again with the cell that is being read in a frame
  function matrix(record, at, { low, top, colours }, room) {
    const [, T, S] = record.shape;
    const cell = Math.max(2, Math.floor(room / Math.max(T, S)));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [S * cell, T * cell];
    const context = canvas.getContext("2d");
    context.fillStyle = hatching(context);
    context.fillRect(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < T; i++) {
      for (let j = 0; j < S; j++) {
        const value = at(i, j);
        if (!Number.isFinite(value)) continue;
        context.fillStyle = `rgb(${shade(colours, (value - low) / (top - low)).join(",")})`;
        context.fillRect(j * cell, i * cell, cell, cell);
      }
    }
    const clean = context.getImageData(0, 0, canvas.width, canvas.height);
    const frame = () => {
      context.putImageData(clean, 0, 0);
      if (!state.cell) return;
      context.strokeStyle = css("--series-1");
      context.lineWidth = 1.5;
      context.strokeRect(state.cell[1] * cell - 0.5, state.cell[0] * cell - 0.5, cell + 1, cell + 1);
    };
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      const part = (to, from, length, count) => Math.max(0, Math.min(count - 1, Math.floor(((to - from) / length) * count)));
      return [part(event.clientY, box.top, box.height, T), part(event.clientX, box.left, box.width, S)];
    };
    canvas.addEventListener("pointermove", (event) => { if (!kept) pointAt(place(event)); });
    canvas.addEventListener("click", (event) => { kept = !kept; pointAt(place(event)); });
    return { canvas, frame };
  }

  // What one query attends to, as light over the picture that the patches are of
  function overlay(record, at, room) {
    const [rows, columns] = record.grid;
    const prefix = record.shape[2] - rows * columns;
    const cell = Math.max(4, Math.floor(room / Math.max(rows, columns)));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [columns * cell, rows * cell];
    const frame = () => {
      const row = state.cell ? state.cell[0] : 0;
      let top = 0;
      for (let patch = 0; patch < rows * columns; patch++) top = Math.max(top, at(row, prefix + patch) || 0);
      Patches.load(data.pictures[record.picture], (image) => Patches.paint(canvas.getContext("2d"), image,
        (patch) => at(row, prefix + patch) / (top || 1), rows, columns, cell, row - prefix));
    };
    return { canvas, frame };
  }

  let cards = []; // functions that bring a card up to date with the cell being read
  let kept = false; // whether a click holds that cell
  function pointAt(cell) {
    state.cell = cell;
    cards.forEach((update) => update());
  }

  function card(record, scale) {
    const figure = element("figure");
    const caption = element("figcaption");
    const key = element("i", "", "key");
    key.style.background = colour(record.run);
    const title = element("b");
    title.append(key, runs[record.run].name);
    caption.append(title, record.outcome || "");
    const sheets = sheetsOf(record);
    const box = element("div", undefined, "sheets");
    const small = sheets.length > 1 || record.grid;
    const frames = sheets.flatMap(({ title: name, at }) => {
      const drawn = [matrix(record, at, scale, small ? 120 : 250), ...(record.grid ? [overlay(record, at, 120)] : [])];
      const titles = [name, "that row over the picture"];
      box.append(...drawn.map(({ canvas }, n) => {
        const part = element("div");
        part.append(canvas, element("small", titles[n]));
        return part;
      }));
      return drawn.map(({ frame }) => frame);
    });
    const reading = element("p", "", "reading");
    const queries = data.labels[record.queries];
    const keys = data.labels[record.keys];
    const { hidden } = numbers(record, "weights");
    const update = () => {
      frames.forEach((frame) => frame());
      if (!state.cell || !sheets.length) return;
      const [i, j] = state.cell;
      const values = hidden[i * record.shape[2] + j] ? "hidden by the mask" : sheets.map(({ at }) => short(at(i, j))).join(", ");
      reading.textContent = `query ${i} “${queries[i]}”, key ${j} “${keys[j]}”: ${values}`;
    };
    cards.push(update);
    const facts = [`${record.operation}, ${state.layer.split(",")[0]}`, record.stage, `mask: ${record.mask}`, record.score,
      `step ${record.step.toLocaleString("en")}`, `data ${record.data.slice(0, 12)}`, `${record.backend} (${record.kernel})`, record.dtype,
      `capture error ${record.capture_error === null ? "not a number" : record.capture_error.toExponential(1)}`];
    figure.append(caption, box, reading, element("p", facts.join("; "), "facts"));
    if (!sheets.length) reading.textContent = `This run has no head ${state.head} in this layer.`;
    update();
    return figure;
  }

  function drawMaps() {
    const records = chosen();
    const scale = scaleOf(records);
    cards = [];
    $("side-by-side").replaceChildren(...records.map((record) => card(record, scale)));
    $("scale-low").textContent = short(scale.low);
    $("scale-high").textContent = short(scale.top);
    $("scale-bar").style.background =
      `linear-gradient(90deg, ${scale.colours.map(([at, c]) => `${c} ${at * 100}%`).join(", ")})`;
    $("scale-mask").hidden = !records.some((record) => numbers(record, "weights").hidden.includes(1));
  }

  function startMaps() {
    if (!data) return;
    nameLayers();
    fillPickers();
    drawMaps();
    const picks = { "pick-example": "example", "pick-layer": "layer", "pick-head": "head" };
    $("pickers").addEventListener("change", (event) => {
      state[picks[event.target.id]] = event.target.value;
      if (event.target.id === "pick-example") [state.cell, kept] = [null, false];
      fillPickers();
      drawMaps();
    });
    onChange(drawMaps);
  }

  paintKeys();
  onChange(paintKeys);
  startCurves();
  startMaps();
  $("runs").addEventListener("change", () => {
    if (!$("curves").hidden) drawCurves();
    if (data) drawMaps();
  });
})();
