// What the scripts of a page share: its data, its colours, numbers of maps, and drawing again when the window changes.
"use strict";
const Page = (() => {
  const $ = (id) => document.getElementById(id);
  const read = (id) => ($(id) ? JSON.parse($(id).textContent) : null);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const stops = (name) => css(name).split(",").map((stop) => stop.trim().split(/\s+/)).map(([at, c]) => [Number(at), c]);
  // Plotly reads a subset of HTML in its texts: what comes from data must not be taken for markup there.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const CONFIG = { displaylogo: false, displayModeBar: false, responsive: false, showTips: false };
  const layoutBase = () => ({
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: css("--soft"), size: 12 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } },
  });
  const option = (value, text) => {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    return made;
  };

  // Text into an element made here: never markup, whatever the text holds
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const short = (value) => (Number.isFinite(value) ? Number(value.toPrecision(3)).toString() : "not a number");

  function fill(select, entries, wanted) {
    select.replaceChildren(...entries);
    const values = [...select.options].map((o) => o.value);
    select.value = values.includes(wanted) ? wanted : values[0];
    return select.value;
  }

  // A colour of a scale, [red, green, blue], at a share of it
  function shade(ramp, share) {
    const at = Math.min(Math.max(share, 0), 1);
    const i = Math.max(1, ramp.findIndex(([stop]) => stop >= at));
    const [[a, from], [b, to]] = [ramp[i - 1], ramp[i]];
    const part = (colour, k) => parseInt(colour.slice(1 + 2 * k, 3 + 2 * k), 16);
    return [0, 1, 2].map((k) => Math.round(part(from, k) + ((at - a) / (b - a)) * (part(to, k) - part(from, k))));
  }

  // Dark or light letters over a colour
  const ink = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1c2430" : "#ffffff");

  // ---------------------------------------------------------------- numbers of maps, as map_data.py packs them
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24;
  }

  // A function of a record and "weights" or "scores": {values: Float32Array (NaN where hidden), hidden: Uint8Array}
  function unpacking(data) {
    const decoded = new Map();
    return (record, view) => {
      const key = `${data.records.indexOf(record)} ${view}`;
      if (!decoded.has(key)) {
        const size = record.shape.reduce((a, b) => a * b, 1);
        const mask = bytes(data.masks[record.visible]);
        const packed = bytes(record[view]);
        const values = new Float32Array(size).fill(NaN);
        const hidden = new Uint8Array(size);
        for (let i = 0, at = 0; i < size; i++) {
          if ((mask[i >> 3] >> (7 - (i & 7))) & 1) {
            values[i] = half(packed[at] | (packed[at + 1] << 8));
            at += 2;
          } else hidden[i] = 1;
        }
        decoded.set(key, { values, hidden });
      }
      return decoded.get(key);
    };
  }

  const grid = (values, offset, rows, columns) => Array.from({ length: rows }, (_, i) =>
    Array.from(values.subarray(offset + i * columns, offset + (i + 1) * columns), (v) => (Number.isFinite(v) ? v : null)));

  function tickAxis(tokens, pixels, longest) {
    const every = Math.max(1, Math.ceil(9 / (pixels / tokens.length)));
    const at = tokens.map((_, i) => i).filter((i) => i % every === 0);
    const cut = (t) => (t.length > longest ? `${t.slice(0, longest - 1)}…` : t);
    // whole numbers with texts, not a category axis: there, repeated tokens would fall together
    return { tickmode: "array", tickvals: at, ticktext: at.map((i) => plain(cut(tokens[i]))) };
  }

  // ---------------------------------------------------------------- again when the width or the theme changes
  const drawings = [];
  const drawAgain = () => drawings.forEach((draw) => draw());
  let width = innerWidth;
  let waiting = null;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar changes the height only
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAgain, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
  const onChange = (draw) => drawings.push(draw);

  return { $, read, css, stops, plain, CONFIG, layoutBase, option, element, short, fill, shade, ink, unpacking, grid,
    tickAxis, onChange };
})();
