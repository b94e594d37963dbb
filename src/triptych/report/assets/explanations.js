// Every explanation method on one example: light over the patches of a picture, or colour behind the words of a text.
"use strict";
(() => {
  const { $, read, stops, option, element, short, fill, shade, ink, onChange } = Page;
  const data = read("explained-data");
  if (!data) return;
  const state = { example: null, output: null, method: "all" };
  const largest = (scores) => Math.max(...scores.map((score) => Math.abs(score || 0)), 0);
  const current = () => data.examples.find((each) => each.example === state.example && each.output === state.output);

  function fillPickers() {
    const examples = new Map(data.examples.map((each) => [each.example, each.title]));
    state.example = fill($("pick-explained"), [...examples].map((entry) => option(...entry)), state.example);
    const outputs = data.examples.filter((each) => each.example === state.example).map((each) => each.output);
    state.output = fill($("pick-output"), outputs.map((each) => option(each, each)), state.output);
    $("pick-output").parentElement.hidden = outputs.length < 2;
    const methods = Object.keys(current().scores);
    const entries = methods.map((each) => option(each, title(each)));
    state.method = fill($("pick-method"), [option("all", `all ${methods.length} methods`), ...entries], state.method);
  }

  const title = (method) => (data.methods[method] || {}).title || method;

  // The picture under the light of a method's scores, or, without one, as it is
  function canvas(image, scores, [rows, columns], side, say) {
    const made = document.createElement("canvas");
    const cell = Math.max(6, Math.floor(side / Math.max(rows, columns)));
    [made.width, made.height] = [columns * cell, rows * cell];
    const top = scores ? largest(scores) || 1 : 1;
    Patches.paint(made.getContext("2d"), image, scores && ((patch) => (scores[patch] || 0) / top), rows, columns, cell, -1);
    made.addEventListener("mousemove", (event) => {
      const box = made.getBoundingClientRect();
      const x = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      const y = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      made.title = say(y * columns + x);
    });
    return made;
  }

  function words(units, scores, say) {
    const top = largest(scores) || 1;
    const [warm, cold] = [stops("--warm"), stops("--cool")];
    const line = element("p", undefined, units.some((unit) => unit.length > 1) ? "units words" : "units");
    line.append(...units.map((unit, i) => {
      const span = element("span", unit);
      const score = scores[i] || 0;
      const colour = shade(score < 0 ? cold : warm, Math.abs(score) / top);
      span.style.background = `rgb(${colour.join(",")})`;
      span.style.color = ink(colour);
      span.title = say(i);
      return span;
    }));
    return line;
  }

  function draw() {
    fillPickers();
    const entry = current();
    const all = state.method === "all";
    const methods = all ? Object.keys(entry.scores) : [state.method];
    const box = $("explained-maps");
    const patches = entry.grid && entry.picture !== null;
    $("explained-title").textContent = `${entry.title}: ${entry.output}`;
    const signed = methods.some((method) => entry.scores[method].some((score) => score < 0));
    const [warm, cold] = patches ? ["--glow", "--cold"] : ["--warm", "--cool"];
    const bar = [...(signed ? stops(cold).map(([at, c]) => [-at, c]).reverse() : []), ...stops(warm)];
    const place = (at) => (signed ? 50 + 50 * at : 100 * at);
    $("key-bar").style.background = `linear-gradient(90deg, ${bar.map(([at, c]) => `${c} ${place(at)}%`).join(", ")})`;
    $("key-cold").textContent = signed ? "−" : "0";
    $("key-zero").textContent = patches ? "dark" : "the paper’s colour";
    box.className = patches ? `pictures${all ? "" : " one"}` : "texts";
    const figures = methods.map((method) => {
      const scores = entry.scores[method];
      const about = data.methods[method] || {};
      const figure = document.createElement("figure");
      const caption = element("figcaption");
      caption.append(element("b", title(method)), " ");
      if (about.standing) caption.append(element("span", about.standing, `tone ${about.tone}`));
      const say = (i) => `${entry.units[i]}: ${scores[i] === null ? "not a number" : short(scores[i])}`;
      if (patches) {
        const room = Math.min(all ? 190 : 420, box.clientWidth);
        Patches.load(data.pictures[entry.picture], (image) => figure.append(canvas(image, scores, entry.grid, room, say)));
      } else figure.append(words(entry.units, scores, say));
      figure.prepend(caption);
      if (!largest(scores)) figure.append(element("p", "This map is 0 everywhere: it ranks nothing.", "axes"));
      if (!all) figure.append(element("p", about.meaning || "", "axes"), element("p", about.verdict || "", "axes"));
      return figure;
    });
    if (patches) {
      const plain = document.createElement("figure");
      const room = Math.min(all ? 190 : 420, box.clientWidth);
      plain.append(element("figcaption", "picture"));
      Patches.load(data.pictures[entry.picture], (image) =>
        plain.append(canvas(image, null, entry.grid, room, (i) => entry.units[i])));
      figures.unshift(plain);
    }
    box.replaceChildren(...figures);
  }

  [["pick-explained", "example"], ["pick-output", "output"], ["pick-method", "method"]].forEach(([id, field]) =>
    $(id).addEventListener("change", () => { state[field] = $(id).value; draw(); }));
  $("explained-pickers").addEventListener("submit", (event) => event.preventDefault());
  draw();
  onChange(draw);
})();
