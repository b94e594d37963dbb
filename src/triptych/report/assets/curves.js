// Learning curves, and the tables of counts that have too many rows for numbers.
"use strict";
(() => {
  const { $, read, css, plain, CONFIG, layoutBase, option, onChange } = Page;

  // ---------------------------------------------------------------- learning curves
  const curves = read("curve-data") || [];
  // "train/loss", "val/loss", "train/loss_step": one picture per last word, one line per column
  const family = (name) => name.split("/").pop().replace(/_(step|epoch)$/, "");
  const families = [...new Set(curves.map((curve) => family(curve.name)))];
  families.sort((a, b) => (b === "loss") - (a === "loss") || a.localeCompare(b));

  function drawCurves() {
    const chosen = curves.filter((curve) => family(curve.name) === $("pick-metric").value);
    const axis = $("pick-axis").value;
    const traces = chosen.map((curve, i) => {
      const often = curve.values.length > 60;
      return {
        type: "scatter",
        mode: often ? "lines" : "lines+markers",
        name: plain(curve.name),
        x: curve[axis] || curve.steps,
        y: curve.values,
        line: { color: css(`--series-${i % 4}`), width: often ? 1.4 : 2.2 },
        marker: { size: 5 },
        hovertemplate: "%{y:.4g}",
      };
    });
    const grid = { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true };
    Plotly.react($("curve"), traces, {
      ...layoutBase(),
      width: $("curves").clientWidth,
      height: 300,
      margin: { l: 44, r: 8, t: 8, b: 44 },
      hovermode: "x unified",
      showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: { ...grid, title: { text: axis === "seconds" ? "wall time (s)" : "step" } },
      yaxis: { ...grid },
    }, CONFIG);
  }

  if (curves.length) {
    families.forEach((name) => $("pick-metric").append(option(name, name)));
    $("pick-metric").parentElement.hidden = families.length < 2;
    $("pick-axis").parentElement.hidden = !curves.some((curve) => curve.seconds);
    $("curve-pickers").addEventListener("change", drawCurves);
  } else if ($("curves")) {
    $("curves").hidden = true;
  }

  // ---------------------------------------------------------------- tables with too many rows for numbers
  const tables = read("table-data") || [];

  function drawTables() {
    tables.forEach(({ id, names, rows, columns, filled }) => {
      const box = $(id);
      if (!box.closest("details").open) return;
      const size = names.length;
      const empty = () => Array.from({ length: size }, () => Array(size).fill(null));
      const [shades, texts] = [empty(), empty()];
      const sums = Array(size).fill(0);
      filled.forEach(([row, , count]) => { sums[row] += count; });
      filled.forEach(([row, column, count]) => {
        shades[row][column] = Math.sqrt(count / sums[row]) * (row === column ? 1 : -1);
        texts[row][column] = plain(`${rows} ${names[row]}, ${columns} ${names[column]}: ${count} of ${sums[row]}`);
      });
      const side = Math.min(box.clientWidth, 720);
      const axis = { showgrid: false, zeroline: false, showticklabels: false, ticks: "", fixedrange: true, showline: true,
        mirror: true, linecolor: css("--line") };
      const colour = (name, share) => `rgb(${css(name).split(" ").join(",")},${share})`.replace("rgb", "rgba");
      Plotly.react(box, [{ type: "heatmap", z: shades, text: texts, hovertemplate: "%{text}<extra></extra>",
        hoverongaps: false, showscale: false, zmin: -1, zmax: 1, colorscale: [[0, colour("--wrong", 1)],
          [0.5, colour("--wrong", 0.05)], [0.5, colour("--right", 0.05)], [1, colour("--right", 1)]] }], {
        ...layoutBase(), width: side, height: side, margin: { l: 26, r: 2, t: 2, b: 26 }, dragmode: false,
        xaxis: { ...axis, title: { text: plain(columns), standoff: 4 }, range: [-0.5, size - 0.5] },
        yaxis: { ...axis, title: { text: plain(rows), standoff: 4 }, range: [size - 0.5, -0.5] },
      }, CONFIG);
    });
  }
  document.querySelectorAll(".counts details").forEach((each) => each.addEventListener("toggle", drawTables));

  const draw = () => {
    if (curves.length) drawCurves();
    drawTables();
  };
  draw();
  onChange(draw);
})();
